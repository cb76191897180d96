"""A Parquet file whose row groups several threads encode, which pyarrow's writer of a file cannot.

pyarrow encodes each row group as a file of its own, in memory. Their bytes follow each other in the output, and their
footers become one, in which every offset grows by as much as its row group was moved. So the file is the one that
pyarrow alone would write, byte for byte. A footer is a Thrift structure in the compact protocol, of which nothing has
to be known but the numbers of a few fields (parquet.thrift, at github.com/apache/parquet-format).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from edl_ckpt.core.libraries import library
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import begin_flush

_MAGIC: Final = b"PAR1"
_FLUSH_BYTES: Final = 64 << 20
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
    """Rows as pyarrow writes them behind the magic number of a file, and the footer of that file."""

    rows: int
    data: memoryview
    footer: memoryview


class RowGroupFile:
    """A new Parquet file: `write` takes its row groups, then `finish` makes it one that can be read.

    `options` are those of pyarrow's ParquetWriter.
    """

    def __init__(self, path: str, schema: Any, **options: Any) -> None:
        self.path = path
        self._arrow, self._parquet = library("pyarrow", "arrow"), library("pyarrow.parquet", "arrow")
        self._schema = schema
        self._bare = schema.remove_metadata()
        self._options = options
        self._rows = 0
        self._groups: list[bytes] = []

    def encoded(self, rows: Any) -> RowGroup:
        """Return a pyarrow table as a row group; several threads may do this."""
        # Snappy makes bytes a sixth more at most. Memory that is not written to takes none.
        room = np.empty(rows.nbytes * 3 // 2 + _LEAST_ROOM, np.uint8)
        sink = self._arrow.FixedSizeBufferWriter(self._arrow.py_buffer(room))
        with self._parquet.ParquetWriter(sink, self._bare, **self._options) as writer:
            writer.write_table(rows.replace_schema_metadata())
        return RowGroup(rows.num_rows, *_data_and_footer(room.data[: sink.tell()]))

    def write(self, groups: Iterable[RowGroup]) -> None:
        """Write row groups, in this order."""
        with storage_errors(self.path), open(self.path, "xb") as file:
            file.write(_MAGIC)
            end, flushed = len(_MAGIC), 0
            for group in groups:
                self._groups.append(moved_group(group.footer, end - len(_MAGIC), len(self._groups)))
                self._rows += group.rows
                file.write(group.data)
                end += len(group.data)
                if end - flushed >= _FLUSH_BYTES:
                    file.flush()
                    begin_flush(file.fileno(), flushed, end - flushed)
                    flushed = end

    def finish(self, notes: Mapping[str, str]) -> None:
        """Write the footer, with these notes, and flush the file."""
        sink = self._arrow.BufferOutputStream()
        with self._parquet.ParquetWriter(sink, self._schema, **self._options) as writer:
            writer.add_key_value_metadata(dict(notes))
        _, empty = _data_and_footer(memoryview(sink.getvalue()).cast("B"))
        footer = joined_footer(empty, self._rows, self._groups)
        with storage_errors(self.path), open(self.path, "ab") as file:
            file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)
            file.flush()
            os.fsync(file.fileno())


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
    size = bytes([count << 4 | _STRUCT]) if count < 15 else bytes([0xF0 | _STRUCT]) + _varint(count)
    found[_GROUPS] = b"".join([head, size, *groups])
    return b"".join(found.values()) + b"\0"


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


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
            return _varint(number << 1 ^ number >> 63)
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
