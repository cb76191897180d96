"""A move in legs: pieces that follow each other, whose sums are noted together once all of them have moved.

A leg takes about a second, and the next one begins before it has ended, so no thread waits. On a cluster, tasks stand
for pieces. A later run of the same move skips what is noted, and adds its sums to its own. The sums of many small
variables take more room than is worth while: legs with such are not noted, and move again.
"""

from __future__ import annotations

import json
import struct
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import SILENT, Counted, Reporter
from edl_ckpt.core.commit.progress import Progress
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.moving.move import Movable, Mover, PieceInTurn, Turns
from edl_ckpt.core.moving.tasks import MoveDone
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.stored_sums import NotedSum, StoredSums

Some = TypeVar("Some")
Buffer: TypeAlias = bytes | memoryview
LEG_SECONDS: float = 1.0
"""How long pieces of one leg are begun. Tests set it."""
_MOST_SHARE: Final = 32
"""A leg is noted where its sums take at most this part of the bytes that it has moved."""
_LEAST_BYTES: Final = 1 << 20
"""Sums of so many bytes are always noted."""
_STORED_BYTES: Final = 40
"""About the bytes of a checksum in a record."""
_LENGTH: Final = struct.Struct("<I")

_NOT_A_LEG: Final = (ValueError, KeyError, TypeError, IndexError, struct.error)


class UnfitProgressError(EdlCkptError):
    """What an interrupted run has left cannot be used: a disk has lost some of it, or the source has changed."""


class LegSums(NamedTuple):
    """What the pieces of a leg have summed: pieces `first` to `end` of the move."""

    first: int
    end: int
    size_bytes: int
    """The bytes of values that they have moved."""
    sketch: ContentSketch
    tensors: ContentSketch
    overflowed: int
    stored: list[NotedSum]
    """What was summed of values that have checksums in the source's files."""

    @property
    def sum_bytes(self) -> int:
        """Return about how many bytes its record has."""
        return sum(map(_bytes_of, (self.sketch, self.tensors))) + _STORED_BYTES * len(self.stored)

    def to_record(self) -> list[Buffer]:
        """Return it as a record has it, in parts; `leg_of` is the inverse."""
        arrays: list[Buffer] = []
        head = {
            "pieces": [self.first, self.end],
            "bytes": self.size_bytes,
            "overflowed": self.overflowed,
            "stored": self.stored,
            "sketch": _listed(self.sketch, arrays),
            "tensors": _listed(self.tensors, arrays),
        }
        text = json.dumps(head).encode()
        return [_LENGTH.pack(len(text)) + text, *arrays]


def _bytes_of(sketch: ContentSketch) -> int:
    sums = (*sketch.variables.values(), *sketch.tables.values())
    return sum(own.nbytes for own in sums) + sum(map(len, sketch.whole.values()))


def _listed(sketch: ContentSketch, arrays: list[Buffer]) -> dict[str, list[tuple[str, int]]]:
    """Return the names in a sketch with the bytes of their sums, which are added to `arrays`."""
    listed: dict[str, list[tuple[str, int]]] = {}
    for kind, sums in (("variables", sketch.variables), ("tables", sketch.tables)):
        listed[kind] = [(name, own.nbytes) for name, own in sums.items()]
        arrays += (np.ascontiguousarray(own, "<u4").reshape(-1).data for own in sums.values())
    listed["whole"] = [(name, len(data)) for name, data in sketch.whole.items()]
    arrays += sketch.whole.values()
    return listed


def leg_of(record: bytes) -> LegSums:
    """Return the leg of a record; ValueError, KeyError or TypeError for another record."""
    (length,) = _LENGTH.unpack_from(record)
    head = json.loads(record[_LENGTH.size : _LENGTH.size + length])
    rest = memoryview(record)[_LENGTH.size + length :]
    sketch, rest = _sketch_of(head["sketch"], rest)
    tensors, rest = _sketch_of(head["tensors"], rest)
    if len(rest):
        raise ValueError("a leg has more bytes than sums")
    first, end = head["pieces"]
    stored = [NotedSum(*noted) for noted in head["stored"]]
    return LegSums(first, end, head["bytes"], sketch, tensors, head["overflowed"], stored)


