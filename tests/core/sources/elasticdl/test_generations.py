"""Bytes that are not a shard, and parts of one that cannot be used: each is named in plain words, with its place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from builders import message
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.tables import ShardIndex, TableInfo
from edl_ckpt.core.model.versions import ShardFile
from edl_ckpt.core.sources.elasticdl.generations import draft_shard
from edl_ckpt.core.sources.elasticdl.indexing import index_shards
from edl_ckpt.core.sources.elasticdl.shard_layout import (
    CountedTable,
    PlacedVariable,
    lay_out_shards,
)
from edl_ckpt.core.sources.elasticdl.wire import SMALL_BYTES, Cursor


class BytesReader:
    """A file that is a byte string."""

    path = "shard"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size_bytes = len(data)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the file."""
        return self.data[offset : offset + size]


def index(*shards: bytes, number: int = 7) -> list[ShardIndex]:
    """Index the shards of one version."""
    drafts = []
    for ps_id, data in enumerate(shards):
        reader: Any = BytesReader(data)
        drafts.append(draft_shard(ShardFile(ps_id, len(shards), "shard", len(data), 0.0), Cursor(reader)))
    return index_shards(drafts, number)


def dim(size: int) -> bytes:
    """One size in a TensorShapeProto."""
    return message(2, b"\x08" + varint(size))


def tensor(*parts: bytes) -> bytes:
    """A v4 shard with one dense variable "x"."""
    return message(3, message(1, b"x"), message(2, *parts))


def table(*parts: bytes) -> bytes:
    """A v4 shard with one table "t", without its info."""
    return message(4, message(1, b"t"), message(2, *parts))


F32 = DTYPES["float32"]
INFO = message(2, message(1, b"t"), b"\x10\x02")
SHAPE = message(2, dim(2))
VALUES = message(4, bytes(8))

CORRUPT = {
    "empty": (b"", 0, "empty-file", "the file is empty (0 bytes)"),
    "cut varint": (b"\x80", 0, "truncated", "a varint is cut short"),
    "entry without a name": (message(3, message(2, SHAPE)), 0, "malformed", "an entry has no name"),
    "entry with another field": (
        INFO + message(3, message(3, b"x"), message(2, SHAPE)),
        9,
        "malformed",
        "an entry has field 3, expected 1 (its name) and 2 (its value): its name may be lost",
    ),
    "two names": (message(3, message(1, b"x"), message(1, b"y")), 5, "malformed", "'x' has two names"),
    "old tensor without a name": (
        message(2, message(2, b"\x02"), message(3, bytes(8)), b"\x28\x06"),
        0,
        "malformed",
        "a tensor has no name",
    ),
    "long varint": (b"\x08" + b"\x80" * 12, 1, "malformed", "a varint is longer than 10 bytes"),
    "wide varint": (b"\x08" + b"\xff" * 9 + b"\x7f", 1, "malformed", "a varint has more than 64 bits"),
    "field number": (b"\x00\x00", 0, "malformed", "field number 0 is out of range"),
    "group": (b"\x0b\x00", 0, "malformed", "field 1 is a group, which ElasticDL never wrote"),
    "wire type": (b"\x0e\x00", 0, "malformed", "field 1 has wire type 6, which ElasticDL never wrote"),
    "past the file": (b"\x1a\x05ab", 0, "truncated", "ends after 4 of at least 7 bytes"),
    "past a message": (message(3, b"\x0a\x01"), 2, "truncated", "ends after 4 of at least 5 bytes"),
    "inside of the file": (message(3, b"\x0a\x02a") + b"\x08\x01", 2, "malformed", "field 1 needs 2 bytes, got 1"),
    "version as bytes": (b"\x0a\x00", 0, "malformed", "version (field 1) has wire type 2, expected 0"),
    "model as varint": (b"\x18\x01", 0, "malformed", "a part of the model (field 3) has wire type 0, expected 2"),
    "generations": (INFO + message(5, b""), len(INFO), "malformed", "the fields belong to different wire generations"),
    "name": (message(3, message(1, b"\xff"), message(2)), 4, "malformed", "a name is not UTF-8"),
    "long name": (
        message(3, message(1, bytes(SMALL_BYTES + 1)), message(2)),
        8,
        "malformed",
        f"a name has {SMALL_BYTES + 1} bytes, the limit is {SMALL_BYTES}",
    ),
    "two values": (message(3, message(1, b"x"), message(2), message(2)), 7, "malformed", "'x' has two values"),
    "info": (message(2, message(1, b"\xff"), b"\x10\x01"), 0, "malformed", "protobuf cannot parse a table info"),
    "dim of an info": (
        message(2, message(1, b"t"), b"\x10" + varint(-1)),
        0,
        "malformed",
        "a table info has dim -1, expected 0 to 2147483647",
    ),
    "field twice": (tensor(SHAPE, SHAPE), 13, "malformed", "tensor_shape (field 2) occurs twice"),
    "shape": (tensor(message(2, message(2, b"\x08"))), 7, "malformed", "protobuf cannot parse a shape"),
    "negative size": (tensor(message(2, dim(2), dim(-1))), 7, "malformed", "a shape has a negative size: [2, -1]"),
    "dimensions": (
        tensor(message(2, *[dim(1)] * 33)),
        9,
        "malformed",
        "a shape has 33 dimensions, the limit is 32",
    ),
    "two tensors": (table(message(1), message(1)), 9, "malformed", "table 't' has two tensors"),
    "id as fixed": (table(b"\x15abcd"), 7, "malformed", "an id (field 2) has wire type 5, expected 0"),
}


