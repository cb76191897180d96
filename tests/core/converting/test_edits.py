"""Edits of versions: what is dropped, cast, renamed and resized, and that all else keeps its fingerprint."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from checkpoints import at, drop_seal, files_of
from edl_ckpt.core import (
    Changes,
    Table,
    Version,
    convert_version,
    fingerprint_checkpoint,
    open_checkpoint,
    save_checkpoint,
    seal_version,
    verify_version,
)
from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.moving.result import WriteResult
from foreign import SYSTEMS, copied
from program import document, edl

Arrays = dict[str, npt.NDArray[Any]]
FOREIGN = {
    "torchrec": ("dcp/torchrec", 2),
    "managed collision": ("dcp/mch", 6),
    "tensors of torch": ("dcp/dtensor", 1),
    "dynamicemb": ("dynamicemb", 1),
    "dynamicemb, four ranks": ("dynamicemb", 3),
    "tfra": ("tfra", 3),
    "safetensors": ("safetensors", 200),
    "deeprec": ("bundle/deeprec", 100),
    "tfra in a bundle": ("bundle/tfra", 1),
    "partitioned": ("bundle/partitioned", 30),
}
OF_VALUES = {"inf", "huge-value", "unsupported-dtype"}
"""What ElasticDL cannot do with values that an edit is asked for."""
SPECIAL = [0.0, -0.0, 1.0, 65504.0, 65519.9, 65520.0, -7e4, 3.4028235e38, 1e-8, 6e-8, 1e-40, np.inf, -np.inf, 1 / 3]


def source(name: str, place: Path) -> Version:
    """Return a version of a system; a number is that of the shards of ElasticDL."""
    if name not in FOREIGN:
        return model(place / "run", int(name))
    folder, number = FOREIGN[name]
    if folder.startswith("bundle"):
        shutil.copytree(SYSTEMS / folder, place / "run")
        return at(place / "run", number)
    return at(copied(folder, number, place / "run").parent, number)


def model(place: Path, shards: int) -> Version:
    """Save tables and variables of several dtypes for ElasticDL."""
    random, ids = np.random.default_rng(7), np.array([0, 3, 5, 2**40, 2**63 - 1, -1, 17, 18], np.int64)
    rows = random.standard_normal((8, 7)).astype(np.float32)
    rows.reshape(-1)[: len(SPECIAL)] = SPECIAL
    tables = {
        "user": Table(ids, rows),
        "user_copy": Table(ids, rows),
        "item": Table(ids[:5], random.standard_normal((5, 2))),
        "codes": Table(ids, random.integers(-9, 9, (8, 3)).astype(np.int8)),
        "none": Table(ids[:0], rows[:0]),
    }
    variables: Arrays = {
        "kernel": np.array(SPECIAL, np.float32).reshape(2, 7),
        "bias": random.standard_normal(5),
        "step": np.array(12, np.int64),
    }
    return save_checkpoint(place, 10, shards, variables=variables, tables=tables, layout="elasticdl")


def arrays(version: Version) -> Arrays:
    """Return the values of all variables and tables, tables in the order of their ids."""
    with open_checkpoint(version) as checkpoint:
        dense = {name: checkpoint.variable(name) for name in checkpoint.variable_names}
        return dense | {name: np.asarray(checkpoint.table(name).to_numpy().vectors) for name in checkpoint.table_names}


def parts(version: Version) -> dict[str, str]:
    """Return the fingerprints of all tables and variables."""
    with open_checkpoint(version) as checkpoint:
        whole = fingerprint_checkpoint(checkpoint)
    return {name: part.hex() for name, part in (*whole.tables.items(), *whole.variables.items())}


def edited(version: Version, place: Path, changes: Changes) -> tuple[WriteResult, Version]:
    """Edit a version; all that holds for any edit is checked here."""
    before, own = files_of(place), parts(version)
    planned = convert_version(version, output=place / "out", changes=changes, dry_run=True)
    assert files_of(place) == before
    assert planned.dry_run
    result = convert_version(version, output=place / "out", changes=changes, workers=2)
    for key in ("rows", "size_bytes", "dropped", "to_ps", "system", "ref"):
        assert getattr(planned, key) == getattr(result, key), key
    out = at(place / "out", version.number or 0)
    checked = verify_version(out, level="deep")
    wrong = [one for one in checked.findings if one.severity == "error" and one.code not in OF_VALUES]
    assert not wrong, wrong
    assert (out.fingerprint, out.layout.system) == (result.fingerprint, version.layout.system)
    assert {name: data for name, data in files_of(place).items() if name in before} == before
    after = parts(out)
    assert all(after[name] == part for name, part in result.untouched.items())
    equal = {name for name in own.keys() & after.keys() if own[name] == after[name]}
    named = result.untouched.keys() & own.keys()
    assert named <= equal
    assert equal - named <= {"user", "none"}  # made of two tensors, named as another was, and cast without rows
    return result, out


def refused(version: Version, place: Path, changes: Changes, error: type[EdlCkptError], words: str) -> None:
    """Check that changes are refused, by a dry run too, and that nothing on the disk differs."""
    before = files_of(place)
    for dry_run in (True, False):
        with pytest.raises(error, match=words):
            convert_version(version, output=place / "out", changes=changes, dry_run=dry_run)
    assert files_of(place) == before
    assert not (place / "out").exists()


def same(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    """Say whether two arrays have the same bits."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def nearest_bfloat16(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the bfloat16 nearest to each value, ties to even, found among its two neighbours."""
    out = []
    for value in np.asarray(values, np.float32).reshape(-1):
        low = (int(value.view(np.uint32)) >> 16) << 16
        both = [int(np.uint32(bits)) for bits in (low, low + 0x10000)]
        wide = [float(np.uint32(bits).view(np.float32)) for bits in both]
        if np.isinf(wide[1]) and np.isfinite(wide[0]):
            wide[1] = float(np.copysign(2.0**128, wide[0]))  # what follows the largest one
        off = [abs(float(value) - one) for one in wide]
        first = not np.isfinite(value) or off[0] < off[1] or (off[0] == off[1] and not low >> 16 & 1)
        out.append(np.uint32(both[0 if first else 1]).view(np.float32))
    return np.array(out, np.float32).reshape(np.shape(values))


