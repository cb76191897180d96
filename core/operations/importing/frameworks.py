"""Arrays from files of frameworks, read with their own libraries: Parquet and PyTorch.

Values from a library go to temporary files without a name, so that the rest of an import reads ranges of files. A
tensor is in memory once at most; a PyTorch file is opened with `weights_only`, which unpickles tensors and no more.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.model.dtypes import DType, dtype_named
from edl_ckpt.core.operations.export.formats.frameworks import METADATA_FILE, PARQUET, PARTS_FILE
from edl_ckpt.core.operations.export.formats.names import NOTES, original_name
from edl_ckpt.core.storage.faults import storage_errors

TakeNotes = Callable[[Mapping[str, Any]], None]
"""Takes the document that an export leaves for importers: its `tables`, and its metadata beside them."""
Found = tuple[str, DType, tuple[int, ...], Iterator[npt.NDArray[np.uint8]]]
"""Name, dtype, shape and the bytes of an array, in order."""


def read_torch(path: str, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield the tensors of a state_dict; CorruptError for anything that is more than tensors."""
    torch = library("torch", "torch")
    try:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
        notes = _torch_notes(path)
    except Exception as error:  # noqa: BLE001 - pickle, zipfile and torch raise what they like on foreign files
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(f"not a file of tensors that is safe to read: {first}", path=path) from None
    if not isinstance(loaded, dict):
        raise UnsupportedError(f"expected a dict of tensors, got {type(loaded).__name__}", path=path)
    if notes is None and isinstance(loaded.get(NOTES), torch.Tensor):  # exports once had them among the tensors
        notes = bytes(loaded.pop(NOTES).numpy())
    if notes is not None:
        take_notes(read_notes(notes, path))
    for name, tensor in loaded.items():
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(f"{name!r} is a {type(tensor).__name__}, not a tensor", path=path)
        dtype = dtype_named(str(name), str(tensor.dtype).removeprefix("torch."))
        if tensor.layout is not torch.strided or tensor.is_nested or tensor.device.type != "cpu":
            kind = "nested" if tensor.is_nested else f"{tensor.layout} on {tensor.device}".removeprefix("torch.")
            raise UnsupportedError(f"{name!r} is no dense tensor with values ({kind})", path=path)
        if tensor.nbytes > tensor.untyped_storage().nbytes():  # its file is as small as its storage
            hint = "save a copy of it: tensor.clone()"
            raise UnsupportedError(f"{name!r} is a view that repeats its values", path=path, hint=hint)
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield str(name), dtype, tuple(tensor.shape), iter([flat])


def _torch_notes(path: str) -> bytes | None:
    """Return the notes of an export from the archive that a file of PyTorch is; None where there are none."""
    if not zipfile.is_zipfile(path):
        return None
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.partition("/")[2] == METADATA_FILE and member.file_size <= os.path.getsize(path):
                return archive.read(member)
    return None


