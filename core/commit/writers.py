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
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, LockedError
from edl_ckpt.core.base.ids import kernel_id
from edl_ckpt.core.commit.meeting import TOKEN, SharedDirectory
from edl_ckpt.core.commit.sent_parts import Extent, TargetPart
from edl_ckpt.core.state.document import parse_document
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.interface import Sink, Sinks
from edl_ckpt.core.storage.parts import PartMemory

WRITERS: Final = "writers"
_ATTEMPTS: Final = 1000
_RECORD_BYTES: Final = 1 << 20


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
