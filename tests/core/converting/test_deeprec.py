"""Bundles for DeepRec: whatever the number of parts, it restores every row once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle_files import write_bundle
from checkpoints import at
from deeprec_restore import Row, restore
from edl_ckpt.core import Table, convert_version, fingerprint_checkpoint, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.errors import UnsupportedError
from foreign import step

RNG = np.random.default_rng(5)
IDS = np.sort(RNG.choice(1 << 40, 500, replace=False)).astype(np.int64)
VECTORS = RNG.standard_normal((500, 4)).astype(np.float32)


def restored(prefix: Path, name: str, count: int, rest: str = "") -> dict[int, Row]:
    """Return what the parts of a job get together; no part gets what another one has."""
    rows: dict[int, Row] = {}
    for part in range(count or 1):
        own = restore(prefix, f"{name}/part_{part}{rest}" if count else name + rest, part, count or 1)
        assert not rows.keys() & own.keys()
        rows |= own
    return rows


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_tables_of_elasticdl(tmp_path: Path, ranks: int) -> None:
    """A table of ElasticDL is restored whole, by a job of any number of parts; frequencies and versions are unknown."""
    run = save_checkpoint(tmp_path / "run", 10, 3, variables={}, tables={"user": Table(IDS, VECTORS)})
    convert_version(run, ranks, output=tmp_path / "out", system="tensorflow")
    (prefix,) = tmp_path.glob("out/*10*/model.index")
    for count in (0, 1, 2, 5):
        rows = restored(prefix.with_suffix(""), "user", count)
        assert rows == {int(key): (row.tobytes(), -1, -1) for key, row in zip(IDS, VECTORS, strict=True)}


def bundle_of(folder: Path, saved: int) -> Path:
    """Write a bundle of DeepRec, all parts in one data file: a variable, a slot of it, and keys not admitted yet."""
    arrays: dict[str, Any] = {"w": np.ones(3, np.float32)}
    for part in range(saved or 1):
        stem = f"item/part_{part}" if saved else "item"
        chosen = np.flatnonzero(IDS % 1000 % (saved or 1) == part)
        chosen = chosen[np.argsort(IDS[chosen] % 1000, kind="stable")]
        for number, rest in enumerate(("", "/Adagrad")):
            name = f"{stem}{rest}"
            arrays[f"{name}-keys"], arrays[f"{name}-values"] = IDS[chosen], VECTORS[chosen] + number
            arrays[f"{name}-freqs"] = IDS[chosen] % 7 if not number else IDS[:0]
            arrays[f"{name}-versions"] = IDS[chosen] % 5 + number if number else IDS[:0]
            offsets = np.searchsorted(IDS[chosen] % 1000, np.arange(1001))
            arrays[f"{name}-partition_offset"] = offsets.astype(np.int32)
            arrays[f"{name}-keys_filtered"] = np.array([part], np.int64)
            for end in ("freqs_filtered", "versions_filtered"):
                arrays[f"{name}-{end}"] = np.ones(1, np.int64)
            arrays[f"{name}-partition_filter_offset"] = (np.arange(1001) > part).astype(np.int32)
    write_bundle(folder / "model.ckpt-10", arrays)
    return folder / "model.ckpt-10"


@pytest.mark.parametrize("saved", [0, 1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_parts(tmp_path: Path, saved: int, ranks: int) -> None:
    """Rows, frequencies, versions and slots are restored as before; keys that wait are left out by name."""
    before = bundle_of(tmp_path / "run", saved)
    wanted = {rest: restored(before, "item", saved, rest) for rest in ("", "/Adagrad")}
    assert {len(rows) for rows in wanted.values()} == {500}
    version = step(tmp_path / "run", 10)
    with open_checkpoint(version) as checkpoint:
        tables = fingerprint_checkpoint(checkpoint).tables
    result = convert_version(version, ranks, output=tmp_path / "out")
    dropped = {one.name.rpartition("-")[2] for one in result.dropped}
    assert dropped == {"keys_filtered", "freqs_filtered", "versions_filtered"}
    with open_checkpoint(at(tmp_path / "out", 10)) as checkpoint:
        assert fingerprint_checkpoint(checkpoint).tables == tables
    (index,) = (tmp_path / "out").rglob("*.index")
    for count in (0, 1, 2, 5):
        for rest, rows in wanted.items():
            lost = rest and not count and ranks > 1  # DeepRec looks for item/Adagrad/part_0 there, in its own files too
            assert restored(index.with_suffix(""), "item", count, rest) == ({} if lost else rows)


def test_names_that_deeprec_does_not_find(tmp_path: Path) -> None:
    """DeepRec takes the first `part_` in a name for the number of a part, so such a table is refused."""
    run = save_checkpoint(tmp_path / "run", 10, 1, variables={}, tables={"my_part_a": Table(IDS, VECTORS)})
    with pytest.raises(UnsupportedError, match="DeepRec finds no table with 'part_' in its name"):
        convert_version(run, 2, output=tmp_path / "out", system="tensorflow")


def test_keys_of_int32(tmp_path: Path) -> None:
    """Keys of int32 would be written as int64, which the job that saved them does not read: they are refused."""
    write_bundle(tmp_path / "run/model.ckpt-10", {"t-keys": np.arange(3, dtype=np.int32), "t-values": VECTORS[:3]})
    with pytest.raises(UnsupportedError, match="'t' has keys of int32"):
        convert_version(step(tmp_path / "run", 10), 2, output=tmp_path / "out")
