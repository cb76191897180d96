"""An opened version as a value, from which other processes open the same files: those of one generation, or none.

The index travels with it, so nobody parses headers again, and all see the same one. Each file is opened at its first
read. Credentials do not travel: a process opens storage with those of its own environment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeVar

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.job import Opens
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage import Location, Store, open_store
from edl_ckpt.core.storage.interface import RangeReader

Held = TypeVar("Held")


class _File(NamedTuple):
    path: str
    size_bytes: int
    block_bytes: int
    generation: str


class FileValue(NamedTuple):
    """An opened file as a value: another process opens the same one, or none."""

    place: Location
    file: _File
    directory: str

    @classmethod
    def of(cls, place: Location, reader: RangeReader) -> Self:
        """Return the value of a file that is opened at a location."""
        return cls(place, _File(reader.path, reader.size_bytes, reader.block_bytes, reader.generation), _here())

    @property
    def path(self) -> str:
        """Return the path of the file."""
        return self.file.path

    def open(self) -> RangeReader:
        """Return the same file in this process; the first read raises LockedError where it is another one now."""
        return _LaterReader(open_store(self.place), self.file, self.directory)


@dataclass(frozen=True, slots=True)
class CheckpointValue:
    """What another process needs to read an opened checkpoint; small beside the values, and picklable."""

    version: Version
    shards: tuple[ShardIndex, ...]
    files: tuple[_File, ...]
    directory: str
    """The directory that paths are relative to."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Self:
        """Return the value of an opened checkpoint."""
        files = (_File(r.path, r.size_bytes, r.block_bytes, r.generation) for r in checkpoint.files.values())
        return cls(checkpoint.version, checkpoint.shards, tuple(files), _here())

    def open(self) -> Checkpoint:
        """Return the same checkpoint in this process; a read raises LockedError where a file is another one now."""
        store = open_store(self.version.location)
        readers = {file.path: _LaterReader(store, file, self.directory) for file in self.files}
        return Checkpoint(self.version, self.shards, readers, store)


@dataclass(eq=False)
class CheckpointHolder:
    """An opened checkpoint with what the tasks of a work keep beside it in their process."""

    checkpoint: Checkpoint

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read so far."""
        return self.checkpoint.bytes_read

    def close(self) -> None:
        """Close the checkpoint."""
        self.checkpoint.close()


@dataclass(frozen=True, slots=True)
class HeldValue(Generic[Held]):
    """A checkpoint or another source as a value, and what holds it in the process that opens it."""

    source: Opens[Any]
    hold: Callable[[Any], Held]

    def open(self) -> Held:
        """Open the source in another process."""
        return self.hold(self.source.open())


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # removed: then all paths are absolute
        return os.sep


class _LaterReader(RangeReader):
    """A file that is opened at its first read, and that must be the one that another process has opened."""

    def __init__(self, store: Store, file: _File, directory: str) -> None:
        self._store, self._directory = store, directory
        self.path, self.size_bytes, self.block_bytes, self.generation = self._file = file
        self._lock = threading.Lock()
        self._inner: RangeReader | None = None
        self.bytes_read = 0

    def _open(self) -> RangeReader:
        if self._inner is not None:
            return self._inner
        with self._lock:
            if self._inner is None:
                is_local = self._store.location.local_path is not None
                inner = self._store.open(os.path.join(self._directory, self.path) if is_local else self.path)
                inner.path = self.path  # as the command names it
                if (inner.size_bytes, inner.generation) != (self.size_bytes, self.generation):
                    inner.close()
                    raise LockedError(
                        "is another file than when it was opened first",
                        path=self.path,
                        hint="another process is writing it, or this machine sees another file system",
                    )
                self._inner = inner
            return self._inner

    def __reduce__(self) -> tuple[Callable[[FileValue], RangeReader], tuple[FileValue]]:
        """Travel as a value, from which another process makes the same reader."""
        return FileValue.open, (FileValue(self._store.location, self._file, self._directory),)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        inner = self._open()
        inner.read_into(offset, buffer)
        self.bytes_read = inner.bytes_read

    def check_unchanged(self) -> None:
        """Raise LockedError when the file has changed since it was opened; one that was not read is not looked at."""
        if self._inner is not None:
            self._inner.check_unchanged()

    def close(self) -> None:
        """Close the file if it is open."""
        if self._inner is not None:
            self._inner.close()