@pytest.mark.parametrize(
    ("globs", "gone"),
    [
        (("user",), {"user"}),
        (("user*",), {"user", "user_copy"}),
        (("*e*",), {"user", "user_copy", "item", "codes", "none", "kernel", "step"}),
        (("[kb]*", "ste?"), {"kernel", "bias", "step"}),
        (("none", "none", "no*"), {"none"}),
    ],
)
@pytest.mark.parametrize("shards", ["1", "3"])
def test_dropped_names(tmp_path: Path, globs: tuple[str, ...], gone: set[str], shards: str) -> None:
    """Names that a glob matches are left out with their rows and bytes; all others keep their values."""
    version = source(shards, tmp_path)
    before = arrays(version)
    result, out = edited(version, tmp_path, Changes(drop=globs))
    after = arrays(out)
    assert after.keys() == before.keys() - gone
    assert all(same(values, before[name]) for name, values in after.items())
    assert {one.name: one.size_bytes for one in result.dropped} == {name: before[name].nbytes for name in gone}
    assert {one.reason for one in result.dropped} == {"dropped by name"}
    assert result.left_out_bytes == sum(before[name].nbytes for name in gone)


@pytest.mark.parametrize("name", FOREIGN)
def test_each_name_can_be_dropped(tmp_path: Path, name: str) -> None:
    """Of each system, the first and last table or tensor is dropped; companions go along, and all else stays."""
    version = source(name, tmp_path)
    before = arrays(version)
    with open_checkpoint(version) as checkpoint:
        infos = checkpoint.infos
    names = [one for one in before if one not in infos or (version.layout.system != "safetensors")]
    for number, one in enumerate({names[0], names[-1]}):
        place = tmp_path / str(number)
        place.mkdir()
        gone = {one} | {n for n, info in infos.items() if info.companion_of == one}
        if gone == before.keys():
            refused(version, place, Changes(drop=(one,)), UsageError, "nothing of it would be written")
            continue
        result, out = edited(version, place, Changes(drop=(one,)))
        assert not {n for n, values in arrays(out).items() if values.size} & gone
        assert {d.name for d in result.dropped} >= gone
        assert {d.name for d in result.dropped if d.reason == "a companion of its table"} == gone - {one}


