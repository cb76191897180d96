"""The small messages of a header are read as protobuf reads them, whatever bytes they are, and written as by it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.base.numbers import MalformedError
from edl_ckpt.core.sources.elasticdl import by_protobuf, small_messages
from edl_ckpt.proto import tensor_pb2
from places import GOLDEN

FIELDS = st.sampled_from(
    [
        b"\x0a\x02ab",
        b"\x0a\x01\xff",
        b"\x10\x08",
        b"\x10\x80\x01",
        b"\x10" + b"\xff" * 9 + b"\x01",
        b"\x10" + b"\xff" * 9 + b"\x7f",
        b"\x1a\x07uniform",
        b"\x20\x01",
        b"\x20\xff\xff\xff\xff\xff\x01",
        b"\x12\x00",
        b"\x12\x02\x08\x05",
        b"\x12\x03\x08\x80\x00",
        b"\x12\x05\x08\x05\x12\x01n",
        b"\x12\x04\x08\x05\x08\x06",
        b"\x18\x01",
        b"\x08\x01",
        b"\x2b",
        b"\x12",
        b"\x8a\x00\x00",
    ]
)


def outcome(read: Callable[[bytes], Any], data: bytes) -> Any:
    """Return what a reader returns, or that it finds no message."""
    try:
        return read(data)
    except MalformedError:
        return "no message"


@given(st.lists(FIELDS, max_size=5), st.binary(max_size=3), st.integers(0, 40))
def test_every_form_is_read_as_protobuf_reads_it(fields: list[bytes], rest: bytes, cut: int) -> None:
    """Usual, unusual, doubled, cut and damaged messages have the same values, or are none for both."""
    for data in (b"".join(fields), b"".join(fields) + rest, b"".join(fields)[:cut]):
        assert outcome(small_messages.read_info, data) == outcome(by_protobuf.info_of, data)
        assert outcome(small_messages.read_shape, data) == outcome(by_protobuf.shape_of, data)


@given(st.text(max_size=20), st.integers(-(2**63), 2**63 - 1), st.text(max_size=20), st.integers(-(2**31), 2**31 - 1))
def test_each_table_is_read_as_it_was_written(name: str, dim: int, initializer: str, dtype: int) -> None:
    """What describes a table is written as by protobuf, and comes back, for each value that protobuf can write."""
    message = tensor_pb2.EmbeddingTableInfo(name=name, dim=dim, initializer=initializer, dtype=dtype)
    data = small_messages.info_bytes(name, dim, initializer, dtype)
    assert data == message.SerializeToString(deterministic=True)
    assert small_messages.read_info(data) == (name, dim, initializer, dtype)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=6))
def test_each_shape_is_read_as_it_was_written(sizes: list[int]) -> None:
    """A shape comes back with all its sizes."""
    shape = tensor_pb2.TensorShapeProto(dim=[tensor_pb2.TensorShapeProto.Dim(size=size) for size in sizes])
    assert small_messages.read_shape(shape.SerializeToString()) == tuple(sizes)


@pytest.mark.parametrize("words", [["inspect"], ["verify", "--quick"]])
def test_usual_headers_need_no_protobuf(words: list[str]) -> None:
    """Commands that read the headers of shards as ElasticDL writes them import no protobuf."""
    code = f"""
import sys
from edl_ckpt.cli.app import main
try:
    main([{words[0]!r}, {str(GOLDEN / "multi")!r}, *{words[1:]!r}])
except SystemExit as end:
    print(end.code, "google.protobuf" in sys.modules, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr.splitlines()[-1] == "0 False"
