"""A Parquet file whose row groups several threads encode, which pyarrow's writer of a file cannot.

pyarrow encodes each row group as a file of its own, in memory. Their bytes follow each other in the output, and their
footers become one, in which every offset grows by as much as its row group was moved. So the file is the one that
pyarrow alone would write, byte for byte. A footer is a Thrift structure in the compact protocol, of which nothing has
to be known but the numbers of a few fields (parquet.thrift, at github.com/apache/parquet-format).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from edl_ckpt.core.base.arrays import library
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.operations.export.output.places import flush_file, reads_back_differently
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import begin_flush

_MAGIC: Final = b"PAR1"
_OPTIONS: Final[Mapping[str, Any]] = {"use_dictionary": ["table"], "write_statistics": ["id"]}
"""Those of pyarrow's ParquetWriter."""
_FLUSH_BYTES: Final = 64 << 20
_CHECK_BYTES: Final = 1 << 20
_LEAST_ROOM: Final = 1 << 20
"""Bytes for the heads of pages, and for a footer."""
_NUMBERS, _BYTES, _LISTS, _STRUCT = (4, 5, 6), 8, (9, 10), 12
"""Types of the compact protocol."""
_SIZES: Final = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of the values of other types; true and false are types by themselves."""
_ROWS, _GROUPS = 3, 4
"""Fields of FileMetaData: num_rows and row_groups."""

Edit = Callable[[int], int]
Edits = Mapping[int, "Edit | Edits"]
"""What becomes of the numbers in the fields of a structure, or in those of each structure in a list."""


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its bytes, and the footer of a file that has only this one."""

    rows: int
    data: memoryview
    footer: memoryview


def encode(schema: Any, table: str, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.generic]) -> RowGroup:
    """Return rows of a table as a row group of a file with a schema; several threads may do this."""
    arrow, parquet = library("pyarrow", "arrow"), library("pyarrow.parquet", "arrow")
    rows = _rows(schema.remove_metadata(), table, ids, vectors)
    # Snappy makes bytes a sixth more at most. Memory that is not written to takes none.
    room = np.empty(rows.nbytes * 3 // 2 + _LEAST_ROOM, np.uint8)
    sink = arrow.FixedSizeBufferWriter(arrow.py_buffer(room))
    with parquet.ParquetWriter(sink, rows.schema, **_OPTIONS) as writer:
        writer.write_table(rows)
    return RowGroup(len(ids), *_data_and_footer(room.data[: sink.tell()]))


def _rows(schema: Any, name: str, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.generic]) -> Any:
    """Return some rows of a table for its file."""
    arrow, dim = library("pyarrow", "arrow"), vectors.shape[1]
    kind = schema.field("vector").type
    flat = arrow.array(np.ascontiguousarray(vectors).reshape(-1), kind.value_type)
    if hasattr(kind, "list_size"):
        return arrow.Table.from_arrays([ids, arrow.FixedSizeListArray.from_arrays(flat, dim)], schema=schema)
    ends = arrow.array(np.arange(len(ids) + 1, dtype=np.int32) * dim)
    title = arrow.DictionaryArray.from_arrays(np.zeros(len(ids), np.int32), [name])
    columns = [ids, arrow.ListArray.from_arrays(ends, flat), title]
    return arrow.Table.from_arrays(columns[: len(schema.names)], schema=schema)


