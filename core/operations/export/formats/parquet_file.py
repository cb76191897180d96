"""A Parquet file of the rows of one table, written with pyarrow in row groups, flushed and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import IO, Any, ClassVar, Final, Self

import numpy as np
import numpy.typing as npt
import xxhash

from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.operations.export.interface import ExportContent, TableRows
from edl_ckpt.core.operations.export.output.places import flush_file, reads_back_differently
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import begin_flush

_OPTIONS: Final[Mapping[str, Any]] = {"use_dictionary": ["table"], "write_statistics": ["id"]}
"""Those of pyarrow's ParquetWriter."""
_FLUSH_BYTES: Final = 64 << 20
_CHECK_BYTES: Final = 1 << 20


def table_file(content: ExportContent, table: TableRows | None, path: str, *, checked: bool = False) -> TableFile:
    """Write the rows of a table to a new file, and return it; None is the table of a version that has none."""
    file = TableFile(path, _schema(content, table), checked=checked)
    file.write(() if table is None else table.each(partial(batch_of, file.schema.remove_metadata(), table.name)))
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


def batch_of(schema: Any, table: str, ids: npt.NDArray[np.int64], vectors: npt.NDArray[np.generic]) -> Any:
    """Return rows of a table as pyarrow's Table with a schema; several threads may do this."""
    arrow, dim = library("pyarrow", "arrow"), vectors.shape[1]
    kind = schema.field("vector").type
    flat = arrow.array(np.ascontiguousarray(vectors).reshape(-1), kind.value_type)
    if hasattr(kind, "list_size"):
        return arrow.Table.from_arrays([ids, arrow.FixedSizeListArray.from_arrays(flat, dim)], schema=schema)
    ends = arrow.array(np.arange(len(ids) + 1, dtype=np.int32) * dim)
    title = arrow.DictionaryArray.from_arrays(np.zeros(len(ids), np.int32), [table])
    columns = [ids, arrow.ListArray.from_arrays(ends, flat), title]
    return arrow.Table.from_arrays(columns[: len(schema.names)], schema=schema)


class TableFile:
    """A new Parquet file: `write` takes batches of rows, each a row group; then `finish` it.

    One that is `checked` is read back.
    """

    def __init__(self, path: str, schema: Any, *, checked: bool = False) -> None:
        self.path = path
        self.schema = schema
        self._output = _Output(path, checked=checked)
        self._writer: Any = None

    def write(self, batches: Iterable[Any]) -> None:
        """Write batches, pyarrow's Tables, in this order."""
        with self._output:
            sink = library("pyarrow", "arrow").PythonFile(self._output, "w")
            self._writer = library("pyarrow.parquet", "arrow").ParquetWriter(sink, self.schema, **_OPTIONS)
            for batch in batches:
                self._writer.write_table(batch)
                self._output.start_flush()

    def finish(self, notes: Mapping[str, str]) -> None:
        """Write the footer, with these notes, and flush the file."""
        with self._output:
            self._writer.add_key_value_metadata(dict(notes))
            self._writer.close()
            self._output.finish()


class _Output:
    """The file that pyarrow writes to: open only while somebody writes, since an export may have many tables.

    pyarrow ends a file that was not finished when it forgets the writer. What it writes then is thrown away.
    """

    closed: ClassVar = False

    def __init__(self, path: str, *, checked: bool) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._size = self._flushed = 0
        self._digest = xxhash.xxh3_128() if checked else None

    def __enter__(self) -> Self:
        with storage_errors(self._path):
            self._file = open(self._path, "ab" if self._size else "xb")
        return self

    def __exit__(self, *_: object) -> None:
        file, self._file = self._opened, None
        with storage_errors(self._path):
            file.close()

    @property
    def _opened(self) -> IO[bytes]:
        """Return the open file."""
        if self._file is None:
            raise ValueError(f"{self._path} is not open")
        return self._file

    def write(self, data: Any) -> int:
        """Write bytes; pyarrow calls this."""
        if self._file is not None:
            with storage_errors(self._path):
                self._file.write(data)
            self._size += len(data)
            if self._digest is not None:
                self._digest.update(data)
        return len(data)

    def tell(self) -> int:
        """Return the number of bytes so far; pyarrow calls this."""
        return self._size

    def flush(self) -> None:
        """Do nothing; pyarrow calls this."""

    def start_flush(self) -> None:
        """Let the system begin to write what the file has, where that is much."""
        if self._size - self._flushed >= _FLUSH_BYTES:
            with storage_errors(self._path):
                self._opened.flush()
                begin_flush(self._opened.fileno(), self._flushed, self._size - self._flushed)
            self._flushed = self._size

    def finish(self) -> None:
        """Flush the file to the disk, and read it back; EdlCkptError where it has not what was written."""
        with storage_errors(self._path):
            flush_file(self._opened)
            if self._digest is None:
                return
            back = xxhash.xxh3_128()
            with open(self._path, "rb") as file:
                while data := file.read(_CHECK_BYTES):
                    back.update(data)
        if back.digest() != self._digest.digest():
            raise reads_back_differently("the table", self._path)