def read_parquet(path: str, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield NAME.ids and NAME.vectors of a Parquet file, or of each in a directory: columns `id` and `vector`.

    Raises CorruptError for a directory that lacks the files of some tables.
    """
    folder = os.path.isdir(path)
    files = (
        [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(PARQUET)] if folder else [path]
    )
    whole = _parts_document(path, len(files)) if folder else None
    tables: dict[str, list[str]] = {}
    notes: dict[str, Mapping[str, Any]] = {}
    for full in files:
        table = _opened(full)
        metadata = {**(table.schema_arrow.metadata or {}), **(table.metadata.metadata or {})}
        noted: Mapping[str, Any] = {"tables": {}}
        if b"edl-ckpt" in metadata:
            noted = read_notes(metadata[b"edl-ckpt"], full)
            take_notes(noted)
            if whole is None:
                _check_whole(noted.get("whole"), path, len(files) if folder else None)
            if table.schema_arrow.names == ["id"] and not table.metadata.num_rows:
                continue  # of a version without tables
        key = full if whole is None else metadata.get(b"table", b"").decode("utf-8", "replace")
        tables.setdefault(key, []).append(full)
        notes[key] = noted["tables"]
    if whole is not None:
        take_notes(whole)
    for key, parts in tables.items():
        yield from _read_table(parts, notes[key])


def _parts_document(path: str, files: int) -> Mapping[str, Any] | None:
    """Return what a cluster says of a directory that it exported; None for any other one."""
    full = os.path.join(path, PARTS_FILE)
    if not os.path.exists(full):
        return None
    with storage_errors(full), open(full, "rb") as file:
        document = read_notes(file.read(), full)
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


def _read_table(paths: Sequence[str], notes: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the ids and the vectors of a table, in files that follow each other."""
    path, tables = paths[0], [_opened(path) for path in paths]
    table, schema = tables[0], tables[0].schema_arrow
    title = {**(schema.metadata or {}), **(table.metadata.metadata or {})}.get(b"table")
    file_name = os.path.basename(path)
    name = original_name(file_name.removesuffix(PARQUET)) if title is None else title.decode("utf-8", "replace")
    kind = schema.field("vector").type if {"id", "vector"} <= set(schema.names) else None
    dim = getattr(kind, "list_size", None)
    if dim is None and hasattr(kind, "value_type"):  # of any length, but all are alike
        note = notes.get(name)
        dim = note.get("dim") if isinstance(note, dict) else _first_length(table, path)
    if not isinstance(dim, int) or kind is None:
        raise UnsupportedError(
            f"expected columns `id` and `vector`, a list of numbers; got {', '.join(schema.names):.200}",
            path=path,
            hint="rename or combine columns first, for example with DuckDB:"
            " COPY (SELECT user AS id, [x0, x1] AS vector FROM 'a.parquet') TO 'b.parquet'",
        )
    odd = next((k for k, other in enumerate(tables) if not other.schema_arrow.equals(schema)), None)
    if odd is not None:
        raise CorruptError(f"has other columns than {file_name}, and is a part of the same table", path=paths[odd])
    rows, ids = sum(each.metadata.num_rows for each in tables), str(schema.field("id").type)
    yield f"{name}.ids", dtype_named(name, ids), (rows,), _columns(tables, "id", 1, paths)
    element = {"float": "float32", "double": "float64", "halffloat": "float16"}.get(
        str(kind.value_type), str(kind.value_type)
    )
    yield f"{name}.vectors", dtype_named(name, element), (rows, dim), _columns(tables, "vector", dim, paths)


def _columns(tables: Sequence[Any], name: str, dim: int, paths: Sequence[str]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield a column of files that follow each other."""
    for table, path in zip(tables, paths, strict=True):
        yield from _column(table, name, dim, path)


def _first_length(table: Any, path: str) -> int | None:
    """Return the length of the first vector, None without one."""
    first = next(_batches(table, "vector", path, rows=1), [None])[0]
    return len(first) if first is not None and first.is_valid else None


def _batches(table: Any, name: str, path: str, *, rows: int = 1 << 16) -> Iterator[Any]:
    """Yield a column in parts."""
    with storage_errors(path):
        try:
            for batch in table.iter_batches(rows, columns=[name]):
                yield batch.column(0)
        except Exception as error:
            if getattr(error, "errno", None):
                raise
            raise CorruptError(f"not a readable Parquet file: {error}", path=path) from None


def _column(table: Any, name: str, dim: int, path: str) -> Iterator[npt.NDArray[np.uint8]]:
    row = 0
    for column in _batches(table, name, path):
        values = column.flatten() if name == "vector" else column
        if column.null_count or values.null_count:
            raise CorruptError(f"column {name!r} contains nulls", path=path)
        lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else np.full(len(column), dim)
        if (lengths != dim).any():
            odd = int(np.argmax(lengths != dim))
            message = f"row {row + odd} of column {name!r} has {counted(lengths[odd], 'value')}, expected {dim}"
            raise CorruptError(message, path=path)
        row += len(column)
        yield np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).reshape(-1).view(np.uint8)


def read_notes(data: bytes, path: str) -> Mapping[str, Any]:
    """Return the document that an export leaves for importers; CorruptError unless it has notes on tables."""
    document = parse_object(data, path)
    if not isinstance(document.get("tables"), dict):
        raise CorruptError("the notes on tables are damaged", path=path)
    return document
