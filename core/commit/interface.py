"""What every writer of a version sees: sinks for its shards, and one `publish`.

A writer holds the lock of the location for the whole time: `location_lock` gives it a `LockedLocation`, and only that
opens an output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from edl_ckpt.core.format.model import ShardFile, State, Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class LockedLocation:
    """A location whose lock this process holds."""

    location: Location
    is_exclusive: bool
    """False on storage without locks: there the user was warned, and other processes may be writing."""
    settled: tuple[str, ...] = ()
    """What was finished or undone for dead commands when the lock was taken, in words."""


@dataclass(frozen=True, slots=True)
class Written:
    """A version whose shards are written, and that is to be proved before it is sealed."""

    version: Version
    staged: bool
    """True while the version is in our own staging directory, where nobody else changes it."""
    verified: bool = False
    """True when the storage has reported matching checksums of every byte of every shard, in this run."""


Prove = Callable[[Written], Seal]
"""Reads a written version back, raises an error unless it equals its source, and returns its seal."""


class VersionOutput(Protocol):
    """A version being written; a context manager that leaves nothing of what was not published."""

    def create(self, sizes: Sequence[int]) -> Sequence[Sink]:
        """Begin all shards, of these sizes; NoSpaceError when there is no room for them."""
        ...

    def publish(self, prove: Prove) -> None:
        """Make what was written visible, once it is proved."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def written_version(location: Location, directory: str, layout: Layout, number: int, sizes: Sequence[int]) -> Version:
    """Return a version that we wrote, as a listing would show it."""
    shards = tuple(
        ShardFile(i, len(sizes), f"{directory}/{layout.shard_file(i, len(sizes))}", size, 0.0)
        for i, size in enumerate(sizes)
    )
    return Version(location, number, directory, layout, State.COMPLETE, len(sizes), shards)
