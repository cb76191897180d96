"""Bundles that TensorFlow wrote: every value is that which TensorFlow had, and every checksum is right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle_files import write_bundle
from edl_ckpt.core import Checkpoint, list_versions, look_up, open_checkpoint, verify_version
from edl_ckpt.core.kernel.checksums import crc32c
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import State
from places import DATA

BUNDLES = DATA / "systems" / "bundle"
REFS = {
    "objects": "objects@1",
    "deeprec": "deeprec@100",
    "partitioned": "partitioned@30",
    "saved_model": "saved_model@1",
    "sharded": "sharded@40",
    "tfra": "tfra@1",
    "tfra_graph": "tfra_graph@3",
}


def expected(folder: str) -> dict[str, Any]:
    """Return what TensorFlow had, by the names in the bundle."""
    with np.load(BUNDLES / "expected.npz") as arrays:
        return {name.removeprefix(f"{folder}."): arrays[name] for name in arrays if name.startswith(f"{folder}.")}


def opened(ref: str) -> Checkpoint:
    return open_checkpoint(str(BUNDLES / ref))


@pytest.mark.parametrize("folder", REFS)
def test_every_value(folder: str) -> None:
    """Variables, whole and partitioned, and tables have the values and the dtypes that TensorFlow had."""
    with opened(REFS[folder]) as checkpoint:
        truth = expected(folder)
        for name, values in truth.items():
            table, _, kind = name.rpartition(".")
            if kind == "ids":
                rows = checkpoint.tables[table].to_numpy()
                order = np.argsort(values)
                np.testing.assert_array_equal(rows.ids, values[order])
                np.testing.assert_array_equal(rows.vectors, truth[f"{table}.vectors"][order])
                assert rows.vectors.dtype == truth[f"{table}.vectors"].dtype
            elif kind != "vectors" and name in checkpoint:
                np.testing.assert_array_equal(np.asarray(checkpoint[name]), values)
                assert np.asarray(checkpoint[name]).dtype == values.dtype
            elif kind != "vectors":
                np.testing.assert_array_equal(checkpoint.tables[name].to_numpy().vectors[:, 0], values)


def sums(checkpoint: Checkpoint) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the stored and the real checksum of each tensor that has one."""
    for shard in checkpoint.shards:
        for stored in shard.sums:
            assert stored.kind == "crc32c"
            parts = [checkpoint.reader(shard, part).read(part.start, part.size_bytes) for part in stored.extents]
            yield stored.subject, stored.value, crc32c(b"".join(parts))


@pytest.mark.parametrize("folder", REFS)
def test_every_checksum(folder: str) -> None:
    """The bundle's checksum of each tensor but texts is known, and is that of its bytes."""
    with opened(REFS[folder]) as checkpoint:
        found = list(sums(checkpoint))
        assert found
        assert [name for name, stored, real in found if stored != real] == []
        texts = set(checkpoint.item_names)
        assert not texts & {name for name, _, _ in found}


def shards_of(ref: str) -> tuple[ShardIndex, ...]:
    with opened(ref) as checkpoint:
        return tuple(checkpoint.shards)


def test_tables_of_deeprec_in_data_files() -> None:
    """A table has its part in the shard of the part's data file, by DeepRec's rule; companions name their table."""
    shards = shards_of(REFS["sharded"])
    tables = {(shard.file.ps_id, entry.name): entry for shard in shards for entry in shard.tables}
    for ps_id in (0, 1):
        assert tables[ps_id, "item"].placement is Placement.MOD_1000_MOD
        assert tables[ps_id, "empty"].rows == 0
        assert tables[ps_id, "empty"].empty_dim == 6
    companions = {info.name: (info.companion_of, info.slot) for info in shards[1].infos}
    assert companions["item-freqs"] == ("item", "freqs")
    assert companions["item/Adagrad"] == ("item", "Adagrad")
    assert companions["item"] == ("", "")
    assert (0, "far") not in tables  # its keys are in the other data file, and are borrowed
    assert [file.ps_id for file in shards[1].borrowed] == [0]


def test_what_is_no_tensor_of_ours() -> None:
    """Texts are items of their kind, and complex numbers a variable that no table could be."""
    (shard,) = shards_of(REFS["saved_model"])
    assert [(item.name, item.dtype.name) for item in shard.items] == [("_CHECKPOINTABLE_OBJECT_GRAPH", "string")]
    others = [(v.name, v.dtype.name) for v in shard.variables if not v.dtype.is_ours and not v.is_item]
    assert others == [("z/.ATTRIBUTES/VARIABLE_VALUE", "complex64")]