@pytest.mark.parametrize("name", ["1", *FOREIGN])
def test_companions_are_dropped(tmp_path: Path, name: str) -> None:
    """Without companions the tables and variables keep their fingerprints."""
    version = source(name, tmp_path)
    with open_checkpoint(version) as checkpoint:
        companions = {n for n, info in checkpoint.infos.items() if info.companion_of}
    result, out = edited(version, tmp_path, Changes(drop_companions=True))
    assert {d.name for d in result.dropped} == companions
    assert not companions & {n for n, values in arrays(out).items() if values.size}


@pytest.mark.parametrize("shards", ["1", "3"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float32"])
def test_casts(tmp_path: Path, shards: str, dtype: str) -> None:
    """Floats are rounded to nearest even; finite values that become infinite are counted; integers stay."""
    version = source(shards, tmp_path)
    before = arrays(version)
    result, out = edited(version, tmp_path, Changes(cast=(("*", dtype),)))
    after, overflowed = arrays(out), 0
    for name, values in before.items():
        if values.dtype.kind != "f" or not values.size:
            assert name == "none" or same(after[name], values)
            continue
        with np.errstate(all="ignore"):
            wanted = nearest_bfloat16(values) if dtype == "bfloat16" else values.astype(dtype)
        overflowed += int(np.count_nonzero(np.isfinite(values) & ~np.isfinite(wanted)))
        assert same(after[name].astype(wanted.dtype), wanted), name
    assert result.overflowed == overflowed
    assert (overflowed > 0) == (dtype in {"float16", "bfloat16"})
    assert {"codes", "step"} <= result.untouched.keys()


@pytest.mark.parametrize("glob", ["codes", "step", "[cs]*"])
def test_a_cast_of_no_floats(tmp_path: Path, glob: str) -> None:
    """A glob that names whole numbers alone is refused: it would change nothing."""
    version = source("3", tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match="only floats are cast"):
        edited(version, tmp_path, Changes(cast=((glob, "float16"),)))
    assert files_of(tmp_path) == before


def test_a_cast_and_back(tmp_path: Path) -> None:
    """What a wider type holds comes back with its fingerprint."""
    version = source("3", tmp_path)
    _, wide = edited(version, tmp_path / "1", Changes(cast=(("user*", "float64"), ("kernel", "float64"))))
    _, again = edited(wide, tmp_path / "2", Changes(cast=(("user*", "float32"), ("kernel", "float32"))))
    assert parts(again) == parts(version)


@pytest.mark.parametrize("name", ["torchrec", "managed collision", "tensors of torch", "safetensors", "deeprec"])
def test_casts_of_other_systems(tmp_path: Path, name: str) -> None:
    """Tables and tensors of other systems are cast to double; what is no float keeps its bits."""
    version = source(name, tmp_path)
    before = arrays(version)
    _, out = edited(version, tmp_path, Changes(cast=(("*", "float64"),)))
    after = arrays(out)
    for one, values in before.items():
        if "/part_" in one:
            continue  # where groups begin is written anew
        assert same(after[one], values.astype(np.float64) if values.dtype.kind == "f" else values), one


@pytest.mark.parametrize("name", ["dynamicemb", "tfra"])
def test_systems_of_one_dtype(tmp_path: Path, name: str) -> None:
    """Files without headers hold float32 only, so a cast is refused."""
    version = source(name, tmp_path)
    refused(version, tmp_path, Changes(cast=(("*", "float16"),)), UnsupportedError, "keeps float32")


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint8", "bool", "complex64", "float8", "Float16", "", "float"])
def test_casts_are_to_floats_only(tmp_path: Path, dtype: str) -> None:
    """Any other type is refused with those that there are."""
    refused(source("1", tmp_path), tmp_path, Changes(cast=(("user", dtype),)), UsageError, "float16, bfloat16, float32")


@pytest.mark.parametrize(
    ("pairs", "names"),
    [
        ((("user", "u"),), {"user": "u"}),
        ((("user*", "new/*"),), {"user": "new/", "user_copy": "new/_copy"}),
        ((("*er*", "*"),), {}),
        ((("user", "item"), ("item", "user")), {"user": "item", "item": "user"}),
        ((("kernel", "密集/权重:0"), ("bias", "b c")), {"kernel": "密集/权重:0", "bias": "b c"}),
        ((("user", "x"), ("user", "y")), {"user": "y"}),
        ((("user", "user"),), {}),
    ],
)
@pytest.mark.parametrize("shards", ["1", "3"])
def test_new_names(tmp_path: Path, pairs: tuple[tuple[str, str], ...], names: dict[str, str], shards: str) -> None:
    """A new name has the values of the old one; a star is what the star of the old name is."""
    version = source(shards, tmp_path)
    before = arrays(version)
    result, out = edited(version, tmp_path, Changes(rename=pairs))
    after = arrays(out)
    assert after.keys() == {names.get(name, name) for name in before}
    assert all(same(after[names.get(name, name)], values) for name, values in before.items())
    assert result.dropped == ()


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (Changes(drop=("nothing",)), NotFoundError, "no table or variable matches 'nothing'"),
        (Changes(drop=("user", "x*")), NotFoundError, r"matches 'x\*'"),
        (Changes(drop=("*",)), UsageError, "nothing of it would be written"),
        (Changes(cast=(("nothing", "float16"),)), NotFoundError, "matches 'nothing'"),
        (Changes(rename=(("nothing", "x"),)), NotFoundError, "matches 'nothing'"),
        (Changes(rename=(("user", "item"),)), UsageError, "would be named 'item'"),
        (Changes(rename=(("user", "kernel"),)), UsageError, "would be named 'kernel'"),
        (Changes(rename=(("user*", "one"),)), UsageError, "would all be named 'one'"),
        (Changes(rename=(("user", ""),)), UsageError, "name"),
        (Changes(resize=(("user", 3),)), UnsupportedError, "'user' is no matrix"),
        (Changes(resize=(("nothing", 3),)), NotFoundError, "no table 'nothing'"),
    ],
)
def test_edits_that_cannot_be(tmp_path: Path, changes: Changes, error: type[EdlCkptError], words: str) -> None:
    """A name that matches nothing, two of one name and a size without a matrix are refused."""
    refused(source("3", tmp_path), tmp_path, changes, error, words)


