"""A written file read back by its format's own reader: each tensor's file, shape and bytes must be those of the plan.

The values are compared while they are written. What stands around them is compared here: a file whose header cannot be
read, or that gives a tensor another place, must never become visible.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO, Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.operations.export.interface import Tensor
from edl_ckpt.core.operations.export.output.places import reads_back_differently
from edl_ckpt.core.sources.bundle.index import data_file, read_index
from edl_ckpt.core.sources.safetensors.indexing import read_header
from edl_ckpt.core.sources.steps.file_layout import FileLayout
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.local import LocalReader

_LENGTHS_AT: Final = 26
_LENGTHS: Final = struct.Struct("<HH")
"""Of the name and the extra field at the end of a local header, before these."""


class StoredAt(NamedTuple):
    """Where a file has a tensor: bytes [start, end), C order; `file` as in the layout."""

    file: str
    shape: tuple[int, ...]
    start: int
    end: int


def in_safetensors(path: str, files: Sequence[str]) -> Mapping[str, StoredAt]:
    """Return the tensors in the headers of safetensors files; others are left out."""
    found: dict[str, StoredAt] = {}
    for file in files:
        if file and not file.endswith(".safetensors"):
            continue
        with LocalReader(os.path.join(path, file) if file else path) as reader:
            for tensor in read_header(reader).tensors:
                found[tensor.name] = StoredAt(file, tensor.dims, tensor.start, tensor.end)
    return found


def in_bundle(path: str, files: Sequence[str]) -> Mapping[str, StoredAt]:
    """Return the tensors in the index of a bundle."""
    (index_file,) = (file for file in files if file.endswith(".index"))
    place = os.path.join(path, index_file)
    with storage_errors(place), open(place, "rb") as opened:
        index = read_index(opened.read(), place)
    prefix = index_file.removesuffix(".index")
    data_files = [data_file(prefix, number, index.shards) for number in range(index.shards)]
    return {
        name: StoredAt(data_files[tensor.shard], tensor.shape, tensor.start, tensor.end)
        for name, tensor in index.tensors.items()
    }


def in_npz(path: str, index: str) -> Mapping[str, StoredAt]:
    """Return the tensors in the directory of an .npz archive, whose member `index` names those of the tensors."""
    found: dict[str, StoredAt] = {}
    with storage_errors(path), open(path, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                document = json.loads(np.load(io.BytesIO(archive.read(index))).tobytes())
                for name, tensor in document["tensors"].items():
                    found[name] = _in_member(archive, file, archive.getinfo(tensor["file"]))
        except (zipfile.BadZipFile, KeyError, ValueError) as error:
            raise CorruptError(f"its archive is damaged: {error}", path=path) from None
    return found


def _in_member(archive: zipfile.ZipFile, file: BinaryIO, info: zipfile.ZipInfo) -> StoredAt:
    """Return the place of the values in an .npy member of an archive in an open file."""
    with archive.open(info) as member:
        np.lib.format.read_magic(member)
        shape, _, _ = np.lib.format.read_array_header_1_0(member)
        head_bytes = member.tell()
    file.seek(info.header_offset + _LENGTHS_AT)
    begin = info.header_offset + _LENGTHS_AT + _LENGTHS.size + sum(_LENGTHS.unpack(file.read(_LENGTHS.size)))
    return StoredAt("", shape, begin + head_bytes, begin + info.file_size)


def check_reopened(
    path: str,
    layout: FileLayout,
    tensors: Sequence[Tensor],
    reopened: Callable[[Sequence[str]], Mapping[str, StoredAt] | None],
) -> None:
    """Raise EdlCkptError unless files give each tensor the place, the shape and the size that were planned.

    `reopened` reads some files by the format's own reader, or returns None where it has none.
    """
    try:
        stored = reopened(list(layout.files))
    except CorruptError as error:
        raise reads_back_differently(f"the header of the new file ({error.message})", path) from None
    if stored is None:
        return
    for tensor in tensors:
        file, start = layout.at(tensor.name, 0)
        if stored.get(tensor.name) != StoredAt(file, tuple(tensor.shape), start, start + tensor.size_bytes):
            raise reads_back_differently(f"the place of {tensor.name!r} in the new file", path)
