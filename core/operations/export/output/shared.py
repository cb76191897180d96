"""Files of an output that other processes write, each by one task.

On a file system that all share, each attempt writes a new file, and the command renames the one whose writer is done.
On object storage a task writes its file to the local disk of its worker, and sends the parts of an upload that the
command began, and completes. So nothing that a late process does changes what is published.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Final, NamedTuple, TypeAlias

from edl_ckpt.core.commit.sent_parts import Extent, SharedUploads, even_edges
from edl_ckpt.core.storage.interface import SentPart
from edl_ckpt.core.storage.local import LocalReader
from edl_ckpt.core.storage.parts import PartMemory

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
