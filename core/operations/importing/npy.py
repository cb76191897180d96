"""The .npy files of numpy: their headers, and their elements in C order, whichever order they are stored in."""

from __future__ import annotations

import io
import mmap
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.operations.importing.range_stream import RangeStream
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.sources.elasticdl.target import why_impossible
from edl_ckpt.core.sources.safetensors.indexing import are_naturals
from edl_ckpt.core.storage.interface import RangeReader

_NPY_HEAD_BYTES: Final = 1 << 16
_ELEMENTS_AT_ONCE: Final = 1 << 18
"""Of an array whose order changes."""


def npy_header(reader: RangeReader, name: str) -> tuple[np.dtype[Any], tuple[int, ...], int, bool]:
    """Return (dtype, shape, offset of the elements, whether the first index changes fastest) of an .npy file.

    Raises UnsupportedError for Python objects.
    """
    head = io.BytesIO(reader.read(0, min(_NPY_HEAD_BYTES, reader.size_bytes)))
    try:
        version = np.lib.format.read_magic(head)
        readers = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
        shape, fortran, dtype = readers[version[0]](head)
    except Exception as error:  # noqa: BLE001 - numpy parses the header as Python, whose errors are many
        raise CorruptError(f"{name!r}: not an .npy file ({error})", path=reader.path, offset=0) from None
    if dtype.hasobject:
        raise UnsupportedError(f"{name!r}: an array of Python objects; nothing is unpickled", path=reader.path)
    if not are_naturals(list(shape)):
        raise CorruptError(f"{name!r}: not an .npy file (shape {shape!r:.80})", path=reader.path, offset=0)
    check_shape(name, shape, reader.path)
    return dtype, shape, head.tell(), fortran


def check_shape(name: str, shape: Sequence[int], path: str) -> None:
    """Raise UnsupportedError for a shape that no array in a checkpoint can have."""
    fault = why_impossible(shape)
    if fault:
        raise UnsupportedError(f"{name!r}: {fault}", path=path)


def in_order(
    reader: RangeReader, kind: np.dtype[Any], shape: tuple[int, ...], offset: int, order: Literal["C", "F"]
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of an array in C order, little-endian.

    They come from a mapped copy: if another process truncated a mapped file of its own, the kernel would kill this one.
    """
    if 0 in shape:
        return
    with tempfile.TemporaryFile() as file:
        shutil.copyfileobj(RangeStream(reader, offset, reader.size_bytes - offset), file, VALUE_BATCH_BYTES)
        file.flush()
        iterate: Any = np.nditer
        options = {"order": "C", "casting": "equiv", "buffersize": _ELEMENTS_AT_ONCE}
        flags, form = ["external_loop", "buffered"], kind.newbyteorder("<")
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            values = np.ndarray(shape, kind, mapped, order=order)
            for block in iterate(values, flags, ["readonly", "contig"], [form], **options):
                yield block.view(np.uint8)
                mapped.madvise(mmap.MADV_DONTNEED)  # else the file would count as memory of this process
