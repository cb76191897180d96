"""A Parquet file whose row groups several threads encode, which pyarrow's writer of a file cannot.

pyarrow encodes each row group as a file of its own, in memory. Their bytes follow each other in the output, and their
footers become one, in which every offset grows by as much as its row group was moved. So the file is the one that
pyarrow alone would write, byte for byte. A footer is a Thrift structure in the compact protocol, of which nothing has
to be known but the numbers of a few fields (parquet.thrift, at github.com/apache/parquet-format).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.errors import UnsupportedError
from edl_ckpt.core.libraries import library
from edl_ckpt.core.operations.export.interface import EncodedPart, EncodedRows, Spread, sends
from edl_ckpt.core.operations.export.places import OutputFile, SentFile
from edl_ckpt.core.operations.export.target import ExportTarget
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import begin_flush

_MAGIC: Final = b"PAR1"
_OPTIONS: Final[Mapping[str, Any]] = {"use_dictionary": ["table"], "write_statistics": ["id"]}
"""Those of pyarrow's ParquetWriter."""
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
class RowGroups:
    """The `Encoder` of Parquet: a batch is a row group, and its note the footer of a file that has only this one.

    `schemas` are those of the files of all tables, by their names.
    """

    schemas: Mapping[str, Any]
    arrow_version: str

    @classmethod
    def of(cls, schemas: Mapping[str, Any]) -> Self:
        """Return the encoder that the pyarrow of this process is."""
        return cls(schemas, library("pyarrow", "arrow").__version__)

    def check(self) -> None:
        """Raise UnsupportedError where pyarrow is another one, or missing: it would encode other bytes."""
        found = library("pyarrow", "arrow").__version__
        if found != self.arrow_version:
            raise UnsupportedError(
                f"a worker has pyarrow {found}, and the command {self.arrow_version}",
                hint="install one version everywhere",
            )

    def encode(self, table: str, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.generic]) -> EncodedRows:
        """Return rows of a table as a row group; several threads may do this."""
        arrow, parquet = library("pyarrow", "arrow"), library("pyarrow.parquet", "arrow")
        rows = _rows(self.schemas[table].remove_metadata(), table, ids, vectors)
        # Snappy makes bytes a sixth more at most. Memory that is not written to takes none.
        room = np.empty(rows.nbytes * 3 // 2 + _LEAST_ROOM, np.uint8)
        sink = arrow.FixedSizeBufferWriter(arrow.py_buffer(room))
        with parquet.ParquetWriter(sink, rows.schema, **_OPTIONS) as writer:
            writer.write_table(rows)
        data, footer = _data_and_footer(room.data[: sink.tell()])
        return EncodedRows(len(ids), data, bytes(footer))


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


def spread_row_groups(
    spread: Spread, encoder: RowGroups, files: Mapping[str, RowGroupFile], target: ExportTarget
) -> None:
    """Let other processes write the row groups of all tables to their files."""
    if sends(spread):
        sent = {name: target.new_file(file.path, spread.most_bytes(name)) for name, file in files.items()}
        shared = {name: file for name, file in sent.items() if isinstance(file, SentFile)}
        for name, own in spread.send(encoder, shared, _MAGIC).items():
            files[name].sent(shared[name], own)
        return
    parts = spread.encode(encoder)
    spread.place({files[name].path: list(files[name].room_for(own)) for name, own in parts.items()})


class RowGroupFile:
    """A new Parquet file: `write` takes its row groups, or `room_for` makes room for them; then `finish` it."""

    def __init__(self, path: str, schema: Any) -> None:
        self.path = path
        self.schema = schema
        self._rows = 0
        self._groups: list[bytes] = []
        self._end = len(_MAGIC)
        self._sent: SentFile | None = None

    def room_for(self, parts: Iterable[EncodedPart]) -> Iterator[tuple[int, EncodedPart]]:
        """Make the file as large as row groups of these sizes; yield the offset of each part."""
        listed, at = list(parts), len(_MAGIC)
        self._note(listed)
        OutputFile(self.path, self._end).write(0, _MAGIC)
        for part in listed:
            yield at, part
            at += part.size_bytes

    def sent(self, file: SentFile, parts: Sequence[EncodedPart]) -> None:
        """Note row groups that others have sent to a file, all of them; the footer goes there too."""
        self._sent = file
        self._note(parts)

    def _note(self, parts: Iterable[EncodedPart]) -> None:
        for part in parts:
            for rows, size, footer in part.batches:
                self._add(rows, memoryview(footer), self._end)
                self._end += size

    def _add(self, rows: int, footer: memoryview, at: int) -> None:
        self._groups.append(moved_group(footer, at - len(_MAGIC), len(self._groups)))
        self._rows += rows

    def write(self, groups: Iterable[EncodedRows]) -> None:
        """Write row groups, in this order."""
        with storage_errors(self.path), open(self.path, "xb") as file:
            file.write(_MAGIC)
            end, flushed = len(_MAGIC), 0
            for group in groups:
                self._add(group.rows, memoryview(group.note), end)
                file.write(group.data)
                end += len(group.data)
                if end - flushed >= _FLUSH_BYTES:
                    file.flush()
                    begin_flush(file.fileno(), flushed, end - flushed)
                    flushed = end

    def finish(self, notes: Mapping[str, str]) -> None:
        """Write the footer, with these notes, and flush the file."""
        arrow, parquet = library("pyarrow", "arrow"), library("pyarrow.parquet", "arrow")
        sink = arrow.BufferOutputStream()
        with parquet.ParquetWriter(sink, self.schema, **_OPTIONS) as writer:
            writer.add_key_value_metadata(dict(notes))
        _, empty = _data_and_footer(memoryview(sink.getvalue()).cast("B"))
        footer = joined_footer(empty, self._rows, self._groups)
        end = footer + len(footer).to_bytes(4, "little") + _MAGIC
        if self._sent is not None:
            self._sent.write(self._end, end)
            return
        with storage_errors(self.path), open(self.path, "ab") as file:
            file.write(end)
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
