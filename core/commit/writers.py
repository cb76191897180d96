"""Other processes that write staged files, and the fence behind which none of them writes any more.

A process may be stopped between its last check and its write, and its machine may send what it wrote long after. Only
the file itself can refuse that: when it is deleted. So each attempt of a task first makes a record of its own in
`writers/`, which names the files that it will open. It removes the record when they are safe and closed. The fence
removes `writers/`, which succeeds only when nothing is in it, and then no attempt can begin. What was in it until then
belongs to attempts that have not ended: their files are copied to new ones and deleted. An attempt that opens a file
looks for its record again, and writes nothing without it: the file may be the new one. So no file that is published was
ever open for writing by a process that may still write.

Where each task writes one shard, each shard has a directory of records of its own, and a fence: then it is finished
while others are written.

Of uploads they send parts; the process that began them completes or aborts them. A part has one writer, and a task that
is done twice sends the same bytes under the same number. The storage itself is the fence: once an upload was completed
or aborted, it takes no part. So no late task changes what is published, and no record of attempts is needed.

Places that all processes of a cluster must reach: each reads a token there, and writes one beside it.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError, UnsupportedError
from edl_ckpt.core.base.ids import kernel_id
from edl_ckpt.core.base.parallel import Meeting, Resource
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.storage import Location, ObjectStore, open_objects
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.interface import PartsWriter, SentPart, Sink, Sinks, has_parts
from edl_ckpt.core.storage.parts import PartMemory, least_part

TOKEN: Final = "token-"  # noqa: S105 - no secret
"""How the names of tokens begin."""
_TOKEN_BYTES: Final = 1 << 10


@dataclass(frozen=True, slots=True)
class SharedDirectory(Meeting):
    """A directory of a file system, by its absolute path."""

    path: str
    is_directory: ClassVar[bool] = True
    hint: ClassVar[str] = "mount the volume at the same path on every worker, for a user who may write there"

    def read(self, name: str) -> bytes:
        """Return a token; OSError when this process sees none."""
        with open(os.path.join(self.path, name), "rb") as file:
            return file.read(_TOKEN_BYTES)

    def write(self, name: str, data: bytes) -> None:
        """Write a token."""
        path = os.path.join(self.path, name)
        with storage_errors(path), open(path, "xb") as file:
            file.write(data)

    def remove(self, name: str) -> None:
        """Remove a token; a missing one is no error."""
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))


@dataclass(frozen=True, slots=True)
class SharedPrefix(Meeting):
    """A prefix below a location on storage without directories."""

    location: Location
    relative: str
    is_directory: ClassVar[bool] = False
    hint: ClassVar[str] = "workers take credentials from their own environment, as AWS_PROFILE or AWS_ACCESS_KEY_ID"

    @property
    def _store(self) -> ObjectStore:
        return open_objects(self.location)

    @property
    def path(self) -> str:
        """Return its full URL."""
        return self._store.path(self.relative)

    def read(self, name: str) -> bytes:
        """Return a token; NotFoundError when this process sees none."""
        data = self._store.read_small(f"{self.relative}/{name}")
        if data is None:
            raise NotFoundError("no such object", path=f"{self.path}/{name}")
        return data

    def write(self, name: str, data: bytes) -> None:
        """Write a token."""
        self._store.write_small(f"{self.relative}/{name}", data)

    def remove(self, name: str) -> None:
        """Remove a token; a missing one is no error."""
        self._store.remove(f"{self.relative}/{name}")


WRITERS: Final = "writers"
_ATTEMPTS: Final = 1000
_RECORD_BYTES: Final = 1 << 20
Source = TypeVar("Source", bound=Resource)


class Extent(NamedTuple):
    """The parts of one target that one task sends."""

    target: int
    edges: tuple[int, ...]
    """Where each part begins in the target, and where the last one ends."""
    first: int
    """The number of the first part."""


def even_edges(start: int, end: int, least: int) -> list[int]:
    """Return where parts end that are of one size, of `least` bytes at least unless all together have fewer.

    >>> even_edges(10, 22, 5), even_edges(10, 13, 5)
    ([16, 22], [13])
    """
    count = max((end - start) // least, 1)
    return [start + (end - start) * number // count for number in range(1, count + 1)]


class TargetPart(NamedTuple):
    """A part that was sent, with the number of its target."""

    target: int
    part: SentPart


class SharedUpload(NamedTuple):
    """An upload as other processes know it."""

    relative: str
    size_bytes: int
    upload_id: str


@dataclass(frozen=True, slots=True)
class StagedTargets:
    """Staged files as a value, for the processes that write them."""

    directory: str
    names: tuple[str, ...]
    writers: str
    kernel: str
    """The kernel of the process that publishes them: what others write there, it flushes itself."""
    begins: bool = False
    """That process begins to flush while others write: a flush may wait for the disk, and no task should."""

    @property
    def place(self) -> SharedDirectory:
        """Return where processes show that they can write."""
        return SharedDirectory(self.writers)

    def only(self, number: int) -> StagedTargets:
        """Return one of the files that are shared apart, with the records of its own."""
        return replace(self, writers=f"{self.writers}-{number}")

    @contextmanager
    def opened(
        self,
        numbers: Collection[int],
        extents: Collection[Extent] = (),  # noqa: ARG002 - as `SharedUploads`
        memory: PartMemory | None = None,  # noqa: ARG002
    ) -> Iterator[_Files]:
        """Announce an attempt, and open those of some files that it writes; at the end they are safe and closed.

        Raises LockedError when the files are already proved or gone: then the task is not needed any more.
        """
        record = os.path.join(self.writers, uuid.uuid4().hex)
        try:
            with storage_errors(record):
                fd = os.open(record, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
                with os.fdopen(fd, "w", encoding="utf-8") as file:
                    json.dump({**_process(), "targets": sorted(numbers)}, file)
        except FileNotFoundError:
            raise _over(self.directory) from None
        files = _Files(self, numbers, record)
        try:
            yield files
            if self.kernel != kernel_id() or not self.begins:
                files.flush(wait=self.kernel != kernel_id())
        finally:
            files.close()
        with storage_errors(record):
            os.unlink(record)


class _Files(Sinks):
    """Staged files, each opened when it is written first."""

    sent: Sequence[TargetPart] = ()
    """Nothing: files have no parts."""

    def __init__(self, targets: StagedTargets, numbers: Collection[int], record: str) -> None:
        self._targets, self._numbers, self._record = targets, frozenset(numbers), record
        self._opened: dict[int, PreallocatedFile] = {}

    def __getitem__(self, index: int) -> Sink:
        assert index in self._numbers  # noqa: S101 - the record names it
        if index not in self._opened:
            path = os.path.join(self._targets.directory, self._targets.names[index])
            file = PreallocatedFile(path, None)
            try:
                os.close(os.open(self._record, os.O_RDONLY | os.O_CLOEXEC))  # a file server is asked; a cache is not
            except OSError:
                file.close()
                raise _over(self._targets.directory) from None
            self._opened[index] = file
        return self._opened[index]

    def flush(self, *, wait: bool) -> None:
        """Bring everything to the storage, or begin to: other machines do not see what this one has not sent."""
        for file in self._opened.values():
            if wait:
                file.flush()
            else:
                file.start_flush(0, 0)

    def close(self) -> None:
        """Close all files."""
        while self._opened:
            self._opened.popitem()[1].close()


def _over(directory: str) -> LockedError:
    return LockedError("the work that this task belongs to is over", path=directory)


class Writers:
    """Records in a staging directory, in the process that publishes it."""

    def __init__(self, stage: Directory, name: str = WRITERS, *, make: bool = True) -> None:
        self._stage, self._name = stage, name
        if make:
            stage.make(name).close()

    def end(self) -> set[int] | None:
        """Let no attempt begin any more; return the targets of those that have not ended, None for all targets."""
        found: set[int] = set()
        unknown = False
        for _ in range(_ATTEMPTS):
            with self._stage.enter(self._name) as records:
                for name in records.names():
                    if name.startswith(TOKEN):  # of a worker that was gone when tokens were removed
                        records.unlink(name)
                        continue
                    record = _read(records, name)
                    if not _has_ended(record):
                        targets = record.get("targets")
                        unknown |= not isinstance(targets, list)
                        found.update(targets if isinstance(targets, list) else ())
                    records.unlink(name)
            if self._stage.rmdir(self._name):
                return None if unknown else found
        raise EdlCkptError("abandoned tasks did not end", path=self._stage.join(self._name))


def _read(records: Directory, name: str) -> dict[str, Any]:
    """Return a record; {} for one that is gone, or that its process was about to write."""
    try:
        return parse_document(records.read(name, _RECORD_BYTES) or b"{}", records.join(name))
    except Exception:  # noqa: BLE001 - whatever it is, nothing can be said of it
        return {}


def _process() -> dict[str, Any]:
    """Return what identifies this process: its number alone is used again."""
    return {"kernel": kernel_id(), "pid": os.getpid(), "started": _started(os.getpid())}


def _has_ended(record: dict[str, Any]) -> bool:
    """Say whether the process of a record is surely gone: one of this machine, of which nothing waits to be sent."""
    pid, started = record.get("pid"), record.get("started")
    if record.get("kernel") != kernel_id() or not isinstance(pid, int) or not started:
        return False
    return bool(_started(pid) != started)


def _started(pid: int) -> str:
    """Return when a process was started, in ticks of its kernel; '' when there is none."""
    with suppress(OSError, IndexError), open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[19].decode()
    return ""


@dataclass(frozen=True, slots=True)
class SharedUploads:
    """The uploads of a version as a value, by the numbers of their targets; those that are finished are missing."""

    location: Location
    uploads: Mapping[int, SharedUpload]
    part_bytes: int
    """The least that the storage takes for each part but the last."""

    def __repr__(self) -> str:
        return f"<SharedUploads of {self.location.url}>"

    def least_part(self, target: int) -> int:
        """Return how large the parts of a target must be at least, so that there are not too many."""
        return least_part(self.uploads[target].size_bytes, self.part_bytes)

    def only(self, number: int) -> SharedUploads:  # noqa: ARG002 - each upload has an end of its own
        """Return the same: nothing keeps one upload from being finished while others are sent."""
        return self

    @contextmanager
    def opened(
        self,
        numbers: Collection[int],  # noqa: ARG002 - as `StagedTargets`
        extents: Collection[Extent],
        memory: PartMemory,
    ) -> Iterator[SentFiles]:
        """Yield writers of the parts of some targets; at the end all parts are sent, and the writers list them.

        Raises LockedError when an upload was completed or aborted: then the task is not needed any more.
        """
        store = open_objects(self.location)
        if not has_parts(store):
            raise UnsupportedError("this storage takes no parts of objects", path=self.location.url)
        writers: dict[int, PartsWriter] = {}
        for target, edges, first in extents:
            upload = self.uploads[target]
            writers[target] = store.parts_of(upload.relative, upload.upload_id, edges=edges, first=first, memory=memory)
        files = SentFiles(writers)
        yield files
        files.sent = [TargetPart(target, part) for target, writer in writers.items() for part in writer.sent()]


class SentFiles(Sinks):
    """The targets of a task, by their numbers; bytes for any other target are dropped."""

    def __init__(self, writers: Mapping[int, PartsWriter]) -> None:
        self._writers = writers
        self.sent: list[TargetPart] = []
        """The parts, once they are sent."""

    def __getitem__(self, index: int) -> Sink:
        return self._writers.get(index, _DROPPED)


class _Dropped:
    """Stands for a target that another task writes."""

    path = ""

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Drop the bytes."""

    def write_between(self, between: object) -> None:
        """Drop the bytes."""


_DROPPED = _Dropped()


class Sending(Generic[Source]):
    """A source, opened, and the memory for the parts that a process fills and sends."""

    def __init__(self, source: Source, memory_bytes: int) -> None:
        self.source = source
        self.memory = PartMemory(memory_bytes)

    @property
    def bytes_read(self) -> int:
        """Return how many bytes of the source were read so far."""
        return self.source.bytes_read

    def close(self) -> None:
        """Stop what is still being sent, and close the source."""
        self.memory.close()
        self.source.close()