def _sketch_of(listed: dict[str, Any], data: memoryview) -> tuple[ContentSketch, memoryview]:
    """Return a sketch, and the bytes that follow its sums."""
    sketch = ContentSketch()
    for kind, sums in (("variables", sketch.variables), ("tables", sketch.tables)):
        for name, size_bytes in listed[kind]:
            sums[name] = np.frombuffer(data[:size_bytes], "<u4").astype(np.uint32).reshape(bulk.LIMBS, -1)
            data = data[size_bytes:]
    for name, size_bytes in listed["whole"]:
        sketch.whole[name] = bytes(data[:size_bytes])
        data = data[size_bytes:]
    return sketch, data


class _Leg:
    """A leg while its pieces move."""

    mover: Mover

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.size_bytes = 0
        self.stored: list[NotedSum] = []
        self.began = time.monotonic()
        self.open_pieces = 1
        """Those under way, and one more until the last one has begun."""

    def sums(self) -> LegSums:
        """Return what all pieces have summed."""
        mover = self.mover
        sums = mover.sketch, mover.tensors, mover.overflowed
        return LegSums(self.first, self.end, self.size_bytes, *sums, self.stored)


class PieceOfLeg(NamedTuple):
    """A piece and the leg that it belongs to; without one, its values have moved, and only its turn is taken."""

    piece: Movable
    leg: _Leg | None