@pytest.mark.parametrize(("data", "offset", "code", "text"), CORRUPT.values(), ids=CORRUPT)
def test_corrupt_shard_is_named(data: bytes, offset: int, code: str, text: str) -> None:
    """Bytes that are not a shard are an error: what is wrong, where, and the code of the finding."""
    with pytest.raises(CorruptError) as caught:
        index(data)
    error = caught.value
    assert (error.message, error.offset, error.code, error.path) == (text, offset, code, "shard")


def test_generations_of_shards_differ() -> None:
    """A shard of another generation than the others is refused by both names."""
    old = message(5, message(1, b"t"), message(2))
    with pytest.raises(CorruptError) as caught:
        index(INFO, INFO, old)
    assert caught.value.message == "this shard has wire generation v3, the others have v4"


PROBLEMS = {
    "variable twice": (
        tensor(b"\x08\x01", SHAPE, VALUES) * 2,
        "duplicate-variable x",
        "this shard has the variable twice",
    ),
    "table twice": (
        table(message(1, b"\x08\x01", message(2, dim(0), dim(2)))) * 2,
        "duplicate-variable t",
        "this shard has the table twice",
    ),
    "variable without a tensor": (
        message(3, message(1, b"x")),
        "malformed x",
        "the entry has no tensor: ElasticDL's restore raises an exception",
    ),
    "table without a value": (
        INFO + message(4, message(1, b"t")),
        "malformed t",
        "the entry has no tensor: ElasticDL's restore raises an exception",
    ),
    "table without a tensor": (
        INFO + table(),
        "malformed t",
        "the entry has no tensor: ElasticDL's restore raises an exception",
    ),
    "table with an empty tensor": (
        INFO + table(message(1)),
        "unsupported-dtype t",
        "dtype number 0 is not supported in a checkpoint",
    ),
    "table without rows or dtype": (
        INFO + table(message(1, message(2, dim(0), dim(2)))),
        "unsupported-dtype t",
        "dtype number 0 is not supported in a checkpoint",
    ),
    "table without a shape": (
        INFO + table(message(1, b"\x08\x01")),
        "content-size-mismatch t",
        "float32 [] needs 4 bytes, the values have 0",
    ),
    "outside": (
        tensor(b"\x08\x01", SHAPE, message(5, bytes(8))),
        "values-outside-content x",
        "the values are outside of tensor_content, where ElasticDL's readers do not look",
    ),
    "dtype": (
        tensor(b"\x08\x63", SHAPE, VALUES),
        "unsupported-dtype x",
        "dtype number 99 is not supported in a checkpoint",
    ),
    "size": (
        tensor(b"\x08\x01", SHAPE, message(4, bytes(7))),
        "content-size-mismatch x",
        "float32 [2] needs 8 bytes, the values have 7",
    ),
    "one byte": (
        tensor(b"\x08\x06", message(2, dim(1))),
        "content-size-mismatch x",
        "int8 [1] needs 1 byte, the values have 0",
    ),
    "huge": (
        tensor(b"\x08\x01", message(2, dim(2**40), dim(2**40)), VALUES),
        "content-size-mismatch x",
        f"float32 [{2**40}, {2**40}] needs more than 2**64 bytes, the values have 8",
    ),
    "vectors": (
        INFO + table(message(1, b"\x08\x01", SHAPE, VALUES), message(2, b"\x01\x02")),
        "content-size-mismatch t",
        "the vectors have shape [2], expected [rows, dim]",
    ),
    "form of an empty table": (
        INFO + table(message(1, b"\x08\x02", message(2, dim(0)))),
        "empty-table-form t",
        "the empty table has shape [0], not [0, dim]: ElasticDL's Go parameter server panics on it",
    ),
    "ambiguous": (
        message(2, message(1, b"x"), message(2, b"\x02"), message(3, bytes(4)), b"\x28\x05"),
        "ambiguous-dtype x",
        "dtype number 5 means float16 until 2020-02-14 and int16 since then; it is read as float16",
    ),
}


