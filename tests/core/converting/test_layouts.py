"""Every layout to every layout: numpy reads the files on both sides, and each system's rule says the rank of an id."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from checkpoints import at, files_of
from edl_ckpt.core import (
    Changes,
    Table,
    Version,
    convert_version,
    fingerprint_checkpoint,
    open_checkpoint,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.moving.result import WriteResult
from foreign import SYSTEMS
from rank_files import Array, Tables, joined, tables_in

DESTINATIONS = ("elasticdl", "dcp", "tfra", "dynamicemb", "tensorflow")
RANKS = (1, 2, 3, 8)
I64 = npt.NDArray[np.int64]
RULES: Mapping[str, Callable[[I64, int, int], npt.NDArray[np.generic]]] = {
    "elasticdl": lambda ids, count, n: ids % count,
    "dcp": lambda ids, count, n: ids // -(-n // count),
    "tfra": lambda ids, count, n: (ids & 0x7FFFFFFF) % count,
    "dynamicemb": lambda ids, count, n: ids.view(np.uint64) % np.uint64(count),
    "tensorflow": lambda ids, count, n: ids % 1000 % count,
    "tfra's own": lambda ids, count, n: ids % count,
}
"""The rank of each id among `count`, of a table of n rows: the rule of each system, as its source has it."""
BOOKKEEPING = re.compile(r"-(?:freqs|versions|partition_offset)$")
"""What a bundle of DeepRec has besides rows."""
COMPANION = re.compile(r"\.momentum1$|_emb_\w+$|-(?:freqs|versions)$|-shadow_\w$")
DTYPE_OF_OTHERS = "unsupported-dtype"
NEGATIVE = "negative-id"


def key_in_torch(name: str) -> str:
    """Return the key that a table of another system has in torch."""
    return f"embedding_bags.{name}.weight"


def convert(
    version: Version, to: Path, system: str, ranks: int, changes: Changes | None = None
) -> tuple[Version, WriteResult]:
    """Convert a version, verify what was written, and return it with the report."""
    result = convert_version(version, ranks, output=to, system=system, changes=changes)
    there = at(to, version.version)
    found = {f.code for f in verify_version(there, level="deep").findings} - {DTYPE_OF_OTHERS, NEGATIVE}
    assert not found
    assert (there.layout.system, result.to_ps) == (system, there.ps_num if system == "dcp" else ranks)
    assert there.fingerprint == result.fingerprint
    return there, result


def check_rows(before: Tables, after: Tables, names: Mapping[str, str], *, rule: str, ranks: int) -> None:
    """Assert that tables, with new names, have the same rows, each in the rank of a rule; there are no others."""
    assert set(after) == set(names.values())
    for old, new in names.items():
        (ids, rows), (ids_there, rows_there) = joined(before[old]), joined(after[new])
        assert np.array_equal(ids, ids_there), new
        assert rows.dtype == rows_there.dtype, new
        assert rows.tobytes() == rows_there.tobytes(), new
        if len(ids):
            assert rows.shape == rows_there.shape, new
        for part in after[new]:
            assert (RULES[rule](part.ids, ranks, len(ids)) == part.rank).all(), (new, part.rank)


def names_of(version: Version) -> set[str]:
    """Return the names of all that a version holds: tables, variables, and values that are no tensors."""
    with open_checkpoint(version) as checkpoint:
        return {*checkpoint.item_names, *checkpoint.table_names, *checkpoint.variable_names}


def parts_of(version: Version) -> dict[str, bytes]:
    """Return the fingerprints of tables and variables by name."""
    with open_checkpoint(version) as checkpoint:
        parts = fingerprint_checkpoint(checkpoint)
        return {**parts.tables, **parts.variables}


def model(place: Path, shards: int) -> Version:
    """Save tables of row numbers in disorder, of one row, and of none; dims are odd, one, and a power of two."""
    random = np.random.default_rng(shards)
    sizes = {"user": (101, 7), "one": (1, 1), "some": (8, 16), "none": (0, 3)}
    tables = {
        name: Table(random.permutation(rows), random.standard_normal((rows, dim), np.float32))
        for name, (rows, dim) in sizes.items()
    }
    variables: dict[str, Array] = {
        "w": random.standard_normal((5, 3)),
        "b": np.zeros(0, np.float32),
        "step": np.array(7),
    }
    return save_checkpoint(place, 10, shards, variables=variables, tables=tables)


@pytest.mark.parametrize("system", DESTINATIONS)
@pytest.mark.parametrize(("shards", "ranks"), [(1, 1), (3, 2), (1, 3), (3, 8)])
def test_elasticdl_to_each_system_and_back(tmp_path: Path, system: str, shards: int, ranks: int) -> None:
    """Every table of ElasticDL is whole in each system, and home again it has the fingerprint that it had."""
    home = model(tmp_path / "home", shards)
    there, result = convert(home, tmp_path / "there", system, ranks)
    names = {name: key_in_torch(name) if system == "dcp" else name for name in ("user", "one", "some", "none")}
    before, after = tables_in(Path(home.path), "elasticdl"), tables_in(Path(there.path), system)
    gone = {"w", "b", "step"} if system in {"tfra", "dynamicemb"} else set()
    assert {one.name for one in result.dropped} == gone
    assert all(one.reason == f"{system} keeps tables only" for one in result.dropped)
    after.pop("w", None)  # a matrix of torch
    check_rows(before, after, names, rule=system, ranks=ranks)
    back = Changes(rename=(("embedding_bags.*.weight", "*"),)) if system == "dcp" else None
    again, _ = convert(there, tmp_path / "again", "elasticdl", shards, back)
    headless = {"none"} if gone else set()  # no file says the dim of a table without rows
    expected, found = ({n: part for n, part in parts_of(v).items() if n not in headless | gone} for v in (home, again))
    bookkeeping = {name for name in found if system == "tensorflow" and BOOKKEEPING.search(name)}
    assert {name: part for name, part in found.items() if name not in bookkeeping} == expected


class Case(NamedTuple):
    """A step that another system wrote; for each system what is renamed, and the new names of all that goes there."""

    folder: str
    number: int
    to: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]


def same(*names: str) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return the names of tables that keep them."""
    return {}, {name: name for name in names}


