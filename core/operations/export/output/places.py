"""Where tensors are written: places in files of known size, in which several threads write at a time.

What was written is read back, through a mapping of the file, before it is published: for the proof, and for the
checksums of formats that have some.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, InitVar, dataclass, field
from functools import partial
from typing import IO, Any, Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.sorting.partition import Area, RowArea
from edl_ckpt.core.storage.files import PreallocatedFile

FLUSHERS: Final = 4
"""Files that are flushed at a time, which a disk does faster."""
_LEAST_VIEW: Final = 256 << 10
"""Fewer bytes are copied: a mapping and a flush of their own would cost more."""


@dataclass(eq=False)
class OutputFile:
    """A file in which tensors have places; open only while somebody writes, because an export may have many files.

    With `size_bytes` it is new, else this process has made it. One that is uploaded is not `durable`: it is not flushed
    to the disk. `final` is called with each (offset, bytes) that was read back and does not change any more.
    """

    path: str
    size_bytes: InitVar[int | None] = None
    _: KW_ONLY
    durable: bool = True
    final: Callable[[int, int], None] | None = None
    _file: PreallocatedFile | None = field(default=None, init=False)
    _users: int = field(default=0, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _heads: dict[int, bytes] = field(default_factory=dict, init=False)

    def __post_init__(self, size_bytes: int | None) -> None:
        if size_bytes is not None:
            PreallocatedFile(self.path, size_bytes).close()

    def __enter__(self) -> PreallocatedFile:
        """Open the file for a block, unless another block has it open already."""
        with self._lock:
            if self._file is None:
                self._file = PreallocatedFile(self.path, None)
            self._users += 1
            return self._file

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._file is not None:
                file, self._file = self._file, None
                file.close()

    def write(self, offset: int, data: bytes) -> None:
        """Write all of `data`, which is no value, at `offset`."""
        with self as file:
            file.write(offset, data)
        self._heads[offset] = data

    def finish(self) -> None:
        """Read back all that `write` wrote, and flush the file to the disk, unless it is a temporary one.

        Raises EdlCkptError where the file has other bytes.
        """
        if not self._heads and not self.durable:
            return
        with self as file:
            for offset, data in self._heads.items():
                back = bytearray(len(data))
                file.read_into(offset, memoryview(back))
                if back != data:
                    raise reads_back_differently("the header", self.path)
            if self.durable:
                file.flush()


def flush_file(file: IO[Any]) -> None:
    """Flush what was written to a file to the disk."""
    file.flush()
    os.fsync(file.fileno())


def finish_outputs(files: Sequence[OutputFile]) -> None:
    """Finish several files at a time."""
    run_all(OutputFile.finish, files, min(FLUSHERS, len(files)))


class OpenPlace(NamedTuple):
    """The place of a tensor while its file is open: where it is written, and what reads back bytes that are final."""

    area: RowArea
    read_back: Callable[[int, int], bulk.U8]
    """Takes an offset in the tensor and a number of bytes, and returns uint8 [n]."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor in a file; `crc` adds up what is read back from it."""

    file: OutputFile
    offset: int
    crc: Crc32 | None = None

    def area(self, file: PreallocatedFile) -> Area:
        """Return the place in the open file."""
        return Area(file, self.offset)

    @contextmanager
    def opened(self) -> Iterator[OpenPlace]:
        """Hold the file open while the tensor is written."""
        with self.file as file:
            area = self.area(file)
            yield OpenPlace(area, partial(self.read_back, area))

    def read_back(self, area: Area, at: int, size_bytes: int) -> bulk.U8:
        """Return bytes that are final, uint8 [n], as the file has them, and begin to flush them."""
        if size_bytes < _LEAST_VIEW:
            data = np.empty(size_bytes, np.uint8)
            area.read_into(at, data)
        else:
            if self.file.durable:
                area.start_flush(at, size_bytes)
            data = np.frombuffer(area.file.view(area.offset + at, size_bytes), np.uint8)
        if self.crc is not None:
            self.crc.add(at, data.data)
        if self.file.final is not None:
            self.file.final(area.offset + at, size_bytes)
        return data


def compare_rows(name: str, read: ContentSketch, written: ContentSketch) -> None:
    """Raise EdlCkptError unless the rows of a table that were read and those that were written have the same sums."""
    one, other = read.tables.get(name), written.tables.get(name)
    if one is not other and (one is None or other is None or not np.array_equal(one, other)):
        raise EdlCkptError(
            f"the exported rows of table {name!r} differ from those that were read; nothing was published",
            hint="check the memory and the disk of this machine",
        )


def reads_back_differently(name: str, path: str) -> EdlCkptError:
    """Return the error for an output that has not what was written into it."""
    return EdlCkptError(
        f"{name!r} reads back differently; nothing was published",
        path=path,
        hint="check the memory and the disk of this machine",
    )