@pytest.mark.parametrize(("data", "subject", "text"), PROBLEMS.values(), ids=PROBLEMS)
def test_problem_is_named(data: bytes, subject: str, text: str) -> None:
    """A part that cannot be used does not stop the indexing: it is a problem of the shard, in a sentence."""
    (shard,) = index(data)
    assert (subject, text) in [(f"{p.code} {p.subject}", p.message) for p in shard.problems]


DENSE = tensor(b"\x08\x01", SHAPE, VALUES)
VERSION = b"\x08\x07"

EMPTY_FILES: dict[str, tuple[tuple[bytes, ...], int, bool]] = {
    "an empty model": ((b"", b""), 0, True),
    "a server without a variable": ((DENSE, b"", b""), 0, True),
    "another version in the name": ((DENSE, b""), 7, False),
    "another version in a shard": ((VERSION + DENSE, b""), 0, False),
    "an info in another shard": ((INFO, b""), 0, False),
    "a table in another shard": ((table(message(1, b"\x08\x01", message(2, dim(0), dim(2)))), b""), 0, False),
    "a table of an old generation": (
        (b"", message(2, message(1, b"x"), message(2, b"\x01"), message(4, b"\x05"), b"\x28\x06")),
        0,
        False,
    ),
    "no shard with bytes, another version": ((b"",), 1, False),
}


@pytest.mark.parametrize(("shards", "number", "legal"), EMPTY_FILES.values(), ids=EMPTY_FILES)
def test_zero_bytes(shards: tuple[bytes, ...], number: int, legal: bool) -> None:
    """Zero bytes are damage unless they are what that version must be: version 0 without tables."""
    if legal:
        assert [len(shard.variables) for shard in index(*shards, number=number)] == [int(bool(s)) for s in shards]
    else:
        with pytest.raises(CorruptError) as caught:
            index(*shards, number=number)
        error = caught.value
        assert (error.code, error.offset, error.message) == ("empty-file", 0, "the file is empty (0 bytes)")


