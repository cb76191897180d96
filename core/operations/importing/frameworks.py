"""Arrays from files of frameworks, read with their own libraries: Parquet, PyTorch, TensorFlow checkpoints.

Values from a library go to temporary files without a name, so that the rest of an import reads ranges of files. A
tensor is in memory once at most; a PyTorch file is opened with `weights_only`, which unpickles tensors and no more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.errors import CorruptError, UnsupportedError
from edl_ckpt.core.format.checks import dtype_named
from edl_ckpt.core.format.model import DTYPES, DType
from edl_ckpt.core.libraries import library
from edl_ckpt.core.operations.export.frameworks import METADATA_FILE
from edl_ckpt.core.operations.export.names import original_name

TakeNotes = Callable[[Mapping[str, Any]], None]
"""Takes the document that an export leaves for importers: its `tables`, and its metadata beside them."""
Found = tuple[str, DType, tuple[int, ...], Iterator[npt.NDArray[np.uint8]]]
"""Name, dtype, shape and the bytes of an array, in order."""


def read_torch(path: str, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield the tensors of a state_dict; CorruptError for anything that is more than tensors."""
    torch = library("torch", "torch")
    try:
        loaded = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # noqa: BLE001 - pickle, zipfile and torch raise what they like on foreign files
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CorruptError(f"not a file of tensors that is safe to read: {first}", path=path) from None
    if not isinstance(loaded, dict):
        raise UnsupportedError(f"expected a dict of tensors, got {type(loaded).__name__}", path=path)
    notes = loaded.pop("__edl_ckpt__", None)
    if notes is not None:
        take_notes(read_notes(bytes(notes.numpy()), path))
    for name, tensor in loaded.items():
        if not isinstance(tensor, torch.Tensor):
            raise UnsupportedError(f"{name!r} is a {type(tensor).__name__}, not a tensor", path=path)
        dtype = dtype_named(str(name), str(tensor.dtype).removeprefix("torch."))
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        yield str(name), dtype, tuple(tensor.shape), iter([flat])


def read_tensorflow(prefix: str, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield the tensors of a checkpoint by its prefix; anything but arrays of numbers (a graph, texts) is left out."""
    tf = library("tensorflow", "tensorflow")
    try:
        reader = tf.train.load_checkpoint(prefix)
    except Exception as error:  # noqa: BLE001 - its errors have no common root but Exception
        raise CorruptError(f"not a TensorFlow checkpoint: {str(error)[:200]}", path=prefix) from None
    metadata = os.path.join(os.path.dirname(prefix), METADATA_FILE)
    if os.path.exists(metadata):
        with open(metadata, "rb") as file:
            take_notes(read_notes(file.read(), metadata))
    dtypes = reader.get_variable_to_dtype_map()
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if dtypes[name].name in DTYPES:
            values = np.ascontiguousarray(reader.get_tensor(name))
            yield name, DTYPES[dtypes[name].name], tuple(shape), iter([values.reshape(-1).view(np.uint8)])


def read_parquet(path: str, take_notes: TakeNotes) -> Iterator[Found]:
    """Yield NAME.ids and NAME.vectors of each Parquet file of a directory: columns `id` and `vector`."""
    parquet = library("pyarrow.parquet", "arrow")
    for file_name in sorted(name for name in os.listdir(path) if name.endswith(".parquet")):
        full = os.path.join(path, file_name)
        try:
            table = parquet.ParquetFile(full)
        except Exception as error:  # noqa: BLE001 - pyarrow's errors have no common root but Exception
            raise CorruptError(f"not a Parquet file: {error}", path=full) from None
        schema = table.schema_arrow
        if not {"id", "vector"} <= set(schema.names) or not hasattr(schema.field("vector").type, "list_size"):
            raise UnsupportedError("expected columns `id` and `vector`, a list of fixed size", path=full)
        metadata = {**(schema.metadata or {}), **(table.metadata.metadata or {})}
        if b"edl-ckpt" in metadata:
            take_notes(read_notes(metadata[b"edl-ckpt"], full))
        name = metadata[b"table"].decode("utf-8", "replace") if b"table" in metadata else original_name(file_name[:-8])
        rows, vector = table.metadata.num_rows, schema.field("vector").type
        ids = str(schema.field("id").type)
        yield f"{name}.ids", dtype_named(name, ids), (rows,), _column(table, "id")
        element = {"float": "float32", "double": "float64", "halffloat": "float16"}.get(
            str(vector.value_type), str(vector.value_type)
        )
        yield f"{name}.vectors", dtype_named(name, element), (rows, vector.list_size), _column(table, "vector")


def _column(table: Any, name: str) -> Iterator[npt.NDArray[np.uint8]]:
    for batch in table.iter_batches(columns=[name]):
        column = batch.column(0)
        if column.null_count:
            raise CorruptError(f"column {name!r} contains nulls")
        values = column.flatten() if name == "vector" else column
        yield np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).reshape(-1).view(np.uint8)


def read_notes(data: bytes, path: str) -> Mapping[str, Any]:
    """Return the document that an export leaves for importers; CorruptError unless it has notes on tables."""
    try:
        document = json.loads(data)
        tables = document["tables"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CorruptError("the notes on tables are damaged", path=path) from None
    if not isinstance(document, dict) or not isinstance(tables, dict):
        raise CorruptError("the notes on tables are damaged", path=path)
    return document
