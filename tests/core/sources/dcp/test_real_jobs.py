"""Checkpoints that real jobs of torch and TorchRec saved, compared with what torch reads from them."""

from __future__ import annotations

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.reading.reader import Checkpoint
from torch_checkpoints import SAVED, raw, truth

USER = "model.ebc.embedding_bags.user.weight"
MOMENTUM = "optim.state.ebc.embedding_bags.user.weight.user.momentum1"
MCH = "model.mc._managed_collision_collection._managed_collision_modules.user."
PADDING = np.iinfo(np.int64).max


def compare(checkpoint: Checkpoint, name: str) -> None:
    """Compare all variables, and all tables by row numbers, with what torch reads."""
    expected = truth(SAVED / f"{name}.npz")
    for variable in checkpoint.variable_names:
        tensor = expected.pop(variable)
        values = checkpoint.variable(variable, bits=True)
        assert (values.shape, checkpoint.find_variable(variable)[1].dtype.name) == (tensor.shape, tensor.dtype)
        assert np.array_equal(raw(values), tensor.data), variable
    for table in checkpoint.table_names:
        tensor = expected.pop(table)
        ids, vectors = checkpoint.table(table).to_numpy()
        assert np.array_equal(ids, np.arange(tensor.shape[0])), table
        assert np.array_equal(raw(vectors), tensor.data), table
    assert not expected


def test_torchrec_tables_are_read_as_torch_reads_them() -> None:
    """Row-wise and table-wise tables, their optimizer's state and dense variables equal `dcp.load`, bit for bit."""
    with open_checkpoint(f"{SAVED}/torchrec@2") as checkpoint:
        compare(checkpoint, "torchrec")
        assert not any(shard.problems for shard in checkpoint.shards)
        assert [[entry.ids[0].first for _, entry in checkpoint.entries(name)] for name in (USER, MOMENTUM)] == [
            [0, 502]
        ] * 2
        assert checkpoint.placement(USER) is Placement.RANGES
        assert checkpoint.placement(USER.replace("user", "item")) is Placement.WHOLE_TABLE
        info = checkpoint.infos[MOMENTUM]
        assert (info.companion_of, info.slot, info.dim) == (USER, "momentum1", 16)
        items = [item for shard in checkpoint.shards for item in shard.items]
        assert [(item.name, item.dtype.name) for item in items] == [("step", "value")]


def test_row_wise_tables_are_plain_extents() -> None:
    """A table that is split by rows needs no gather: each rank's rows are one extent of its file."""
    with open_checkpoint(f"{SAVED}/torchrec@2") as checkpoint:
        assert all(entry.values.file == 0 for name in checkpoint.table_names for _, entry in checkpoint.entries(name))
        assert not any(shard.gathered for shard in checkpoint.shards)


def test_dtensors_in_boxes_of_both_dimensions() -> None:
    """Boxes of both dimensions, float64, float16, bfloat16, int8, bool and scalars equal `dcp.load`, bit for bit."""
    with open_checkpoint(f"{SAVED}/dtensor@1") as checkpoint:
        compare(checkpoint, "dtensor")
        assert checkpoint.table_names == []
        assert {"epoch", "cfg.names", "optim.param_groups.0.lr"} <= set(checkpoint.item_names)


def test_managed_collision_tables_have_raw_ids() -> None:
    """A raw id has the row that its mapping names, in the table and its optimizer's state; padding is no id."""
    expected = truth(SAVED / "mch.npz")
    raw_ids, rows = (
        expected[MCH + n].data.view(np.int64) for n in ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping")
    )
    live = raw_ids != PADDING
    with open_checkpoint(f"{SAVED}/mch@6") as checkpoint:
        for name, info in checkpoint.infos.items():
            ids, vectors = checkpoint.table(name).to_numpy()
            order = np.argsort(raw_ids[live])
            assert np.array_equal(ids, raw_ids[live][order])
            places = np.flatnonzero(live) if "_mch_" in name else rows[live]
            assert np.array_equal(raw(vectors), raw(expected[name].rows[places[order]])), name
            assert info.companion_of == ("" if info.name.endswith("user.weight") else ids_of(checkpoint))
        assert {info.slot for info in checkpoint.infos.values()} == {"", "momentum1", "counts", "last_access_iter"}
        assert checkpoint.table(ids_of(checkpoint)).to_numpy([1000003]).vectors.shape == (1, 8)


def ids_of(checkpoint: Checkpoint) -> str:
    """Return the one table that is no companion."""
    (name,) = (info.name for info in checkpoint.infos.values() if not info.companion_of)
    return name


@pytest.mark.parametrize(("name", "number"), [("torchrec", 2), ("mch", 6), ("dtensor", 1)])
def test_checksums_are_those_of_the_values(name: str, number: int) -> None:
    """Each item has a CRC-32 in its zip, which is that of the bytes that are read as its values."""
    import zlib

    with open_checkpoint(f"{SAVED}/{name}@{number}") as checkpoint:
        sums = [(shard, each) for shard in checkpoint.shards for each in shard.sums]
        assert len(sums) >= len(checkpoint)
        for shard, each in sums:
            (extent,) = each.extents
            data = checkpoint.reader(shard, extent).read(extent.start, extent.size_bytes)
            assert (each.kind, each.value) == ("crc32", zlib.crc32(data)), each.subject
