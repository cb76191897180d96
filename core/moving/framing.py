"""The framing of files: all that is no value and no id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.moving.extents import ExtentSinks, Span
from edl_ckpt.core.moving.goal import ShardGoal
from edl_ckpt.core.storage.interface import Sink, Sinks

Crcs = Mapping[tuple[int, int], Crc32]
"""Checksums of values, by the numbers of their files and their offsets there."""


class Framing(Protocol):
    """Writes what stands between values; a move calls `write_before` before they move, and `write_after` after that."""

    files: Sinks
    """The files to which values are written."""
    crcs: Crcs
    """The checksums of variables and matrices that the mover sums."""

    def write_before(self) -> None:
        """Write what needs no value."""

    def only(self, spans: Mapping[int, Sequence[Span]]) -> None:
        """Write from now on only these bytes of the files: other processes send the rest, as a task says."""

    def take(self, crcs: Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]) -> None:
        """Take the checksums of pieces that another process has written."""

    def write_after(self) -> None:
        """Write the rest."""


class ShardFraming(Framing):
    """That of shards: heads of tables and of variables, but for those among small tables, which move along."""

    def __init__(self, goal: ShardGoal, files: Sequence[Sink]) -> None:
        self._goal = goal
        self.files: Sinks = files
        self.crcs: Crcs = {}

    def write_before(self) -> None:
        """Write all of it."""
        layouts = self._goal.layouts
        large = [name for name in layouts.names if name not in self._goal.small]
        for ps_id in range(len(layouts)):
            self.files[ps_id].write_between([*layouts.front(ps_id), *layouts.heads(ps_id, large)])

    def only(self, spans: Mapping[int, Sequence[Span]]) -> None:
        """Write only these bytes of the shards."""
        self.files = ExtentSinks(self.files, spans)

    def take(self, crcs: Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]) -> None:
        """Take nothing: shards have no checksums."""

    def write_after(self) -> None:
        """Write nothing."""