class _NotedLegs:
    """The legs of one run of a move: the sums of all of them, and of those that an interrupted run has noted."""

    def __init__(self, progress: Progress, stored: StoredSums | None, reporter: Reporter) -> None:
        """Take where legs are noted, and what is summed of values that have checksums in the source's files."""
        self._progress, self._stored, self._reporter = progress, stored, reporter
        self._lock = threading.Lock()
        self._done: list[range] = []
        self.sketch = ContentSketch()
        self.tensors = ContentSketch()
        self.overflowed = 0
        self.resumed_bytes = 0
        """The bytes of values that an interrupted run had moved."""
        for record in progress.earlier():
            try:
                self._resume(leg_of(record))
            except _NOT_A_LEG:  # the next leg takes its place
                break
        self._done.sort(key=attrgetter("start"))
        if self.resumed_bytes:
            reporter.advance(self.resumed_bytes)

    def _numbered(self, pieces: Iterable[Some]) -> Iterator[tuple[int, Some]]:
        """Yield pieces with their numbers; UnfitProgressError at the end if a note names more than there are."""
        count = 0
        for number, piece in enumerate(pieces):
            count = number + 1
            yield number, piece
        if any(noted.stop > count for noted in self._done):
            raise UnfitProgressError("the notes of an interrupted run are of other pieces")

    def _has_moved(self, number: int) -> bool:
        """Say whether an interrupted run has moved a piece; a note may have any numbers, so they are not spread out."""
        place = bisect_right(self._done, number, key=attrgetter("start")) - 1
        return place >= 0 and number in self._done[place]

    def _resume(self, leg: LegSums) -> None:
        """Take a leg of an interrupted run."""
        if self._stored is not None:
            self._stored.resume(leg.stored)
        self._done.append(range(leg.first, leg.end))
        self.resumed_bytes += leg.size_bytes
        self._add(leg)

    def _add(self, leg: LegSums) -> None:
        self.sketch.add(leg.sketch)
        self.tensors.add(leg.tensors)
        with self._lock:
            self.overflowed += leg.overflowed

    def _note(self, leg: LegSums) -> None:
        """Note a leg that has ended, unless its sums take too much room, and add it.

        It is noted first: other legs are added to the same arrays later.
        """
        if leg.sum_bytes <= max(leg.size_bytes // _MOST_SHARE, _LEAST_BYTES):
            self._progress.note(leg.to_record())
        self._add(leg)


class TaskLegs(_NotedLegs):
    """The legs of a move by other processes: tasks whose results follow each other."""

    def __init__(self, progress: Progress, reporter: Reporter) -> None:
        super().__init__(progress, None, reporter)
        self._waiting: deque[tuple[int, int]] = deque()
        """The number of each task that was handed out, and its bytes."""
        self._began = time.monotonic()
        self._leg: LegSums | None = None

    def due(self, tasks: Iterable[tuple[Some, int]]) -> Iterator[Some]:
        """Yield the tasks, given with their bytes, that have not been done yet; results must come in their order."""
        for number, (task, size_bytes) in self._numbered(tasks):
            if not self._has_moved(number):
                self._waiting.append((number, size_bytes))
                yield task

    def take(self, done: MoveDone) -> None:
        """Take the result of the next task."""
        number, size_bytes = self._waiting.popleft()
        leg = self._leg
        if leg is not None and (leg.end != number or time.monotonic() - self._began >= LEG_SECONDS):
            self._note(leg)
            leg = None
        if leg is None:
            self._began = time.monotonic()
            leg = LegSums(number, number, 0, ContentSketch(), ContentSketch(), 0, [])
        leg.sketch.add(done.sketch)
        leg.tensors.add(done.tensors)
        overflowed = leg.overflowed + done.overflowed
        self._leg = leg._replace(end=number + 1, size_bytes=leg.size_bytes + size_bytes, overflowed=overflowed)

    def end(self) -> None:
        """Note the last leg."""
        if self._leg is not None:
            self._note(self._leg)
            self._leg = None


class Legs(_NotedLegs):
    """The legs of a move by threads."""

    def __init__(
        self, progress: Progress, new_mover: Callable[[Reporter], Mover], stored: StoredSums | None, reporter: Reporter
    ) -> None:
        """Take what makes the mover of each leg, too."""
        super().__init__(progress, stored, reporter)
        self._new_mover = new_mover
        self._again = new_mover(SILENT)

    def pieces(self, pieces: Iterable[Movable]) -> Iterator[PieceOfLeg]:
        """Yield the pieces that have not moved yet, in their order, and those whose turn the others wait for."""
        leg: _Leg | None = None
        for number, piece, values in self._due(pieces):
            if not values:
                yield PieceOfLeg(piece, None)
                continue
            if leg is not None and (leg.end != number or time.monotonic() - leg.began >= LEG_SECONDS):
                self._end_piece(leg)
                leg = None
            if leg is None:
                leg = self._begin(number)
            with self._lock:
                leg.end, leg.open_pieces = number + 1, leg.open_pieces + 1
            yield PieceOfLeg(piece, leg)
        if leg is not None:
            self._end_piece(leg)

    def _due(self, pieces: Iterable[Movable]) -> Iterator[tuple[int, Movable, bool]]:
        """Yield the numbers of pieces, the pieces, and whether their values must move: all but those that are done.

        Where a piece of a stretch goes follows from those before it. So of a stretch that is done in part, all pieces
        are yielded.
        """
        if not self._done:
            yield from ((number, piece, True) for number, piece in enumerate(pieces))
            return
        for turns, run in groupby(self._numbered(pieces), key=lambda numbered: _turns_of(numbered[1])):
            if turns is None:
                yield from ((number, piece, True) for number, piece in run if not self._has_moved(number))
                continue
            stretch = list(run)
            due = [not self._has_moved(number) for number, _ in stretch]
            if any(due):
                yield from ((number, piece, is_due) for (number, piece), is_due in zip(stretch, due, strict=True))

    def _begin(self, first: int) -> _Leg:
        leg = _Leg(first)
        leg.mover = self._new_mover(Counted(partial(self._advance, leg)))
        return leg

    def _advance(self, leg: _Leg, size_bytes: int) -> None:
        with self._lock:
            leg.size_bytes += size_bytes
        self._reporter.advance(size_bytes)

    def move(self, task: PieceOfLeg) -> None:
        """Move a piece; with the last one of a leg, note the leg."""
        leg = task.leg
        if leg is None:
            self._again.do(task.piece, values=False)
            return
        stored: list[NotedSum] = []
        with self._stored.noted(stored) if self._stored is not None else nullcontext():
            leg.mover.do(task.piece)
        with self._lock:
            leg.stored += stored
        self._end_piece(leg)

    def _end_piece(self, leg: _Leg) -> None:
        with self._lock:
            leg.open_pieces -= 1
            if leg.open_pieces:
                return
        self._note(leg.sums())


def _turns_of(piece: Movable) -> Turns | None:
    return piece.turns if isinstance(piece, PieceInTurn) else None