USER, ITEM = "model.ebc.embedding_bags.user.weight", "model.ebc.embedding_bags.item.weight"
USER_STATE = "optim.state.ebc.embedding_bags.user.weight.user.momentum1"


@pytest.mark.parametrize("name", ["user:momentum1", "us*:momentum1", USER_STATE])
def test_a_companion_is_dropped_by_its_short_name(tmp_path: Path, name: str) -> None:
    """A table and a slot name a companion; its table and all others stay."""
    version = source("torchrec", tmp_path)
    before = arrays(version)
    _, out = edited(version, tmp_path, Changes(drop=(name,)))
    assert arrays(out).keys() == before.keys() - {USER_STATE}


@pytest.mark.parametrize("rows", [1, 2, 501, 502, 1002, 1003, 1004, 1005, 5000])
def test_a_matrix_of_another_size(tmp_path: Path, rows: int) -> None:
    """A matrix and its momentum are cut, or grow by zeros; the other one is untouched."""
    version = source("torchrec", tmp_path)
    before = arrays(version)
    result, out = edited(version, tmp_path, Changes(resize=(("user", rows),)))
    after = arrays(out)
    for name in (USER, USER_STATE):
        wanted = np.zeros((rows, 16), np.float32)
        wanted[:1003] = before[name][:rows]
        assert same(after[name], wanted), name
    assert all(same(after[name], before[name]) for name in before if name not in {USER, USER_STATE})
    assert (USER in result.untouched) == (rows == 1003)
    assert result.rows == 2 * (rows + 211)  # each table has a momentum