EBC, SLOT = "model.ebc.embedding_bags.{}.weight", "optim.state.ebc.embedding_bags.{0}.weight.{0}.momentum1"
ITEM_KEY, USER_KEY, ITEM_SLOT, USER_SLOT = (key.format(name) for key in (EBC, SLOT) for name in ("item", "user"))
ADAM = "item-parameter_DynamicEmbedding_item-shadow_"
DEEPREC = ("item_emb", "item_emb-freqs", "item_emb-versions")
DYNAMIC = "dynamicemb/model.ebc/user"
CASES = [
    Case(
        "dcp/torchrec",
        2,
        {
            "elasticdl": ({USER_KEY: "u"}, {USER_KEY: "u", ITEM_KEY: ITEM_KEY, ITEM_SLOT: ITEM_SLOT}),
            "tfra": same(USER_KEY, ITEM_KEY, USER_SLOT),
            "tensorflow": same(USER_KEY, ITEM_KEY, USER_SLOT, ITEM_SLOT),
            "dynamicemb": ({USER_KEY: "m/u"}, {USER_KEY: "m/u", USER_SLOT: "m/u_emb_opt_values", ITEM_KEY: ITEM_KEY}),
        },
    ),
    Case("tfra", 3, {"elasticdl": same("scope_user_3"), "tfra": same("scope_user_3")}),
    Case("tfra", 900, {"elasticdl": same("item-parameter", f"{ADAM}m"), "tfra": same("item-parameter", f"{ADAM}v")}),
    Case(
        "dynamicemb",
        1,
        {
            "elasticdl": same(DYNAMIC, f"{DYNAMIC}_emb_scores", f"{DYNAMIC}_emb_opt_values"),
            "tfra": ({DYNAMIC: "user"}, {DYNAMIC: "user"}),
        },
    ),
    Case(
        "dynamicemb",
        2,
        {
            "elasticdl": same(DYNAMIC, f"{DYNAMIC}_emb_scores"),
            "tfra": ({DYNAMIC: "user"}, {DYNAMIC: "user"}),
            "dynamicemb": ({DYNAMIC: "t"}, {DYNAMIC: "t", f"{DYNAMIC}_emb_scores": "t_emb_scores"}),
        },
    ),
    Case(
        "bundle/deeprec",
        100,
        {
            "elasticdl": same(*DEEPREC),
            "tfra": same("item_emb"),
            "tensorflow": same(*DEEPREC),
            "dynamicemb": ({}, {"item_emb": "item_emb", "item_emb-freqs": "item_emb_emb_scores"}),
        },
    ),
]


@pytest.mark.parametrize(
    ("case", "system"), [pytest.param(c, to, id=f"{c.folder}-{c.number}-{to}") for c in CASES for to in c.to]
)
def test_a_step_of_another_system_to_each(tmp_path: Path, case: Case, system: str) -> None:
    """Its tables go to each system that has a place for their ids and dtypes: row by row, to the rank of the rule."""
    (rename, names), ranks = case.to[system], RANKS[(CASES.index(case) + DESTINATIONS.index(system)) % len(RANKS)]
    version = at(SYSTEMS / case.folder, case.number)
    source = case.folder.partition("/")[0].replace("bundle", "tensorflow")
    before = tables_in(Path(version.path), "tfra" if case.number == 900 else source)
    changes = Changes(tables=tuple(names), rename=tuple(rename.items()))
    there, result = convert(version, tmp_path / "there", system, ranks, changes)
    own = source == system == "tfra" and case.number == 3
    after = tables_in(Path(there.path), system)
    gone = {name for name in names if system == "tfra" and not own and COMPANION.search(name)}
    assert {(one.name, one.reason) for one in result.dropped} == {(name, NO_FILE) for name in gone}
    there_as = {old: new for old, new in names.items() if old not in gone}
    check_rows(before, after, there_as, rule="tfra's own" if own else system, ranks=ranks)
    kept = {old for old, new in there_as.items() if old == new}
    assert {n: p for n, p in parts_of(there).items() if n in kept} == {
        n: p for n, p in parts_of(version).items() if n in kept
    }
    assert result.rows == sum(len(joined(before[name])[0]) for name in there_as)


