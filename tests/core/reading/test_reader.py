"""Opening a checkpoint reads headers; ids are read in every form that protobuf allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from checkpoints import only
from edl_ckpt.core import open_checkpoint, reshard_version
from oracle import combined, read_model


def test_index_skips_values(tmp_path: Path) -> None:
    """Opening a shard of holes of 3 GiB, for which no memory is, reads a few kilobytes."""
    from edl_ckpt.core.model.dtypes import DTYPES
    from edl_ckpt.core.model.tables import TableInfo
    from edl_ckpt.core.sources.elasticdl.shard_layout import CountedTable, PlacedVariable, lay_out_shards

    f32 = DTYPES["float32"]
    rows = 40_000_000
    dense = [PlacedVariable(f"v{i}", f32, (1 << 20,), 4 << 20) for i in range(100)]
    table = CountedTable(TableInfo("t", 16, "zeros"), f32, np.array([rows]), np.array([rows]))
    layout = lay_out_shards(7, dense, [table], 1)
    directory = tmp_path / "version_7"
    directory.mkdir()
    with (directory / "variables-0-of-1.chkpt").open("wb") as file:
        for offset, data in layout.literals(0):
            file.seek(offset)
            file.write(data)
        file.truncate(int(layout.size_bytes[0]))
    with open_checkpoint(str(tmp_path)) as checkpoint:
        assert checkpoint.shards[0].tables[0].rows == rows
        assert len(checkpoint.variable_names) == 100
        assert checkpoint.bytes_read < 1 << 20


def test_unpacked_and_split_ids(tmp_path: Path, either_kernel: str) -> None:
    """Ids unpacked, packed in several runs, and both mixed are read as protobuf reads them."""
    from edl_ckpt.core.base.numbers import varint
    from edl_ckpt.core.sources.elasticdl.wire import head

    ids = [5, 300, -1, 2**40, 7, 8]
    values = np.arange(12, dtype="<f4").tobytes()
    packed = b"".join(varint(i) for i in ids[:2])
    runs = head(2, len(packed)) + packed + b"".join(b"\x10" + varint(i) for i in ids[2:5]) + head(2, 1) + varint(8)
    tensor = b"\x08\x01\x12\x08\x12\x02\x08\x06\x12\x02\x08\x02" + head(4, len(values)) + values
    slices = head(1, len(tensor)) + tensor + runs
    entry = head(1, 1) + b"e" + head(2, len(slices)) + slices
    info = head(1, 1) + b"e" + b"\x10\x02"
    data = b"\x08\x07" + head(2, len(info)) + info + head(4, len(entry)) + entry
    directory = tmp_path / "a" / "version_7"
    directory.mkdir(parents=True)
    (directory / "variables-0-of-1.chkpt").write_bytes(data)
    version = only(tmp_path / "a")
    with open_checkpoint(version) as checkpoint:
        assert [int(i) for batch in checkpoint.table("e", batch_rows=2) for i in batch.ids] == ids
    reshard_version(version, 3, output=str(tmp_path / "b"))
    files = [Path(s.path) for s in only(tmp_path / "b").shards]
    assert combined(read_model(files)) == combined(read_model([directory / "variables-0-of-1.chkpt"]))