def test_parts_in_one_data_file_are_one_table() -> None:
    """Two parts in one data file are read as one entry; nothing says the shard of an id then."""
    (shard,) = shards_of(REFS["deeprec"])
    entry = next(entry for entry in shard.tables if entry.name == "item_emb")
    assert (entry.rows, len(entry.ids), entry.placement) == (400, 2, None)
    ids = expected("deeprec")["item_emb.ids"][[0, 399, 7]]
    found = look_up(str(BUNDLES / "deeprec@100"), "item_emb", ids)
    np.testing.assert_array_equal(found.vectors, expected("deeprec")["item_emb.vectors"][[0, 399, 7]])


@pytest.mark.parametrize("ref", REFS.values())
def test_verify_finds_nothing(ref: str) -> None:
    """Verify has no error in bundles of TensorFlow, and reads every value."""
    result = verify_version(str(BUNDLES / ref), level="deep")
    assert result.ok
    assert result.fingerprint


def test_prefix_index_and_directory_name_one_bundle(tmp_path: Path) -> None:
    """A prefix, its index and a directory that has one bundle are the same version."""
    shutil.copytree(BUNDLES / "objects", tmp_path / "final")
    for name in ("ckpt-1", "ckpt-1.index", ""):
        with open_checkpoint(str(tmp_path / "final" / name)) as checkpoint:
            assert "w/.ATTRIBUTES/VARIABLE_VALUE" in checkpoint


def test_a_listing_says_what_is_missing(tmp_path: Path) -> None:
    """A data file that is missing, or ends early, and an index that is missing or damaged, are named."""
    for number, name in enumerate(("data-00001-of-00002", "index", "cut", "damaged", "whole"), 1):
        for file in (BUNDLES / "sharded").iterdir():
            shutil.copy(file, tmp_path / file.name.replace("-40", f"-{number}"))
        if name in {"index", "data-00001-of-00002"}:
            (tmp_path / f"model.ckpt-{number}.{name}").unlink()
    os.truncate(tmp_path / "model.ckpt-3.data-00001-of-00002", 5000)
    damaged = tmp_path / "model.ckpt-4.index"
    data = bytearray(damaged.read_bytes())
    data[100] ^= 1
    damaged.write_bytes(data)
    lacks = {version.version: version.lacks for version in list_versions(str(tmp_path)).versions}
    assert lacks[1] == ("model.ckpt-1.data-00001-of-00002",)
    assert lacks[2] == ("model.ckpt-2.index",)
    (cut,) = lacks[3]
    assert cut.startswith("model.ckpt-3.data-00001-of-00002 ends at byte 5,000 of ")
    (wrong,) = lacks[4]
    assert "the checksum of a block is wrong" in wrong
    assert lacks[5] == ()


def test_several_bundles_in_one_step(tmp_path: Path) -> None:
    """Of several bundles in the directory of a step, that counts which its file `checkpoint` names; else none can."""
    for number in (1, 2):
        write_bundle(tmp_path / f"step_5/m-{number}", {"v": np.full(2, number)})
    write_bundle(tmp_path / "step_5/m-2_temp/part-00000-of-00001", {"v": np.zeros(2)})
    (version,) = list_versions(str(tmp_path)).versions
    assert version.state is State.UNREADABLE
    assert "2 bundles in one directory (m-1, m-2)" in version.why_unreadable
    (tmp_path / "step_5/checkpoint").write_text('model_checkpoint_path: "/job/step_5/m-2"\n')
    with open_checkpoint(f"{tmp_path}@5") as checkpoint:
        assert checkpoint["v"].tolist() == [2, 2]


def test_a_bundle_that_is_being_merged(tmp_path: Path) -> None:
    """Parts that a saver has not merged yet make a step that is incomplete, or being written, even if each is whole."""
    write_bundle(tmp_path / "step_5/m_temp/part-00000-of-00001", {"v": np.zeros(2)})
    (version,) = list_versions(str(tmp_path), grace_seconds=0).versions
    assert version.state is State.INCOMPLETE
    assert version.lacks == ("1 part of a bundle, not merged yet: m_temp/part-00000-of-00001",)