def test_empty_packed_ids_are_no_ids() -> None:
    """A v1 tensor with an empty list of ids is a variable, as protobuf reads it: an empty field is no field."""
    data = message(2, message(1, b"x"), message(2, b"\x01"), message(3, bytes(4)), message(4), b"\x28\x06")
    (shard,) = index(data)
    assert [v.name for v in shard.variables] == ["x"]
    assert shard.tables == ()


def _outcome(data: bytes) -> tuple[object, ...]:
    """Return all that the index of a shard says, or the error."""
    try:
        (found,) = index(data)
    except CorruptError as error:
        return str(error), error.offset, error.code
    return found, found.edges


def test_kernel_reads_as_python_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever byte of a shard changes, the kernel's walk gives the index, or the error, that Python's walk gives."""
    shapes = [(), (0,), (2, 3), (1, 1, 1, 2), (300,)]
    variables = [PlacedVariable(f"v{i}", F32, shape, 4 * math.prod(shape)) for i, shape in enumerate(shapes)]
    tables = [
        CountedTable(TableInfo("t", 2, "uniform"), F32, np.array([3]), np.array([4])),
        CountedTable(TableInfo("none", 3, ""), None, np.array([0]), np.array([0])),
    ]
    layout = lay_out_shards(7, variables, tables, 1)
    data = bytearray(int(layout.size_bytes[0]))
    for offset, some in layout.literals(0):
        data[offset : offset + len(some)] = some
    data[int(layout.ids_at("t")[0]) :][:4] = b"\x01\x02\x83\x01"
    heads = [offset + k for offset, some in layout.literals(0) for k in range(len(some))]
    random = np.random.default_rng(3)
    shards = [bytes(data), *(bytes(data[:end]) for end in random.integers(1, len(data), 40).tolist())]
    for at in heads:
        mutant = bytearray(data)
        mutant[at] = mutant[at] ^ 1 << int(random.integers(8)) if random.random() < 0.7 else int(random.integers(256))
        shards.append(bytes(mutant))
    by_kernel = [_outcome(shard) for shard in shards]
    assert sorted(v.shape for v in index(shards[0])[0].variables) == sorted(shapes)
    monkeypatch.setattr(bulk, "kernel", None)
    assert by_kernel == [_outcome(shard) for shard in shards]


def test_the_kernel_reads_what_python_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte of a shard, each in turn and in several ways, is another one: with and without the kernel alike."""
    if bulk.kernel is None:
        pytest.skip("the compiled kernel was not built here: no C compiler at installation")
    tables = [CountedTable(TableInfo(f"t{k}", 2, "uniform"), DTYPES["float32"], *np.full((2, 1), k)) for k in range(2)]
    variables = [PlacedVariable("w", DTYPES["float64"], (1, 2), 16), PlacedVariable("", DTYPES["int8"], (), 1)]
    layout = lay_out_shards(7, variables, tables, 1)
    whole = bytearray(int(layout.size_bytes[0]))
    for at, data in layout.literals(0):
        whole[at : at + len(data)] = data
    found = {"index": 0, "error": 0}
    for at in range(len(whole)):
        for value in {0, 1, 0x7F, 0x80, 0xFF, whole[at] ^ 1, whole[at] + 1 & 0xFF, whole[at] ^ 8}:
            changed = bytes([*whole[:at], value, *whole[at + 1 :]])
            results: list[tuple[Any, ...]] = []
            for kernel in (bulk.kernel, None):
                with monkeypatch.context() as patch:
                    patch.setattr(bulk, "kernel", kernel)
                    try:
                        (shard,) = index(changed)
                        results.append(("index", shard, shard.edges, shard.infos and shard.infos[0].offset))
                    except CorruptError as error:
                        results.append(("error", error.code, error.message, error.offset))
            assert results[0] == results[1], (at, value)
            found[results[0][0]] += 1
    assert min(found.values()) > 100