NO_FILE = "TFRA has no file for it"
"""Why counters and slots of an optimizer stay behind: TFRA writes a pair of files for each table, none for those."""
NO_TABLES, NO_MATRIX = "nothing of it would be written", "a matrix has ids 0 to"
NO_DTYPE = r"a checkpoint of ElasticDL cannot hold 'model.phase' \(complex64\), 'model.scale' \(float8_e4m3fn\)"
NO_GROUP, NO_KEY = "DeepRec has no part for negative keys", "dynamicemb has no key below 0"
STEPS: Mapping[tuple[str, int], Mapping[str, str]] = {
    ("dcp/torchrec", 2): {},
    ("dcp/mch", 6): {},
    ("dcp/dtensor", 1): {"tfra": NO_TABLES, "dynamicemb": NO_TABLES},
    ("safetensors", 100): {"elasticdl": NO_DTYPE, "tfra": NO_TABLES, "dynamicemb": NO_TABLES},
    ("safetensors", 200): {"dcp": NO_MATRIX, "dynamicemb": NO_KEY, "tensorflow": NO_GROUP},
    ("bundle/objects", 1): {"tfra": NO_TABLES, "dynamicemb": NO_TABLES},
    ("bundle/deeprec", 100): {"dcp": NO_MATRIX},
    ("tfra", 3): {"dcp": NO_MATRIX, "dynamicemb": NO_KEY, "tensorflow": NO_GROUP},
    ("dynamicemb", 1): {"dcp": NO_MATRIX, "tfra": "cannot be the name of a table", "tensorflow": NO_GROUP},
}
"""Steps, and why a system does not take all of one."""


@pytest.mark.parametrize(("folder", "number"), STEPS)
def test_a_whole_step_is_refused_with_the_reason_and_nothing_is_written(
    tmp_path: Path, folder: str, number: int
) -> None:
    """A step that a system would lose rows of, or read wrongly, is refused by name, and there is no file."""
    for system, reason in STEPS[folder, number].items():
        with pytest.raises((UnsupportedError, UsageError), match=reason):
            convert_version(at(SYSTEMS / folder, number), 3, output=tmp_path / "out", system=system)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("folder", "number", "system"),
    [(*step, system) for step, refused in STEPS.items() for system in DESTINATIONS if system not in refused],
)
def test_each_name_goes_out_or_is_left_out_with_a_reason(tmp_path: Path, folder: str, number: int, system: str) -> None:
    """Of a whole step each name is in the new version, or it is left out with a reason."""
    version = at(SYSTEMS / folder, number)
    there, result = convert(version, tmp_path / "there", system, 3)
    gone = {one.name for one in result.dropped}
    assert all(one.reason and one.size_bytes >= 0 for one in result.dropped)
    made = {name for name in names_of(version) if BOOKKEEPING.search(name)} if system == "tensorflow" else set()
    new = {n for n in names_of(version) if system in {"dcp", "dynamicemb"} and (COMPANION.search(n) or "_mch_" in n)}
    assert names_of(version) - gone - made - new <= names_of(there)
    assert not names_of(there) & gone
    with open_checkpoint(version) as one, open_checkpoint(there) as other:
        for name in {*one.variable_names} & {*other.variable_names} - made:
            before, after = (each.variable(name, bits=True) for each in (one, other))
            assert before.dtype == after.dtype
            assert before.tobytes() == after.tobytes(), name


@pytest.mark.parametrize(
    ("folders", "number", "name"),
    [
        (("dcp/torchrec/step_2", "dynamicemb/step_1"), 2, "dynamicemb/model.ebc/user"),
        (("dcp/torchrec/step_2", "safetensors/checkpoint-100"), 2, "model."),
        (("tfra/step_900",), 900, "item-parameter_DynamicEmbedding_item-shadow_m"),
    ],
)
@pytest.mark.parametrize("in_place", [True, False])
def test_a_step_with_files_of_two_systems_is_not_written_anew(
    tmp_path: Path, folders: tuple[str, ...], number: int, name: str, *, in_place: bool
) -> None:
    """Files of a second system would go along with rows for the old ranks: a table in them is named and refused."""
    step = tmp_path / "run" / f"step_{number}"
    for folder in folders:
        shutil.copytree(SYSTEMS / folder, step, dirs_exist_ok=True)
    before = files_of(tmp_path)
    with pytest.raises(UnsupportedError, match=r"in a file that .* does not read") as refused:
        convert_version(at(tmp_path / "run", number), 3, output=None if in_place else tmp_path / "out")
    assert f"'{name}" in str(refused.value)
    assert files_of(tmp_path) == before
