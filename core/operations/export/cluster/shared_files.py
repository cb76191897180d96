"""Files of a system's checkpoint that the processes of a cluster write together, each where the plan says.

When all tasks are done a fence keeps late ones out: what one of them may still have open becomes a file without a name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from edl_ckpt.core.base.ids import kernel_id
from edl_ckpt.core.commit.sent_parts import TargetPart
from edl_ckpt.core.commit.writers import WRITERS, StagedTargets, Writers
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.interface import Sink

_NEW: Final = ".new"


class SharedFiles(AbstractContextManager["SharedFiles"]):
    """New files in a directory, and a hidden directory where their writers meet.

    When the block ends without an error, no other process can write them any more.
    """

    def __init__(
        self,
        path: str,
        meeting: str,
        names: Sequence[str],
        files: Sequence[Sink],
        others_write: Callable[[], None],
    ) -> None:
        """Take the names of files in a directory, and the files; `others_write` is called when others begin."""
        self._path, self._meeting, self._names, self._files = os.path.abspath(path), meeting, names, files
        self._others_write = others_write
        self._stage = Directory.open(meeting)
        self._writers: Writers | None = None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        with self._stage:
            if error is None and self._writers is not None:
                self._end(self._writers)

    def share(self) -> StagedTargets:
        """Return the files as a value, for other processes that write them."""
        self._writers = Writers(self._stage)
        self._others_write()
        records = os.path.join(self._meeting, WRITERS)
        return StagedTargets(self._path, tuple(self._names), records, kernel_id(), begins=True)

    def take(self, parts: Iterable[TargetPart]) -> None:
        """Take nothing: files have no parts."""

    def _end(self, writers: Writers) -> None:
        """Let no other process write: a file that one may still have open is copied, and the copy takes its place."""
        unfinished = writers.end()
        for number, (name, file) in enumerate(zip(self._names, self._files, strict=True)):
            if unfinished is None or number in unfinished:
                assert isinstance(file, PreallocatedFile)  # noqa: S101 - those of a directory are
                path = os.path.join(self._path, name)
                copied = PreallocatedFile(f"{path}{_NEW}", file.size_bytes)
                copied.copy_of(file)
                with storage_errors(path):
                    os.rename(f"{path}{_NEW}", path)
                file.become(copied)
