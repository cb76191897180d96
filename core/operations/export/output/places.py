"""Where tensors are written: places in files of known size, in which several threads write at a time.

What was written is read back, through a mapping of the file, before it is published: for the proof, and for the
checksums of formats that have some.

Other processes write whole files, each by one task. On a file system that all share, each attempt writes a new file,
and the command renames the one whose writer is done. On object storage a task writes its file to the local disk of its
worker, and sends the parts of an upload that the command began, and completes. So nothing that a late process does
changes what is published.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from functools import partial
from typing import IO, Any, ClassVar, Final, NamedTuple, TypeAlias

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.commit.writers import Extent, SharedUploads, even_edges
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.sorting.partition import Area, RowArea
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.interface import SentPart
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.parts import PartMemory

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


_MOST_PARTS: Final = 200
"""The parts of one upload that a task names in its result, about: with more, each part is larger."""
_READ_BYTES: Final = 4 << 20


class WrittenFile(NamedTuple):
    """What a task has written: the name of its file, or all parts of its upload."""

    name: str
    size_bytes: int
    sent: tuple[SentPart, ...] = ()


@dataclass(frozen=True, slots=True)
class SharedPart:
    """A file in a directory that all processes share, under a name that no other attempt has."""

    directory: str
    is_temporary: ClassVar = False
    """The file is on the local disk of the worker first, or not."""

    @contextmanager
    def place(self) -> Iterator[str]:
        """Yield a new path."""
        path = os.path.join(self.directory, f"part-{uuid.uuid4().hex}")
        try:
            yield path
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise

    def deliver(self, path: str, memory: PartMemory) -> WrittenFile:  # noqa: ARG002 - the protocol has it
        """Name the file: the command renames it."""
        return WrittenFile(os.path.basename(path), os.stat(path).st_size)


@dataclass(frozen=True, slots=True)
class SentUpload:
    """An upload of object storage, of which a task sends all parts."""

    uploads: SharedUploads
    is_temporary: ClassVar = True

    @contextmanager
    def place(self) -> Iterator[str]:
        """Yield a path on the local disk."""
        with tempfile.TemporaryDirectory(prefix="edl-ckpt-") as directory:
            yield os.path.join(directory, "part")

    def deliver(self, path: str, memory: PartMemory) -> WrittenFile:
        """Send the file."""
        with LocalReader(path) as reader:
            size = reader.size_bytes
            uploads = replace(self.uploads, uploads={0: self.uploads.uploads[0]._replace(size_bytes=size)})
            least = max(uploads.least_part(0), -(-size // _MOST_PARTS))
            with uploads.opened([0], [Extent(0, (0, *even_edges(0, size, least)), 0)], memory) as files:
                for start in range(0, size, _READ_BYTES):
                    files[0].write(start, reader.read(start, min(_READ_BYTES, size - start)))
        return WrittenFile("", size, tuple(sent.part for sent in files.sent))


NewPart: TypeAlias = SharedPart | SentUpload
"""A value that tells a task where it writes a file of the output; `place` leaves nothing after an error."""
