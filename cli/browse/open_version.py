"""A version that screens show: its headers are read once, and its files are closed when the last reader lets go."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edl_ckpt.core import (
    Checkpoint,
    Version,
    loss_of,
    open_checkpoint,
)

if TYPE_CHECKING:
    from edl_ckpt.core import CheckpointSummary


@dataclass(slots=True)
class OpenVersion:
    """A version whose headers were read. Its files are closed when the last reader has let go of them."""

    version: Version
    checkpoint: Checkpoint
    summary: CheckpointSummary
    warnings: tuple[str, ...]
    _users: int = 1
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def reference(self, kind: str, name: str) -> str:
        """Return a table or a variable, as commands take it."""
        return f"{shlex.quote(self.version.ref)} --{kind} {shlex.quote(name)}"

    @contextmanager
    def reading(self) -> Iterator[Checkpoint]:
        """Keep the files open while the block reads them."""
        with self._lock:
            self._users += 1
        try:
            yield self.checkpoint
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Close the files unless a reader still needs them."""
        with self._lock:
            self._users -= 1
            last = not self._users
        if last:
            self.checkpoint.close()


def opened(version: Version) -> OpenVersion:
    """Read the headers of a version; of an incomplete one, those of the shards that are there. Errors as `inspect`."""
    from edl_ckpt.core import summarize

    checkpoint = open_checkpoint(version, partial=True)
    try:
        summary = summarize(version, checkpoint.shards)
    except BaseException:
        checkpoint.close()
        raise
    return OpenVersion(version, checkpoint, summary, tuple(_warnings(version, checkpoint)))


def _warnings(version: Version, checkpoint: Checkpoint) -> Iterator[str]:
    yield from loss_of(checkpoint).lines()
    if version.fault is not None:
        yield str(version.fault.error())
    if version.seal_warning:
        yield version.seal_warning
    for shard, problem in ((s, p) for s in checkpoint.shards for p in s.problems):
        yield f"shard {shard.file.ps_id}, {problem.subject}: {problem.message} ({problem.code})"