class RowGroupFile:
    """A new Parquet file: `write` takes its row groups, then `finish` it. One that is `checked` is read back."""

    def __init__(self, path: str, schema: Any, *, checked: bool = False) -> None:
        self.path = path
        self.schema = schema
        self._rows = 0
        self._groups: list[bytes] = []
        self._digest = xxhash.xxh3_128() if checked else None

    def write(self, groups: Iterable[RowGroup]) -> None:
        """Write row groups, in this order."""
        with storage_errors(self.path), open(self.path, "xb") as file:
            self._write(file, _MAGIC)
            end, flushed = len(_MAGIC), 0
            for group in groups:
                self._groups.append(moved_group(group.footer, end - len(_MAGIC), len(self._groups)))
                self._rows += group.rows
                self._write(file, group.data)
                end += len(group.data)
                if end - flushed >= _FLUSH_BYTES:
                    file.flush()
                    begin_flush(file.fileno(), flushed, end - flushed)
                    flushed = end

    def _write(self, file: IO[bytes], data: bytes | memoryview) -> None:
        file.write(data)
        if self._digest is not None:
            self._digest.update(data)

    def finish(self, notes: Mapping[str, str]) -> None:
        """Write the footer, with these notes, and flush the file."""
        arrow, parquet = library("pyarrow", "arrow"), library("pyarrow.parquet", "arrow")
        sink = arrow.BufferOutputStream()
        with parquet.ParquetWriter(sink, self.schema, **_OPTIONS) as writer:
            writer.add_key_value_metadata(dict(notes))
        _, empty = _data_and_footer(memoryview(sink.getvalue()).cast("B"))
        footer = joined_footer(empty, self._rows, self._groups)
        with storage_errors(self.path), open(self.path, "ab") as file:
            self._write(file, footer + len(footer).to_bytes(4, "little") + _MAGIC)
            flush_file(file)
        if self._digest is not None:
            self._check(self._digest.digest())

    def _check(self, digest: bytes) -> None:
        """Read the file back; EdlCkptError where it has not what was written."""
        back = xxhash.xxh3_128()
        with storage_errors(self.path), open(self.path, "rb") as file:
            while data := file.read(_CHECK_BYTES):
                back.update(data)
        if back.digest() != digest:
            raise reads_back_differently("the table", self.path)


def _data_and_footer(file: memoryview) -> tuple[memoryview, memoryview]:
    """Return what a Parquet file has between its magic number and the footer, and the footer."""
    end = len(file) - len(_MAGIC) - 4
    start = end - int.from_bytes(file[end : end + 4], "little")
    return file[len(_MAGIC) : start], file[start:end]


def moved_group(footer: memoryview, shift: int, ordinal: int) -> bytes:
    """Return the only RowGroup of a footer as that of a larger file: moved by some bytes, with another number."""

    def moved(offset: int) -> int:
        return offset + shift if offset else 0  # an offset of 0 is none

    pages: Edits = {9: moved, 10: moved, 11: moved}  # of data, index and dictionary, in ColumnMetaData
    columns: Edits = {2: moved, 3: pages}  # file_offset and meta_data of a ColumnChunk
    group: Edits = {1: columns, 5: moved, 7: lambda _: ordinal}  # columns, file_offset and ordinal
    found = _Walk(footer).fields({_GROUPS: group})[_GROUPS]
    return found[2:]  # behind the type of the field and the head of the list


def joined_footer(empty: memoryview, rows: int, groups: list[bytes]) -> bytes:
    """Return the footer of a file without rows as that of a file with row groups."""
    found = _Walk(empty).fields({_ROWS: lambda _: rows})
    head, count = found[_GROUPS][:1], len(groups)
    size = bytes([count << 4 | _STRUCT]) if count < 15 else bytes([0xF0 | _STRUCT]) + varint(count)
    found[_GROUPS] = b"".join([head, size, *groups])
    return b"".join(found.values()) + b"\0"


class _Walk:
    """A way through a structure of the compact protocol, which is copied with some of its numbers changed."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def fields(self, edits: Edits) -> dict[int, bytes]:
        """Return the fields of a structure by their numbers: the type with the distance to the field before, a value.

        The byte that ends a structure is passed over.
        """
        found: dict[int, bytes] = {}
        number = 0
        while True:
            start = self._at
            head = self._byte()
            if head == 0:
                return found
            number = number + (head >> 4) if head >> 4 else self._signed()
            own = bytes(self._data[start : self._at])
            found[number] = own + self._value(head & 0x0F, edits.get(number))

    def _value(self, kind: int, edit: Edit | Edits | None) -> bytes:
        start = self._at
        if kind in _NUMBERS:
            number = self._signed()
            number = edit(number) if callable(edit) else number
            return varint(number << 1 ^ number >> 63)
        if kind == _STRUCT:
            return b"".join(self.fields(edit if isinstance(edit, Mapping) else {}).values()) + b"\0"
        if kind in _LISTS:
            head = self._byte()
            count = self._number() if head >> 4 == 15 else head >> 4
            size = bytes(self._data[start : self._at])
            element = max(head & 0x0F, 3)  # true or false takes a byte here
            return size + b"".join([self._value(element, edit) for _ in range(count)])
        more = self._number() if kind == _BYTES else _SIZES[kind]
        self._at += more
        return bytes(self._data[start : self._at])

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _signed(self) -> int:
        number = self._number()
        return number >> 1 ^ -(number & 1)
