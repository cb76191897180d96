"""Shards as a fuzzer makes them: only our errors come out, in bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import table_shard
from edl_ckpt.core import list_versions, open_checkpoint
from edl_ckpt.core.errors import CorruptError
from edl_ckpt.core.model import Version
from edl_ckpt.proto import tensor_pb2

VERSION = 33


def place(location: Path, data: bytes) -> Version:
    """Write a shard as the only one of a version."""
    directory = location / f"version-{VERSION}"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "variables-0-of-1.ckpt").write_bytes(data)
    (version,) = list_versions(str(location)).versions
    return version


@pytest.mark.parametrize("ids", [b"\x90\x00\x07", b"\x10\x06\x90\x00\x07\x10\x08", b"\x12\x01\x06\x90\x80\x00\x07"])
def test_tag_longer_than_needed(tmp_path: Path, ids: bytes) -> None:
    """An unpacked id whose tag takes more bytes than it needs is read as protobuf reads it, and reading ends."""
    expected = list(tensor_pb2.IndexedSlicesProto.FromString(ids).ids)
    with open_checkpoint(place(tmp_path, table_shard(ids, len(expected)))) as checkpoint:
        assert [i for rows in checkpoint.table("t") for i in rows.ids.tolist()] == expected


def test_ids_in_many_pieces(tmp_path: Path) -> None:
    """Ids packed and unpacked by turns are read once, not a block for each turn; without end they are refused."""
    turn = b"\x10\x05\x12\x01\x06"
    version = place(tmp_path, table_shard(turn * 1000 + b"\x10\x05" * 500_000, 502_000))
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.bytes_read < 10 * version.size_bytes
        assert sum(len(rows.ids) for rows in checkpoint.table("t")) == 502_000
    with pytest.raises(CorruptError, match="in more than 10000 pieces"):
        open_checkpoint(place(tmp_path, table_shard(turn * 6000, 12_000)))
