"""New files outside of a version that other processes write, up to a fence (see `writers`)."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from edl_ckpt.core.commit.writers import WRITERS, StagedTargets, Writers
from edl_ckpt.core.ids import kernel_id
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import NEW, PreallocatedFile


class SharedFiles:
    """Files of this process, by their absolute paths, and records in a directory of their own below `work`."""

    def __init__(self, work: str, paths: Sequence[str]) -> None:
        name = f"{WRITERS}-{uuid.uuid4().hex}"
        self._paths = paths
        self._stage = Directory.open(work)
        self._writers = Writers(self._stage, name)
        self.targets = StagedTargets(work, tuple(paths), os.path.join(work, name), kernel_id())

    def __repr__(self) -> str:
        return f"SharedFiles({self._stage.path!r}, {len(self._paths)} files)"

    def end(self) -> None:
        """Let no other process write any more: what one may still have open becomes a file that nobody has."""
        with self._stage:
            unfinished = self._writers.end()
        for number, path in enumerate(self._paths):
            if unfinished is None or number in unfinished:
                _copy_in_place(path)


def _copy_in_place(path: str) -> None:
    """Put a copy of a file in its place."""
    old = PreallocatedFile(path, None)
    try:
        copied = PreallocatedFile(f"{path}{NEW}", old.size_bytes)
        try:
            copied.copy_of(old)
        finally:
            copied.close()
    finally:
        old.close()
    with storage_errors(path):
        os.replace(f"{path}{NEW}", path)
