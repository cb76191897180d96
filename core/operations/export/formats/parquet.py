"""Parquet, written with pyarrow, an extra that never has a whole table in memory.

Several threads encode the row groups of a file, which pyarrow's writer of a file cannot: it encodes each row group as a
file of its own, in memory. Their bytes follow each other in the output, and their footers become one, in which every
offset grows by as much as its row group was moved. So the file is the one that pyarrow alone would write, byte for
byte. A footer is a Thrift structure in the compact protocol, of which nothing has to be known but the numbers of a few
fields (parquet.thrift, at github.com/apache/parquet-format).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import IO, Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import xxhash

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.operations.export.cluster.run import PartFile, PartsFormat, Span, numbered, sizes_of
from edl_ckpt.core.operations.export.formats.arrays import (
    METADATA_FILE,
    OF_NUMPY,
    file_names,
    metadata_document,
    write_json,
    write_safetensors,
)
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, TableRows, Tensor
from edl_ckpt.core.operations.export.output.places import FLUSHERS, flush_file, reads_back_differently
from edl_ckpt.core.operations.export.output.target import DENSE_FILE, ExportTarget, NewFile
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import begin_flush
from edl_ckpt.core.storage.location import Location

PARQUET: Final = ".parquet"
"""The ending of a Parquet file."""
PARTS_FILE: Final = f"_{METADATA_FILE}"
"""What a cluster says of a directory of Parquet files."""


def _write_part(content: ExportContent, path: str, new_file: NewFile) -> None:
    """Write one of the files of a cluster: rows of a table, or the dense variables."""
    if not content.tables and content.tensors:
        write_dense(content, path, content.tensors, new_file)
        return
    table = next(iter(content.tables), None)
    file = row_group_file(content, table, path, checked=True)
    file.finish(description(content, content.metadata, table))


class Parquet(PartsFormat):
    """One table is one file, columns `id` and `vector`. Several are a directory with a file for each.

    A reader may take the directory for one dataset, so its files have one schema: a `vector` is a list of any length
    there, and a third column, `table`, names the table. For the same reason the directory has nothing else in it. Dense
    variables are in a directory beside the output, and the footer of each file says how many there are.
    """

    traits: ClassVar = FormatTraits(
        "parquet", endings=(PARQUET,), lacked_dtypes=frozenset({"bfloat16"}), other_dtypes=OF_NUMPY
    )

    def directories(self, checkpoint: Checkpoint) -> tuple[bool, Location | None]:
        """Return a directory for several tables, and beside it that of the dense variables, if there are any.

        A version without any table is a file without rows.
        """
        chosen, goal = self.request.selection, self.request.goal
        several = len(chosen.choose_tables(checkpoint.table_names, checkpoint.slots)) > 1
        dense = chosen.written_variables(checkpoint)
        beside = goal.with_url(dense_directory(goal.url)) if dense else None
        return several or self.request.cluster is not None, beside

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return the files of all tables, and that of the dense variables; only the values tell their sizes."""
        dense = [os.path.join(beside, DENSE_FILE)] if beside else []
        return dict.fromkeys([*self._files(content, path).values(), *dense])

    index: ClassVar = PARTS_FILE
    write_part = staticmethod(_write_part)

    def part_files(
        self, content: ExportContent, spans: Mapping[str, Sequence[Span]], path: str, beside: str, size_bytes: int
    ) -> list[PartFile]:
        """Return the files of each table, and that of the dense variables."""
        del size_bytes
        names, in_tables = table_file_names(spans), sizes_of(content)
        files = [
            PartFile(os.path.join(path, f"{names[table]}-{numbered(span)}{PARQUET}"), (), (span,))
            for table, own in spans.items()
            for span in own
        ]
        files = files or [PartFile(os.path.join(path, f"none{PARQUET}"))]
        dense = tuple(name for name, is_table in in_tables if not is_table)
        return [*files, PartFile(os.path.join(beside, DENSE_FILE), dense)] if dense else files

    def end_parts(
        self, content: ExportContent, files: Sequence[PartFile], path: str, metadata: Mapping[str, str]
    ) -> None:
        """Write the notes for importers, under a name that readers of a directory pass over."""
        in_it = sum(file.path.startswith(os.path.join(path, "")) for file in files)
        whole = {"tables": content.counts.tables, "variables": content.counts.variables}
        write_json(
            os.path.join(path, PARTS_FILE), {**metadata_document(content, metadata), "whole": whole, "files": in_it}
        )

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the files; UnsupportedError for a table as a matrix, which has no ids."""
        if content.tables and not content.notes:
            raise UnsupportedError("a Parquet file contains ids and vectors; --dense-rows is for other formats")
        files = self._files(content, target.path)
        outputs = {table: row_group_file(content, table, path) for table, path in files.items()}
        if target.beside:
            used = {name for note in content.notes.values() for name in (note.ids, note.vectors)}
            dense = [tensor for tensor in content.tensors if tensor.name not in used]
            write_dense(content, os.path.join(target.beside, DENSE_FILE), dense, target.new_file)
        metadata = content.finish()

        def finish(written: tuple[TableRows | None, RowGroupFile]) -> None:
            table, output = written
            output.finish(description(content, metadata, table))

        run_all(finish, outputs.items(), FLUSHERS)

    def _files(self, content: ExportContent, path: str) -> dict[TableRows | None, str]:
        """Return the path of the file for each table; None is the table of a version that has none."""
        if len(content.tables) < 2:
            return {next(iter(content.tables), None): path}
        names = table_file_names(table.name for table in content.tables)
        return {table: os.path.join(path, f"{names[table.name]}{PARQUET}") for table in content.tables}


def table_file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the names of files for tables, without an ending; readers of a directory pass over those with a `_`."""
    files = file_names(names)
    return {name: f"%5F{file[1:]}" if file.startswith("_") else file for name, file in files.items()}


