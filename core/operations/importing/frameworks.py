"""Arrays from files of frameworks, read with their own libraries: Parquet and PyTorch.

Values from a library go to temporary files without a name, so that the rest of an import reads ranges of files. A
tensor is in memory once at most; a PyTorch file is opened with `weights_only`, which unpickles tensors and no more.
"""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import library
from edl_ckpt.core.base.errors import CorruptError, NotFoundError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.words import abridged, counted, meant
from edl_ckpt.core.converting.changes import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, dtype_named
from edl_ckpt.core.operations.export.formats.arrays import METADATA_FILE
from edl_ckpt.core.operations.export.formats.names import NOTES, original_name
from edl_ckpt.core.operations.export.formats.parquet import PARQUET, PARTS_FILE
from edl_ckpt.core.operations.importing.rows import Found, chosen_columns
from edl_ckpt.core.storage.faults import storage_errors

_NAMES: Final = {"float": "float32", "double": "float64", "halffloat": "float16"}
"""Numpy's names for types that Arrow calls otherwise."""
_BATCH_BYTES: Final = 8 << 20
_PART: Final = re.compile(r"(part|data)[-_.]?[0-9]")
"""The names of parts of a table, as Spark, Dask, pyarrow and DuckDB write them."""
TakeNotes = Callable[[Mapping[str, Any], str], None]
"""Takes the document that an export leaves for importers, and its path: `tables`, and its metadata beside them."""


