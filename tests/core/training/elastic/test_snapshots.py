"""Snapshots as bytes: what comes back is what was there, and no bytes do anything else than fail."""

from __future__ import annotations

import io
import json
import math
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from edl_ckpt.core.base.arrays import BFLOAT16
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.training.elastic import read_snapshot, write_snapshot
from edl_ckpt.core.training.elastic.snapshots import MAGIC

ARRAYS = arrays_of.arrays(
    st.sampled_from(["?", "i1", "<i8", ">i4", "u2", "f2", "<f4", ">f8", "c16"]),
    arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
SNAPSHOTS = st.recursive(
    SCALARS | ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


def encoded(snapshot: Any) -> bytes:
    """Return a snapshot as bytes."""
    stream = io.BytesIO()
    write_snapshot(stream, snapshot)
    return stream.getvalue()


def assert_same(one: Any, other: Any) -> None:
    """Fail unless two values have the same types and the same content; the order of bytes in memory aside."""
    assert type(one) is type(other)
    if isinstance(one, np.ndarray | np.generic):
        assert one.dtype.newbyteorder("=") == other.dtype.newbyteorder("=")
        np.testing.assert_array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        assert list(map(type, one)) == list(map(type, other))
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for each, its in zip(one, other, strict=True):
            assert_same(each, its)
    else:
        assert one == other or (math.isnan(one) and math.isnan(other))


@given(SNAPSHOTS)
def test_a_snapshot_comes_back(snapshot: Any) -> None:
    """Types, keys, order, dtypes, shapes and values are the same, and the stream has been read to its end."""
    stream = io.BytesIO(encoded(snapshot))
    assert_same(read_snapshot(stream), snapshot)
    assert stream.read() == b""


def test_arrays_in_other_forms() -> None:
    """bfloat16 keeps its bits, views are written in C order, numpy's scalars stay scalars, an OrderedDict is a dict."""
    bits = np.arange(4, dtype="u2").view(BFLOAT16)
    matrix = np.arange(12.0).reshape(3, 4)
    snapshot = OrderedDict(bits=bits, turned=matrix.T, part=matrix[::2, 1:3], one=np.float32(3), bytes=bytearray(b"ab"))
    found = read_snapshot(io.BytesIO(encoded(snapshot)))
    assert type(found) is dict
    assert found["bits"].tobytes() == bits.tobytes()
    assert (type(found["one"]), found["bytes"]) == (np.float32, b"ab")
    np.testing.assert_array_equal(found["turned"], matrix.T)
    np.testing.assert_array_equal(found["part"], matrix[::2, 1:3])
    found["turned"][:] = 0  # arrays can be changed


@pytest.mark.parametrize(
    ("snapshot", "where"),
    [
        ({"model": {"layers": [1, {2, 3}]}}, r"the snapshot\['model'\]\['layers'\]\[1\]: set cannot be saved"),
        ({"a": np.array([None])}, r"the snapshot\['a'\]: .*Python objects"),
        (np.array(["text"]), "the snapshot: an array of <U4 cannot be saved"),
        ({(1, 2): 3}, "the snapshot: a key of type tuple cannot be saved"),
        ([10**5000], "the snapshot contains a number"),
        ([Path("x")], r"the snapshot\[0\]: PosixPath cannot be saved"),
    ],
)
def test_other_values_are_refused(snapshot: Any, where: str) -> None:
    """Nothing is pickled: an error names the place, and nothing is written."""
    stream = io.BytesIO()
    with pytest.raises(UsageError, match=where):
        write_snapshot(stream, snapshot)
    assert stream.getvalue() == b""


def test_a_snapshot_in_itself_is_refused() -> None:
    """A list that contains itself is an error of ours."""
    snapshot: list[Any] = []
    snapshot.append(snapshot)
    with pytest.raises(UsageError, match="contains itself"):
        encoded(snapshot)


def with_header(header: Any, data: bytes = b"") -> bytes:
    """Return the bytes of a snapshot with this header."""
    text = json.dumps(header).encode()
    return MAGIC + len(text).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04}.",  # a pickle
        MAGIC,
        MAGIC + b"\xff" * 8,
        MAGIC + (5).to_bytes(8, "little") + b"[1,2]",
        with_header({}),
        with_header({"arrays": [], "value": {"array": 0}}),
        with_header({"arrays": [], "value": {"array": -1, "b": 2}}),
        with_header({"arrays": [["u1", [1]]], "value": {"class": 0}}, b"x"),
        with_header({"arrays": [["O", [1]]], "value": None}, b"\0" * 8),
        with_header({"arrays": [["<f4", [-1]]], "value": None}),
        with_header({"arrays": [["<f4", [2]]], "value": None}, b"\0" * 7),
        with_header({"arrays": [["<f4", [1 << 50]]], "value": None}),
        with_header({"arrays": [["no dtype", [1]]], "value": None}),
        with_header({"arrays": [["<u01,", [1]]], "value": None}),
        MAGIC + (200_000).to_bytes(8, "little") + b"[" * 200_000,
    ],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    """Whatever a file contains, the result is an error of ours, before memory is taken for what it claims."""
    with pytest.raises(EdlCkptError):
        read_snapshot(io.BytesIO(data))


@given(st.data())
def test_damaged_bytes_are_values_or_an_error(data: st.DataObject) -> None:
    """A changed byte anywhere gives other values, or an error of ours, and nothing else."""
    whole = bytearray(encoded({"a": np.arange(3), "b": [1, 2.5, "x", (None, b"y")]}))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(EdlCkptError):
        read_snapshot(io.BytesIO(bytes(whole)))
