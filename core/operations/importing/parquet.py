"""Ids and vectors from Parquet, read with pyarrow in batches: a file, a directory of tables, or parts of one table."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, dtype_named
from edl_ckpt.core.operations.export.formats.arrays import original_name
from edl_ckpt.core.operations.export.formats.parquet import PARQUET, PARTS_FILE
from edl_ckpt.core.operations.importing.columns import chosen_columns
from edl_ckpt.core.operations.importing.stream import ArrayStream
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.storage.faults import storage_errors

_NAMES: Final = {"float": "float32", "double": "float64", "halffloat": "float16"}
"""Numpy's names for types that Arrow calls otherwise."""
_BATCH_BYTES: Final = 8 << 20
_PART: Final = re.compile(r"(part|data)[-_.]?[0-9]")
"""The names of parts of a table, as Spark, Dask, pyarrow and DuckDB write them."""
TakeNotes = Callable[[Mapping[str, Any], str], None]
"""Takes the document that an export leaves for importers, and its path: `tables`, and its metadata beside them."""


def read_parquet(path: str, names: NameMap, take_notes: TakeNotes, trust: Trust) -> Iterator[ArrayStream]:
    """Yield NAME.ids and NAME.vectors of a Parquet file, or of each in a directory.

    Files that are named as parts of one are one table, with the name of the directory. Raises CorruptError for a
    directory that lacks the files of some tables, and for a page whose checksum is another one than its file says,
    where it says any, unless `trust` is forced.
    """
    is_folder = os.path.isdir(path)
    files = [path]
    if is_folder:
        files = [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(PARQUET)]
    of_cluster = _parts_document(path, len(files)) if is_folder else None
    are_parts = is_folder and all(_PART.match(os.path.basename(file)) for file in files)
    tables: dict[str, _TableFiles] = {}
    for file in files:
        _confirm_pages(file, trust)
        described = _described(file, trust)
        if described.export is not None:
            take_notes(described.export, file)
            if of_cluster is None and is_folder:
                _check_whole(described.export.get("whole"), path, len(files))
            if described.is_without_table:
                continue
        key = file if of_cluster is None else described.title or ""
        if are_parts and described.export is None:
            key = path
        name = described.title
        if name is None:
            name = original_name(os.path.basename(os.path.abspath(key)).removesuffix(PARQUET))
        earlier = tables[key].paths if key in tables else []
        tables[key] = _TableFiles(name, [*earlier, file], described.notes)
    if of_cluster is not None:
        take_notes(of_cluster, path)
    for table in tables.values():
        yield from _read_table(table, [_opened(part, trust) for part in table.paths], names)