def write_dense(content: ExportContent, path: str, dense: Sequence[Tensor], new_file: NewFile) -> None:
    """Write the dense variables of a Parquet export."""
    write_safetensors(content, dense, {"tables": "{}"}, path, new_file)


def dense_directory(url: str) -> str:
    """Return the path or URL of the directory for the dense variables of a Parquet export.

    >>> dense_directory("s3://bucket/m.parquet"), dense_directory("tables/")
    ('s3://bucket/m.dense', 'tables.dense')
    """
    stem = url.rstrip("/")
    return (stem[: -len(PARQUET)] if stem.lower().endswith(PARQUET) else stem) + ".dense"


def row_group_file(
    content: ExportContent, table: TableRows | None, path: str, *, checked: bool = False
) -> RowGroupFile:
    """Write the rows of a table to a new file, and return it; None is the table of a version that has none."""
    file = RowGroupFile(path, _schema(content, table), checked=checked)
    file.write(() if table is None else table.each(partial(encode, file.schema, table.name)))
    return file


def _schema(content: ExportContent, table: TableRows | None) -> Any:
    """Return the schema of the file of a table."""
    arrow = library("pyarrow", "arrow")
    columns = [("id", arrow.int64())]
    if table is None:
        return arrow.schema(columns)
    dtypes = {tensor.name: tensor.dtype.name for tensor in content.tensors}
    values = arrow.from_numpy_dtype(np.dtype(dtypes[content.notes[table.name].vectors]))
    if content.counts.tables == 1:
        fixed = table.dim or -1  # Arrow has no list of the fixed size 0
        columns += [("vector", arrow.list_(values, fixed))]
    else:
        columns += [("vector", arrow.list_(values)), ("table", arrow.dictionary(arrow.int32(), arrow.string()))]
    return arrow.schema(columns, metadata={"table": table.name})


def description(content: ExportContent, metadata: Mapping[str, str], table: TableRows | None) -> dict[str, str]:
    """Return what an importer must know of a table, and of the whole export, for the footer of its Parquet file."""
    note = {} if table is None else {table.name: asdict(content.notes[table.name])}
    whole = {"tables": content.counts.tables, "variables": content.counts.variables}
    return {"edl-ckpt": json.dumps({**metadata, "tables": note, "whole": whole})}


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
