"""What every writer of a version sees: sinks for its shards, and one `publish`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from edl_ckpt.core.format.model import ShardFile, State, Version
from edl_ckpt.core.format.names import Layout
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.storage.location import Location

Prove = Callable[[Version, bool], Seal]
"""Reads back a version that was written, raises when it is not what it must be, and returns its seal.

It is told whether the version is still staged: then nobody else touches it.
"""


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