@pytest.mark.parametrize(
    ("name", "changes", "error", "words"),
    [
        ("managed collision", (("user", 9),), UnsupportedError, "managed collision: nothing proves"),
        ("torchrec", ((USER_STATE, 9),), UsageError, "resize that table"),
        ("torchrec", (("user:momentum1", 9),), UsageError, "resize that table"),
        ("torchrec", (("nobody", 9),), NotFoundError, "no table 'nobody'"),
        ("dynamicemb", (("user", 9),), UnsupportedError, "no matrix"),
        ("tfra", (("scope_user_3", 9),), UnsupportedError, "no matrix"),
        ("deeprec", (("item_emb", 9),), UnsupportedError, "no matrix"),
    ],
)
def test_sizes_that_cannot_be(
    tmp_path: Path, name: str, changes: tuple[tuple[str, int], ...], error: type[EdlCkptError], words: str
) -> None:
    """Tables with ids, managed collision and a momentum alone have no size of their own."""
    refused(source(name, tmp_path), tmp_path, Changes(resize=changes), error, words)


def test_a_size_in_another_system(tmp_path: Path) -> None:
    """A matrix is not resized on its way into a system that keeps ids: nothing would do it."""
    version = source("torchrec", tmp_path)
    before = files_of(tmp_path)
    for system in ("elasticdl", "tfra"):
        with pytest.raises(UnsupportedError, match="has no size"):
            convert_version(version, output=tmp_path / "out", system=system, changes=Changes(resize=(("user", 5),)))
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("shards", ["1", "3"])
def test_several_changes_at_once(tmp_path: Path, shards: str) -> None:
    """Rows go, a name is new, values are cast, and each is judged by the old names."""
    version = source(shards, tmp_path)
    before = arrays(version)
    changes = Changes(
        drop=("codes", "bias"),
        rows=("user where id < 5",),
        cast=(("user", "float64"), ("kernel", "float16")),
        rename=(("user", "codes"), ("user_copy", "user")),
    )
    result, out = edited(version, tmp_path, changes)
    after = arrays(out)
    assert after.keys() == {"codes", "user", "item", "none", "kernel", "step"}
    assert same(after["codes"], before["user"][3:].astype(np.float64))
    assert same(after["user"], before["user_copy"])
    assert {(d.name, d.rows) for d in result.dropped} == {("codes", 8), ("codes", 3), ("bias", 0)}
    assert result.untouched.keys() == {"item", "none", "step"}


def test_several_changes_of_torch(tmp_path: Path) -> None:
    """A matrix is resized and cast and renamed with its momentum at once."""
    version = source("torchrec", tmp_path)
    before = arrays(version)
    changes = Changes(
        resize=((USER, 7),), cast=((USER, "float64"),), rename=((USER, "u"), (USER_STATE, "m")), drop=(ITEM,)
    )
    _, out = edited(version, tmp_path, changes)
    after = arrays(out)
    assert same(after["u"], before[USER][:7].astype(np.float64))
    assert same(after["m"], before[USER_STATE][:7])
    assert after.keys() == {"u", "m", "model.over.bias", "model.over.weight"}