def read_torch(path: str, key: str | None, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield the tensors of a state_dict, or of the dict at a key in it; errors for what is no tensor."""
    torch = library("torch", "torch")
    try:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        notes = _torch_notes(path)
    except Exception as error:  # noqa: BLE001 - pickle, zipfile and torch raise what they like on foreign files
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(f"not a file of tensors that is safe to read: {first}", path=path) from None
    loaded = _at_key(loaded, key or "", path)
    if not isinstance(loaded, dict):
        raise UnsupportedError(f"expected a dict of tensors, got {type(loaded).__name__}", path=path)
    if notes is None and isinstance(loaded.get(NOTES), torch.Tensor):  # exports once had them among the tensors
        notes = bytes(loaded.pop(NOTES).numpy())
    if notes is not None:
        take_notes(parse_object(notes, path), path)
    nested = {name: value for name, value in loaded.items() if isinstance(value, dict)}
    likely = [name for name, value in nested.items() if any(isinstance(v, torch.Tensor) for v in value.values())]
    for name, tensor in loaded.items():
        if not isinstance(tensor, torch.Tensor):
            inner = ".".join(map(str, [*filter(None, [key]), *(likely or [*nested])[:1]]))
            hint = f"try: --key {inner}; keys there: {abridged(loaded, 8)}" if nested else None
            raise UnsupportedError(f"{name!r} is a {type(tensor).__name__}, not a tensor", path=path, hint=hint)
        dtype = dtype_named(str(name), str(tensor.dtype).removeprefix("torch."))
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type != "cpu":
            kind = "nested" if tensor.is_nested else f"{tensor.layout} on {tensor.device}".removeprefix("torch.")
            raise UnsupportedError(f"{name!r} is no dense tensor with values ({kind})", path=path)
        if tensor.nbytes > tensor.untyped_storage().nbytes():  # its file is as small as its storage
            hint = "save a copy of it: tensor.clone()"
            raise UnsupportedError(f"{name!r} is a view that repeats its values", path=path, hint=hint)
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield str(name), dtype, tuple(tensor.shape), iter([flat])


def _at_key(loaded: Any, key: str, path: str) -> Any:
    """Return what is at a dotted path; a key may have dots of its own. NotFoundError names the keys that are there."""
    while key and isinstance(loaded, dict):
        name = next((name for name in loaded if f"{key}.".startswith(f"{name}.")), None)
        if name is None:
            raise NotFoundError(f"no key {key!r}", path=path, hint=meant(key, map(str, loaded), "keys"))
        loaded, key = loaded[name], key[len(f"{name}.") :]
    return loaded


def _torch_notes(path: str) -> bytes | None:
    """Return the notes of an export from the archive that a file of PyTorch is; None where there are none."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.partition("/")[2] == METADATA_FILE and member.file_size <= os.path.getsize(path):
                return archive.read(member)
    return None


def read_parquet(path: str, names: NameMap, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield NAME.ids and NAME.vectors of a Parquet file, or of each in a directory.

    Files that are named as parts of one are one table, with the name of the directory. Raises CorruptError for a
    directory that lacks the files of some tables.
    """
    folder = os.path.isdir(path)
    files = (
        [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(PARQUET)] if folder else [path]
    )
    whole = _parts_document(path, len(files)) if folder else None
    tables: dict[str, list[str]] = {}
    notes: dict[str, tuple[bytes | None, Mapping[str, Any]]] = {}
    are_parts = folder and all(_PART.match(os.path.basename(full)) for full in files)
    for full in files:
        table = _opened(full)
        metadata = {**(table.schema_arrow.metadata or {}), **(table.metadata.metadata or {})}
        noted: Mapping[str, Any] = {"tables": {}}
        if b"edl-ckpt" in metadata:
            noted = parse_object(metadata[b"edl-ckpt"], full)
            take_notes(noted, full)
            if whole is None:
                _check_whole(noted.get("whole"), path, len(files) if folder else None)
            if table.schema_arrow.names == ["id"] and not table.metadata.num_rows:
                continue  # of a version without tables
        key = full if whole is None else metadata.get(b"table", b"").decode("utf-8", "replace")
        key = path if are_parts and b"edl-ckpt" not in metadata else key
        tables.setdefault(key, []).append(full)
        notes[key] = (metadata.get(b"table"), noted["tables"])
    if whole is not None:
        take_notes(whole, path)
    for key, parts in tables.items():
        name = original_name(os.path.basename(os.path.abspath(key)).removesuffix(PARQUET))
        title, note = notes[key]
        yield from _read_table(parts, note, names, name if title is None else title.decode("utf-8", "replace"))


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


def _opened(path: str) -> Any:
    try:
        return library("pyarrow.parquet", "arrow").ParquetFile(path)
    except Exception as error:  # noqa: BLE001 - pyarrow's errors have no common root but Exception
        raise CorruptError(f"not a Parquet file: {error}", path=path) from None


def _check_whole(whole: object, path: str, files: int | None) -> None:
    """Raise CorruptError when a directory does not have a file for each table."""
    count = whole.get("tables") if isinstance(whole, dict) else None
    if files is not None and isinstance(count, int) and files != count:
        raise CorruptError(f"there are Parquet files of {files} tables, and {count} were exported", path=path)


def _read_table(paths: Sequence[str], notes: Mapping[str, Any], names: NameMap, name: str) -> Iterator[Found]:
    """Yield the ids and the vectors of a table, in files that follow each other."""
    path, tables = paths[0], [_opened(path) for path in paths]
    table, schema = tables[0], tables[0].schema_arrow
    id_column, vectors = chosen_columns(schema.names, names, path)
    kinds = [schema.field(column).type for column in vectors]
    dim: int | None = len(vectors)
    if is_list := len(vectors) == 1 and hasattr(kinds[0], "value_type") and not hasattr(kinds[0], "index_type"):
        dim = getattr(kinds[0], "list_size", None)
        if dim is None:  # of any length, but all are alike
            note, filled = notes.get(name), next((t for t in tables if t.metadata.num_rows), table)
            dim = note.get("dim") if isinstance(note, dict) else _first_length(filled, vectors[0], path)
        kinds = [kinds[0].value_type]
    if not isinstance(dim, int) or (vectors == ["vector"] and not is_list):
        got = schema.field(vectors[0]).type
        raise UnsupportedError(f"expected a list of numbers in {vectors[0]!r}, got {got} without values", path=path)
    elements = {_NAMES.get(str(k), str(k)) for k in kinds}
    unknown = sorted(elements - DTYPES.keys())
    element = unknown[0] if unknown else str(np.result_type(*elements))
    other = next((k for k, one in enumerate(tables) if not one.schema_arrow.equals(schema)), None)
    if other is not None:
        message = f"has other columns than {os.path.basename(path)}, and is a part of the same table"
        raise CorruptError(message, path=paths[other])
    rows, ids = sum(each.metadata.num_rows for each in tables), str(schema.field(id_column).type)
    id_dtype = dtype_named(id_column, _NAMES.get(ids, ids), path=path)
    yield f"{name}.ids", id_dtype, (rows,), _columns(tables, [id_column], None, ids, paths)
    data = _columns(tables, vectors, dim if is_list else None, element, paths)
    yield f"{name}.vectors", dtype_named(vectors[0], element, path=path), (rows, dim), data


def _first_length(table: Any, name: str, path: str) -> int | None:
    """Return the length of the first vector, None without one."""
    first = next(_batches(table, [name], path, rows=1), [[None]])[0][0]
    return len(first) if first is not None and first.is_valid else None


def _batches(table: Any, names: Sequence[str], path: str, *, rows: int) -> Iterator[Any]:
    """Yield columns in parts."""
    with storage_errors(path):
        try:
            yield from table.iter_batches(rows, columns=list(names))
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