class _Described(NamedTuple):
    """What a Parquet file says of itself: the name of its table, and the document of the export that wrote it."""

    title: str | None
    export: Mapping[str, Any] | None
    is_without_table: bool
    """True for the file that an export of a version without tables writes."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """Return what the export notes of tables, by name."""
        notes: Mapping[str, Any] = {} if self.export is None else self.export["tables"]
        return notes


def _described(path: str, trust: Trust) -> _Described:
    """Return what a file says of itself."""
    opened = _opened(path, trust)
    metadata = {**(opened.schema_arrow.metadata or {}), **(opened.metadata.metadata or {})}
    title = metadata.get(b"table")
    export = parse_object(metadata[b"edl-ckpt"], path) if b"edl-ckpt" in metadata else None
    is_without_table = opened.schema_arrow.names == ["id"] and not opened.metadata.num_rows
    return _Described(None if title is None else title.decode("utf-8", "replace"), export, is_without_table)


class _TableFiles(NamedTuple):
    """A table, the files that have its rows, and what an export notes of the tables in them, by name."""

    name: str
    paths: Sequence[str]
    notes: Mapping[str, Any]


def _parts_document(path: str, files: int) -> Mapping[str, Any] | None:
    """Return what a cluster says of a directory that it exported; None for any other one."""
    full = os.path.join(path, PARTS_FILE)
    if not os.path.exists(full):
        return None
    with storage_errors(full), open(full, "rb") as file:
        document = parse_object(file.read(), full)
    if document.get("files") != files:
        raise CorruptError(f"there are {files} Parquet files, and {document.get('files')} were exported", path=path)
    return document


def _confirm_pages(path: str, trust: Trust) -> None:
    """Look at the checksums of all pages of a file that is read without comparing them, as `trust` is forced."""
    if trust.force and not trust.forced:
        try:
            for _ in _batches(_opened(path), None, path, rows=1 << 16):
                pass
        except CorruptError as error:
            trust.overrule(error)


def _opened(path: str, trust: Trust | None = None) -> Any:
    is_compared = trust is None or not trust.forced
    try:
        return library("pyarrow.parquet", "arrow").ParquetFile(path, page_checksum_verification=is_compared)
    except Exception as error:  # noqa: BLE001 - pyarrow's errors have no common root but Exception
        raise CorruptError(f"not a Parquet file: {error}", path=path) from None


def _check_whole(whole: object, path: str, files: int) -> None:
    """Raise CorruptError when a directory does not have a file for each table."""
    count = whole.get("tables") if isinstance(whole, dict) else None
    if isinstance(count, int) and files != count:
        raise CorruptError(f"there are Parquet files of {files} tables, and {count} were exported", path=path)


def _read_table(table: _TableFiles, opened: Sequence[Any], names: NameMap) -> Iterator[ArrayStream]:
    """Yield the ids and the vectors of a table, in opened files that follow each other."""
    path = table.paths[0]
    schema = opened[0].schema_arrow
    id_column, vectors = chosen_columns(schema.names, names, path)
    kinds = [schema.field(column).type for column in vectors]
    is_list = len(vectors) == 1 and hasattr(kinds[0], "value_type") and not hasattr(kinds[0], "index_type")
    dim: int | None = len(vectors)
    if is_list:
        dim = _dim_of_lists(table, opened, kinds[0], vectors[0])
        kinds = [kinds[0].value_type]
    if dim is None or (vectors == ["vector"] and not is_list):
        got = schema.field(vectors[0]).type
        raise UnsupportedError(f"expected a list of numbers in {vectors[0]!r}, got {got} without values", path=path)
    for part, part_path in zip(opened, table.paths, strict=True):
        if not part.schema_arrow.equals(schema):
            message = f"has other columns than {os.path.basename(path)}, and is a part of the same table"
            raise CorruptError(message, path=part_path)
    rows = sum(part.metadata.num_rows for part in opened)
    id_kind = str(schema.field(id_column).type)
    id_dtype = dtype_named(id_column, _NAMES.get(id_kind, id_kind), path=path)
    ids = _columns(opened, [id_column], None, id_kind, table.paths)
    yield f"{table.name}.ids", id_dtype, (rows,), ids
    element = _common_dtype(kinds)
    data = _columns(opened, vectors, dim if is_list else None, element, table.paths)
    yield f"{table.name}.vectors", dtype_named(vectors[0], element, path=path), (rows, dim), data


def _dim_of_lists(table: _TableFiles, opened: Sequence[Any], kind: Any, column: str) -> int | None:
    """Return the length of the lists in a column, all of which are alike; None where nothing tells it.

    Lists of a fixed size say it themselves; of others an export notes it, or else the first one counts.
    """
    fixed = getattr(kind, "list_size", None)
    if isinstance(fixed, int):
        return fixed
    note = table.notes.get(table.name)
    if isinstance(note, dict):
        noted = note.get("dim")
        return noted if isinstance(noted, int) else None
    with_rows = [part for part in opened if part.metadata.num_rows]
    return _first_length((with_rows or opened)[0], column, table.paths[0])


def _common_dtype(kinds: Sequence[Any]) -> str:
    """Return the dtype that holds the elements of all columns, or one that is not known."""
    elements = {_NAMES.get(str(kind), str(kind)) for kind in kinds}
    unknown = sorted(elements - DTYPES.keys())
    return unknown[0] if unknown else str(np.result_type(*elements))


def _first_length(table: Any, name: str, path: str) -> int | None:
    """Return the length of the first vector, None without one."""
    first = next(_batches(table, [name], path, rows=1), [[None]])[0][0]
    return len(first) if first is not None and first.is_valid else None


def _batches(table: Any, names: Sequence[str] | None, path: str, *, rows: int) -> Iterator[Any]:
    """Yield columns in parts; all of them where None are named."""
    with storage_errors(path):
        try:
            yield from table.iter_batches(rows, columns=None if names is None else list(names))
        except Exception as error:
            if getattr(error, "errno", None):
                raise
            raise CorruptError(f"not a readable Parquet file: {error}", path=path) from None


def _columns(
    tables: Sequence[Any], names: Sequence[str], lists: int | None, dtype: str, paths: Sequence[str]
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield columns of files that follow each other, side by side; or one of lists that have so many values."""
    most = max(_BATCH_BYTES // (8 * max(lists or 0, len(names))), 1)
    for table, path in zip(tables, paths, strict=True):
        row = 0
        for batch in _batches(table, names, path, rows=min(most, 1 << 16)):
            columns = [_values(batch.column(c), c, lists, row, path) for c in names]
            values = columns[0] if len(columns) == 1 else np.column_stack(columns).astype(dtype, copy=False)
            yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            row += len(batch)


def _values(column: Any, name: str, lists: int | None, row: int, path: str) -> npt.NDArray[Any]:
    """Return the values of a column, from row `row` of the file on; CorruptError for nulls and other lengths."""
    values = column.flatten() if lists is not None else column
    if column.null_count or values.null_count:
        rows = f"rows {row} to {row + len(column) - 1}"
        raise CorruptError(f"column {name!r} contains nulls, in {rows}", path=path)
    lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else np.full(len(column), lists)
    if lists is not None and (lengths != lists).any():
        odd = int(np.argmax(lengths != lists))
        message = f"row {row + odd} of column {name!r} has {counted(int(lengths[odd]), 'value')}, expected {lists}"
        raise CorruptError(message, path=path)
    return np.asarray(values.to_numpy(zero_copy_only=False))