@pytest.mark.parametrize("name", ["1", *FOREIGN])
def test_new_names_that_change_nothing(tmp_path: Path, name: str) -> None:
    """A star for a star is a copy: each name is untouched, and the fingerprint is the same."""
    version = source(name, tmp_path)
    result, out = edited(version, tmp_path, Changes(rename=(("*", "*"),)))
    assert parts(out) == parts(version) or name == "deeprec"  # its partition offsets are made anew
    assert result.dropped == ()


@pytest.mark.parametrize("name", ["torchrec", "managed collision"])
def test_a_table_of_torch_under_another_name(tmp_path: Path, name: str) -> None:
    """A renamed matrix leaves its momentum as a tensor of the same values: nothing says any more whose it is."""
    version = source(name, tmp_path)
    with open_checkpoint(version) as checkpoint:
        table = next(n for n in checkpoint.table_names if n.endswith("user.weight"))
    _, out = edited(version, tmp_path, Changes(rename=((table, "renamed"),)))
    assert "renamed" in arrays(out)


def test_tables_in_files_beside_a_bundle_are_refused(tmp_path: Path) -> None:
    """TFRA's own files beside a bundle are not written by either format, so an edit is refused with that reason."""
    version = at(copied("tfra", 900, tmp_path / "run").parent, 900)
    words = "is in a file that tensorflow does not read"
    for changes in (Changes(drop=("item-parameter",)), Changes(rows=("item-parameter where id < 3",))):
        refused(version, tmp_path, changes, UnsupportedError, words)


@pytest.mark.parametrize("name", ["3", "torchrec", "tfra", "deeprec"])
def test_the_place_of_a_version_is_taken(tmp_path: Path, name: str) -> None:
    """A result beside its source would have its number, however the source is spelled: it is refused."""
    version = source(name, tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(RefusedError, match="exists there already"):
        convert_version(version, output=version.location, changes=Changes(rename=(("*", "*"),)))
    assert files_of(tmp_path) == before


@pytest.mark.parametrize("name", ["3", "torchrec", "tfra", "deeprec"])
def test_a_flipped_bit_under_a_seal(tmp_path: Path, name: str) -> None:
    """A value that differs from the seal is found before anything is written; `force` goes on, and says so."""
    version = source(name, tmp_path)
    if name == "3":
        drop_seal(version.location.url, 10)
    with open_checkpoint(version) as checkpoint:
        text = fingerprint_checkpoint(checkpoint).text
    seal_version(version, text)
    version = at(tmp_path / "run", version.number or 0)
    with open_checkpoint(version) as checkpoint:
        table = next(n for n in checkpoint.table_names if n.endswith(("user", "weight", "_3", "_emb")))
        row = np.asarray(checkpoint.table(table).to_numpy().vectors)[-1].tobytes()
    path = next(path for path in (tmp_path / "run").rglob("*") if path.is_file() and row in path.read_bytes())
    data, stat = bytearray(path.read_bytes()), path.stat()
    data[data.index(row)] ^= 4
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    before = files_of(tmp_path)
    changes = Changes(rename=((table, "renamed"),))
    with pytest.raises(CorruptError, match="do not have the fingerprint in the version's seal"):
        convert_version(version, output=tmp_path / "out", changes=changes)
    assert files_of(tmp_path) == before
    assert not (tmp_path / "out").exists()
    with pytest.warns(match="going on because of the option"):
        assert convert_version(version, output=tmp_path / "out", changes=changes, force=True).forced


OFFSETS = "-partition_offset"
"""Where groups of keys begin in a part of DeepRec: made anew for the parts."""


def related(version: Version, old: str = "", new: str = "") -> set[tuple[str, str]]:
    """Return (table, slot) of all companions, with an old part of a table's name replaced."""
    with open_checkpoint(version) as checkpoint:
        infos = checkpoint.infos.values()
        return {(info.companion_of.replace(old, new), info.slot) for info in infos if info.companion_of}


@pytest.mark.parametrize(
    ("system", "old", "new"),
    [
        ("torchrec", "user", "member"),
        ("managed collision", "user", "member"),
        ("dynamicemb", "user", "member"),
        ("dynamicemb, four ranks", "user", "member"),
        ("deeprec", "item_emb", "items"),
    ],
)
def test_companions_stay_companions(tmp_path: Path, system: str, old: str, new: str) -> None:
    """After a rename by the short name, each table has the companions that it had, with the same values."""
    version = source(system, tmp_path)
    before = {name: values for name, values in arrays(version).items() if not name.endswith(OFFSETS)}
    result, out = edited(version, tmp_path, Changes(rename=((old, new),)))
    assert related(out) == related(version, old, new) != related(version)
    after = {name: values for name, values in arrays(out).items() if not name.endswith(OFFSETS)}
    assert len(after) == len(before)
    assert sorted(v.tobytes() for v in after.values()) == sorted(v.tobytes() for v in before.values())
    assert not [name for name in after if old in name.replace(new, "")]
    assert result.to_ps


def test_an_export_renames_companions(tmp_path: Path) -> None:
    """An export with --rename names the companions as the edit does."""
    version = source("deeprec", tmp_path)
    done = edl("export", version.ref, tmp_path / "out.npz", "--rename", "item_emb=items")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "out.npz") as loaded:
        assert {"items.ids", "items-freqs.vectors", "items-versions.vectors"} <= set(loaded)
        assert not [name for name in loaded if "item_emb" in name and not name.endswith(OFFSETS)]


