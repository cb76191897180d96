"""Versions that travel from system to system: one fingerprint for each table, or a refusal that says what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import at, files_of, numbers
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
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.converting.destinations.table import DESTINATIONS
from edl_ckpt.core.operations.reshard.found import find_resharded
from examples import examples
from foreign import copied

KEYED = ("tfra", "dynamicemb", "tensorflow", "elasticdl")


def saved(place: Path, ids: Iterable[int], *, dim: int = 3, ps: int = 3, dense: bool = True) -> Version:
    """Save a version with a table of these ids, in this order, and perhaps a variable."""
    keys = np.array(list(ids), np.int64)
    rows = np.random.default_rng(len(keys)).standard_normal((len(keys), dim)).astype(np.float32)
    variables = {"w": np.arange(7.0)} if dense else {}
    return save_checkpoint(place, 10, ps, variables=variables, tables={"user": Table(keys, rows)})


def parts(version: Version) -> dict[str, bytes]:
    """Return the fingerprints of the tables of a version."""
    with open_checkpoint(version) as checkpoint:
        return fingerprint_checkpoint(checkpoint).tables


def moved(version: Version, to: Path, system: str, ranks: int, changes: Changes | None = None) -> Version:
    """Write a version to another location, for another system, and verify what was written."""
    convert_version(version, ranks, output=to, system=system, changes=changes)
    result = verify_version(at(to, 10), level="deep")
    assert result.ok, result.findings
    return at(to, 10)


@examples(5)
@given(
    ids=st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=60),
    way=st.lists(st.tuples(st.sampled_from(KEYED), st.integers(1, 7)), min_size=1, max_size=4),
    dim=st.integers(1, 5),
)
def test_every_way_keeps_the_fingerprint_of_a_table(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], way: list[tuple[str, int]], dim: int
) -> None:
    """Every way keeps the fingerprint of a table."""
    place = tmp_path_factory.mktemp("journey")
    version = saved(place / "run", ids or [1], dim=dim, dense=False)
    before = parts(version)
    for number, (system, ranks) in enumerate(way):
        version = moved(version, place / str(number), system, ranks)
        assert version.layout.system == system
        assert version.ps_num == ranks
    assert parts(version) == before


def test_a_table_comes_home_from_four_systems(tmp_path: Path) -> None:
    """From ElasticDL to dynamicemb, DCP, TFRA and back, each table keeps its fingerprint under its name."""
    keys, rng = np.random.default_rng(3).permutation(500), np.random.default_rng(4)
    tables = {
        name: Table(keys, rng.standard_normal((500, dim)).astype(np.float32)) for name, dim in (("a", 3), ("b", 8))
    }
    version = save_checkpoint(tmp_path / "home", 10, 3, variables={"w": np.ones(7)}, tables=tables)
    before, names = parts(version), {"a": "a", "b": "b"}
    for system, ranks in (("dynamicemb", 2), ("dcp", 3), ("tfra", 5), ("elasticdl", 4)):
        short = tuple((name, table) for table, name in names.items() if name != table) if system == "tfra" else ()
        version = moved(version, tmp_path / system, system, ranks, Changes(rename=short))
        names = {table: f"embedding_bags.{table}.weight" if system == "dcp" else table for table in names}
        assert system == "dcp" or parts(version) == before, system  # a fingerprint has the name of its table in it
    with open_checkpoint(version) as checkpoint:
        assert (checkpoint.table_names, checkpoint.variable_names) == (["a", "b"], [])


@pytest.mark.parametrize(("system", "number"), [("tfra", 3), ("dynamicemb", 1), ("dynamicemb", 3)])
@pytest.mark.parametrize("ranks", [1, 2, 5, 8])
def test_a_reshard_in_place_keeps_the_fingerprint(tmp_path: Path, system: str, number: int, ranks: int) -> None:
    """A reshard in place keeps the fingerprint."""
    version = at(copied(system, number, tmp_path).parent, number)
    before = parts(version)
    result = convert_version(version, ranks)
    after = at(tmp_path, number)
    assert (after.ps_num, result.to_ps, len(after.shards)) == (ranks, ranks, ranks)
    assert parts(after) == before
    assert verify_version(after, level="deep").ok
    assert after.fingerprint == result.fingerprint
    assert not [name for name in files_of(tmp_path) if "trash" in name or "stage" in name]


def test_a_reshard_of_what_is_there_does_nothing_when_asked(tmp_path: Path) -> None:
    """A reshard of what is there does nothing when asked."""
    version = at(copied("tfra", 3, tmp_path).parent, 3)
    before = files_of(tmp_path)
    assert find_resharded(version, 4) is not None
    assert files_of(tmp_path) == before


def test_what_a_system_cannot_hold_is_left_out_by_name(tmp_path: Path) -> None:
    """What a system cannot hold is left out by name."""
    result = convert_version(saved(tmp_path / "run", range(9)), 2, output=tmp_path / "out", system="tfra")
    assert [(one.name, one.size_bytes) for one in result.dropped] == [("w", 56)]
    with open_checkpoint(at(tmp_path / "out", 10)) as checkpoint:
        assert (checkpoint.table_names, checkpoint.variable_names) == (["user"], [])


@pytest.mark.parametrize(("system", "ids"), [("dynamicemb", [-1, 4]), ("tensorflow", [5, -(2**63)])])
def test_ids_that_a_system_cannot_hold_are_refused_before_anything_is_written(
    tmp_path: Path, system: str, ids: list[int]
) -> None:
    """Ids that a system cannot hold are refused before anything is written."""
    version = saved(tmp_path / "run", ids)
    with pytest.raises(UnsupportedError, match=r"'user' has id -"):
        convert_version(version, 2, output=tmp_path / "out", system=system)
    assert not (tmp_path / "out").exists()


def test_rows_are_left_out_by_a_condition_together_with_those_of_companions(tmp_path: Path) -> None:
    """Rows are left out by a condition together with those of companions."""
    version = at(copied("dynamicemb", 3, tmp_path / "run").parent, 3)
    with open_checkpoint(version) as checkpoint:
        table = next(name for name in checkpoint.table_names if checkpoint.infos[name].slot == "scores")
        owner = checkpoint.infos[table].companion_of
        ids, scores = checkpoint.table(table).to_numpy()
        least = int(np.sort(scores.reshape(-1))[len(scores) // 2])
    rule = f"{owner} where scores < {least} or id = {int(ids[0])}"
    result = convert_version(version, output=tmp_path / "out", changes=Changes(rows=(rule,)))
    wanted = {
        int(key)
        for key, score in zip(ids.tolist(), scores.reshape(-1).tolist(), strict=True)
        if score >= least and key != ids[0]
    }
    with open_checkpoint(at(tmp_path / "out", 3)) as checkpoint:
        for name in (owner, table):
            assert set(checkpoint.table(name).to_numpy()[0].tolist()) == wanted
    gone = {one.name: one.rows for one in result.dropped}
    assert gone[owner] == gone[table] == len(ids) - len(wanted)
    assert owner not in result.untouched


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        (Changes(drop=("nothing*",)), NotFoundError),
        (Changes(rename=(("nothing", "x"),)), NotFoundError),
        (Changes(rename=(("*", "x"),)), UsageError),
        (Changes(rename=(("w", "user"),)), UsageError),
        (Changes(cast=(("user", "int8"),)), UsageError),
        (Changes(rows=("user",)), UsageError),
        (Changes(rows=("user where freqs < 3",)), UsageError),
        (Changes(rows=("user where id < three",)), UsageError),
        (Changes(rows=("user where __import__('os')",)), UsageError),
        (Changes(rows=("user where id < 1", "user where id > 5")), UsageError),
        (Changes(resize=(("user", 3),)), UnsupportedError),
    ],
)
def test_changes_that_cannot_be_are_refused_before_anything_is_written(
    tmp_path: Path, changes: Changes, error: type[EdlCkptError]
) -> None:
    """Changes that cannot be are refused before anything is written."""
    version = saved(tmp_path / "run", range(9))
    before = files_of(tmp_path)
    with pytest.raises(error):
        convert_version(version, output=tmp_path / "out", changes=changes)
    assert files_of(tmp_path) == before


def test_an_edit_casts_renames_and_drops_and_says_what_it_did_not_touch(tmp_path: Path) -> None:
    """An edit casts renames and drops and says what it did not touch."""
    keys, rows = np.arange(5), np.full((5, 2), 1e30, np.float32)
    tables = {"ebc.user": Table(keys, rows), "ebc.item": Table(keys, rows)}
    version = save_checkpoint(tmp_path / "run", 4, 2, variables={"a": np.ones(3), "b": np.ones(3)}, tables=tables)
    changes = Changes(drop=("b",), cast=(("ebc.user", "float16"),), rename=(("ebc.*", "*"),))
    result = convert_version(version, output=tmp_path / "out", changes=changes)
    with open_checkpoint(at(tmp_path / "out", 4)) as checkpoint:
        assert checkpoint.table_names == ["item", "user"]
        assert checkpoint.variable_names == ["a"]
        assert np.isinf(checkpoint.table("user").to_numpy()[1].astype(np.float32)).all()
        assert checkpoint.table("item").to_numpy()[1].tolist() == rows.tolist()
    assert (result.overflowed, list(result.untouched)) == (10, ["a"])


def test_a_dry_run_writes_nothing_and_knows_every_size(tmp_path: Path) -> None:
    """A dry run writes nothing and knows every size."""
    version = saved(tmp_path / "run", range(100))
    before = files_of(tmp_path)
    planned = convert_version(version, 4, output=tmp_path / "out", system="dynamicemb", dry_run=True)
    assert files_of(tmp_path) == before
    done = convert_version(version, 4, output=tmp_path / "out", system="dynamicemb")
    assert (planned.size_bytes, planned.rows) == (done.size_bytes, done.rows)


def test_a_target_that_is_there_is_refused(tmp_path: Path) -> None:
    """A target that is there is refused."""
    version = saved(tmp_path / "run", range(9))
    convert_version(version, output=tmp_path / "out", system="tfra")
    before = files_of(tmp_path)
    with pytest.raises(RefusedError, match="exists there already"):
        convert_version(version, output=tmp_path / "out", system="tfra")
    with pytest.raises(RefusedError, match="scan crashes"):
        convert_version(at(tmp_path / "out", 10), output=tmp_path / "run", number=77)
    with pytest.raises(RefusedError, match="does not take the place"):
        convert_version(version, system="tfra")
    assert files_of(tmp_path) == before


def test_metrics_and_tags_go_along_and_a_seal_is_made(tmp_path: Path) -> None:
    """Metrics and tags go along and a seal is made."""
    from edl_ckpt.core import add_tag, set_metrics

    version = saved(tmp_path / "run", range(9))
    set_metrics(version, {"auc": 0.5})
    add_tag(version, "serving")
    convert_version(at(tmp_path / "run", 10), 2, output=tmp_path / "out", system="dynamicemb")
    there = at(tmp_path / "out", 10)
    assert (there.metrics, there.tags) == ({"auc": 0.5}, ("serving",))
    assert there.fingerprint
    assert numbers(tmp_path / "out") == [10]


@pytest.mark.parametrize("system", sorted({"elasticdl", *DESTINATIONS} - {"safetensors", "torch"}))
def test_a_version_without_rows_travels(tmp_path: Path, system: str) -> None:
    """A version without rows travels."""
    version = saved(tmp_path / "run", [])
    convert_version(version, 2, output=tmp_path / "out", system="elasticdl", changes=Changes(rename=(("user", "t"),)))
    again = convert_version(version, 2, output=tmp_path / system, system=system, dry_run=True)
    assert again.rows == 0
