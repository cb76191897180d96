"""Arrays in a file of torch.save, read without torch: the tensors of a state_dict, or of the dict at a key in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.words import abridged, meant
from edl_ckpt.core.model.dtypes import dtype_named
from edl_ckpt.core.operations.export.formats.arrays import METADATA_FILE, NOTES
from edl_ckpt.core.operations.importing.parquet import TakeNotes
from edl_ckpt.core.operations.importing.stream import ArrayStream
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.sources.torch.files import FileContents, FileTensor, note_in, open_file
from edl_ckpt.core.storage.interface import RangeReader

_MOST_NOTES: Final = 64 << 20


def read_torch(reader: RangeReader, key: str | None, take_notes: TakeNotes) -> Iterator[ArrayStream]:
    """Yield the tensors of an open file, or of the dict at a key in it, and give its notes to `take_notes`.

    Raises CorruptError for damage, UnsupportedError for what is no dense tensor or repeats its values, NotFoundError
    for a key that is not there.
    """
    path = reader.path
    contents = open_file(reader)
    above = _place_of(contents, key or "", path)
    tensors = {t.path[len(above) :]: t for t in contents.tensors if t.path[: len(above)] == above}
    if notes := note_in(reader, METADATA_FILE, _MOST_NOTES):
        take_notes(parse_object(notes, path), path)
    elif (NOTES,) in tensors:  # exports once had them among the tensors
        noted = tensors.pop((NOTES,))
        take_notes(parse_object(b"".join(map(bytes, _bytes_of(reader, noted))), path), path)
    _check_flat(contents, above, key or "", path)
    for rest, tensor in tensors.items():
        name = ".".join(rest)
        values = tensor.values
        dtype = dtype_named(name, values.dtype)
        if math.prod(values.shape) * dtype.itemsize > values.end - values.start:
            hint = "save a copy of it: tensor.clone()"
            raise UnsupportedError(f"{name!r} is a view that repeats its values", path=path, hint=hint)
        if tensor.share is not None and tensor.share.shape != values.shape:
            hint = "import the directory with the files of all ranks"
            raise UnsupportedError(f"{name!r} is one rank's part of a tensor", path=path, hint=hint)
        yield name, dtype, values.shape, _bytes_of(reader, tensor)


def _place_of(contents: FileContents, key: str, path: str) -> tuple[str, ...]:
    """Return the path of the dict at a dotted key; a key may have dots of its own. Errors as `read_torch`."""
    paths = [tensor.path for tensor in contents.tensors]
    paths += [value.path for value in contents.values]
    paths += [unread.path for unread in contents.unread]
    above: tuple[str, ...] = ()
    while key:
        depth = len(above)
        keys = dict.fromkeys(below[depth] for below in paths if below[:depth] == above and len(below) > depth)
        name = next((name for name in keys if f"{key}.".startswith(f"{name}.")), None)
        if name is None and keys:
            raise NotFoundError(f"no key {key!r}", path=path, hint=meant(key, keys, "keys"))
        if name is None:
            break
        above = (*above, name)
        key = key[len(f"{name}.") :]
    empty = {value.path for value in contents.values if value.scalars == 0}
    if (above in paths or () in paths) and above not in empty:
        raise UnsupportedError(f"expected a dict of tensors, got {_kind_of(contents, above)}", path=path)
    return above


def _kind_of(contents: FileContents, place: Sequence[str]) -> str:
    is_tensor = any(tensor.path in {(*place,), ()} for tensor in contents.tensors)
    return "a tensor" if is_tensor else "a value"


def _check_flat(contents: FileContents, above: tuple[str, ...], key: str, path: str) -> None:
    """Raise UnsupportedError unless all that is at a place are tensors; the hint has the key to try."""
    depth = len(above)
    for unread in contents.unread:
        if unread.path[:depth] == above:
            unread.error.path = unread.error.path or path
            unread.error.message = f"{'.'.join(unread.path[depth:])!r}: {unread.error.message}"
            raise unread.error
    tensors = [tensor.path[depth:] for tensor in contents.tensors if tensor.path[:depth] == above]
    dicts_of_tensors = [names[0] for names in tensors if len(names) > 1]
    kinds: dict[str, str] = {}
    """What each key has that has no tensor."""
    for value in contents.values:
        if value.path[:depth] == above and len(value.path) > depth:
            is_scalar = len(value.path) == depth + 1 and value.scalars is None
            kinds[value.path[depth]] = "a value" if is_scalar else "a dict or a list"
    kinds |= dict.fromkeys(dicts_of_tensors, "a dict")
    if not kinds:
        return
    hint = None
    containers = [name for name, kind in kinds.items() if kind != "a value"]
    if containers:
        inner = (dicts_of_tensors or containers)[0]
        keys = dict.fromkeys([*kinds, *(names[0] for names in tensors)])
        hint = f"try: --key {f'{key}.{inner}' if key else inner}; keys there: {abridged(keys, 8)}"
    name, kind = next(iter(kinds.items()))
    raise UnsupportedError(f"{name!r} is {kind}, not a tensor", path=path, hint=hint)


def _bytes_of(reader: RangeReader, tensor: FileTensor) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of a tensor in C order; of one in another order its storage is read at once."""
    values = tensor.values
    if 0 in values.shape:
        return
    itemsize = dtype_named("", values.dtype).itemsize
    if values.is_plain:
        end = values.first + math.prod(values.shape) * itemsize
        for start in range(values.first, end, VALUE_BATCH_BYTES):
            yield np.frombuffer(reader.read(start, min(VALUE_BATCH_BYTES, end - start)), np.uint8)
        return
    last = sum((size - 1) * step for size, step in zip(values.shape, values.strides, strict=True))
    data = np.frombuffer(reader.read(values.first, last + itemsize), np.uint8)
    view = np.lib.stride_tricks.as_strided(data, (*values.shape, itemsize), (*values.strides, 1), writeable=False)
    yield np.ascontiguousarray(view).reshape(-1)