def test_a_table_that_stops_being_one(tmp_path: Path) -> None:
    """A name that TorchRec does not give a table makes a plain tensor: that is a warning."""
    version = source("torchrec", tmp_path)
    done = edl("edit", version.ref, "--rename", f"{USER}=member", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert f"'member' is no name of a table, so '{USER}' becomes a plain tensor" in done.stderr
    quiet = edl("edit", version.ref, "--rename", "user=member", "--output", tmp_path / "other")
    assert "warning" not in quiet.stderr
    assert document("verify", tmp_path / "other", "--deep")["ok"]


def test_dropped_and_renamed_at_once(tmp_path: Path) -> None:
    """A companion with a name of its own keeps that name."""
    version = source("deeprec", tmp_path)
    changes = Changes(rename=(("item_emb", "items"), ("item_emb-freqs", "counts")))
    convert_version(version, output=tmp_path / "out", changes=changes)
    with open_checkpoint(f"{tmp_path / 'out'}@100") as checkpoint:
        names = [*checkpoint.table_names, *checkpoint.variable_names]
    assert "items-versions" in names
    assert not [name for name in names if "item_emb" in name]


@pytest.mark.parametrize(("said", "warned"), [("float32", True), ("bfloat16", False), (7, False), (None, False)])
def test_a_cast_says_what_config_json_still_claims(tmp_path: Path, said: object, warned: bool) -> None:
    """Transformers believes config.json: where its dtype is that of before the cast, a warning says so."""
    model_dir = tmp_path / "model"
    model_dir.mkdir()
    save_checkpoint(str(tmp_path / "run"), 1, 1, variables={"w": np.ones((4, 3), np.float32)}, tables={})
    assert edl("export", f"{tmp_path / 'run'}@1", model_dir / "model.safetensors").returncode == 0
    (model_dir / "config.json").write_text(json.dumps({"torch_dtype": said} if said else {}))
    done = edl("edit", model_dir, "--cast", "w=bfloat16", "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert ("config.json still says float32, and the tensors are bfloat16 now" in done.stderr) == warned
