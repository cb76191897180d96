"""The checksums that files have of their own values, compared with the bytes that are read of them on their way out.

Reads are summed as they come, in any order and from several threads; sums of pieces are combined. What was not read of
a value that went out is read at the end. So nothing that is written from damaged bytes gets a new checksum unseen.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from edl_ckpt.core.kernel.checksums import CRCS, combined_crc32
from edl_ckpt.core.model.tables import Extent, ShardIndex, StoredSum
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:
    from edl_ckpt.core.reading.reader import Checkpoint

STEP_BYTES: Final = 1 << 20
_LEAST_BYTES: Final = 64 << 10
"""Smaller pieces from the middle of a value are not summed on their way: they are read again, many at a time."""
_MOST_PIECES: Final = 1 << 10
"""With more pieces of one value, those that follow each other are joined."""


SOME_NAMES: Final = 8
"""So many names are kept of what was not compared."""


@dataclass(frozen=True, slots=True)
class SumsCompared:
    """How many checksums of the files were compared, and how many are of what did not go out."""

    compared: int = 0
    not_compared: int = 0
    names: tuple[str, ...] = ()
    """Some of those that were not compared."""

    def __add__(self, other: SumsCompared) -> SumsCompared:
        """Return the counts of both, and some names."""
        names = tuple(dict.fromkeys((*self.names, *other.names)))[:SOME_NAMES]
        return SumsCompared(self.compared + other.compared, self.not_compared + other.not_compared, names)


NO_SUMS: Final = SumsCompared()


class NotedSum(NamedTuple):
    """The checksum of bytes [start, end) of a value, by its number; of no bytes, it was read without being summed."""

    value: int
    start: int
    end: int
    crc: int


class SumPart(NamedTuple):
    """Bytes [start, end) of a value, counted within it: a checksum by the numbers of its shard and in that."""

    shard: int
    number: int
    start: int
    end: int


class _Piece(NamedTuple):
    start: int
    end: int
    crc: int


_NOTHING: Final = _Piece(0, 0, 0)


@dataclass(slots=True, eq=False)
class _Value:
    """A value with a checksum, of which some pieces were summed: in their order, and none over another."""

    at: int
    """Its number among all values."""
    shard: int
    number: int
    stored: StoredSum
    size_bytes: int
    pieces: list[_Piece] = field(default_factory=list)
    is_touched: bool = False

    def gaps(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of [start, end) that no piece has."""
        for piece in self.pieces[max(bisect_right(self.pieces, (start, end, 0)) - 1, 0) :]:
            if piece.start >= end:
                break
            if start < piece.start:
                yield start, piece.start
            start = max(start, piece.end)
        if start < end:
            yield start, end

    def put(self, piece: _Piece) -> bool:
        """Add a piece, unless one that another thread has added meanwhile has some of its bytes; say whether."""
        at = bisect_left(self.pieces, piece)
        before = self.pieces[at - 1] if at else None
        if before is not None and before.end > piece.start:
            return False
        if at < len(self.pieces) and self.pieces[at].start < piece.end:
            return False
        if before is not None and before.end == piece.start:
            self.pieces[at - 1] = self._joined(before, piece)
        else:
            self.pieces.insert(at, piece)
        if len(self.pieces) > _MOST_PIECES:
            self._join()
        return True

    def _joined(self, one: _Piece, other: _Piece) -> _Piece:
        crc = combined_crc32(one.crc, other.crc, other.end - other.start, self.stored.kind)
        return _Piece(one.start, other.end, crc)

    def _join(self) -> None:
        joined = self.pieces[:1]
        for piece in self.pieces[1:]:
            if joined[-1].end == piece.start:
                joined[-1] = self._joined(joined[-1], piece)
            else:
                joined.append(piece)
        self.pieces = joined

    def crc(self) -> int:
        """Return the checksum of all bytes, which are all there."""
        self._join()
        return self.pieces[0].crc if self.pieces else 0


class _Place(NamedTuple):
    """An extent of a value: bytes [start, end) of a file, which begin at byte `at` of the value."""

    start: int
    end: int
    at: int
    value: _Value


class StoredSums:
    """What was summed of the values of a checkpoint that have checksums; several threads add bytes."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self.values: list[_Value] = []
        by_path: dict[str, list[_Place]] = defaultdict(list)
        for at, shard in enumerate(checkpoint.shards):
            for number, stored in enumerate(shard.sums):
                size_bytes = sum(extent.size_bytes for extent in stored.extents)
                value = _Value(len(self.values), at, number, stored, size_bytes)
                value.is_touched = not value.size_bytes
                self.values.append(value)
                begin = 0
                for extent in stored.extents:
                    by_path[shard.path(extent)].append(_Place(extent.start, extent.end, begin, value))
                    begin += extent.size_bytes
        self._places = {path: sorted(places, key=lambda place: place.start) for path, places in by_path.items()}
        self._starts = {path: [place.start for place in places] for path, places in self._places.items()}
        self._lock = threading.Lock()
        self._noting = threading.local()

    @contextmanager
    def noted(self, sums: list[NotedSum]) -> Iterator[None]:
        """Add to a list everything that this thread sums in the block, for `resume`."""
        self._noting.sums = sums
        try:
            yield
        finally:
            del self._noting.sums

    def resume(self, sums: Iterable[NotedSum]) -> None:
        """Take what an interrupted run has summed of the same values."""
        for noted in sums:
            value = self.values[noted.value]
            value.is_touched = True
            if noted.start < noted.end:
                value.put(_Piece(noted.start, noted.end, noted.crc))

    def _note(self, value: _Value, piece: _Piece) -> None:
        sums = getattr(self._noting, "sums", None)
        if sums is not None:
            sums.append(NotedSum(value.at, *piece))

    def over(self, readers: Mapping[str, RangeReader]) -> dict[str, RangeReader]:
        """Return readers that add what they read; those of files without checksums stay as they are."""
        return {path: SummedReader(r, self) if path in self._places else r for path, r in readers.items()}

    def restart(self) -> None:
        """Forget what was read for a plan: what goes out is read from now on."""
        for value in self.values:
            value.pieces, value.is_touched = [], not value.size_bytes

    def add(self, path: str, offset: int, data: memoryview) -> None:
        """Add bytes of a file that were read, in any order; those that came before are passed over."""
        for place in self._among(path, offset, offset + data.nbytes):
            value, first = place.value, max(offset, place.start)
            shift = place.at - place.start  # from an offset in the file to a place in the value
            start, end = first + shift, min(offset + data.nbytes, place.end) + shift
            with self._lock:
                value.is_touched = True
                gaps = list(value.gaps(start, end))
            self._note(value, _NOTHING)
            for low, high in gaps:
                if high - low < _LEAST_BYTES and low and high < value.size_bytes:
                    continue
                part = data[low - shift - offset : high - shift - offset]
                piece = _Piece(low, high, CRCS[value.stored.kind].of(part, 0))
                with self._lock:
                    is_new = value.put(piece)
                if is_new:
                    self._note(value, piece)

    def touch(self, path: str, start: int, end: int) -> None:
        """Note that bytes of [start, end) of a file were read without being added."""
        for place in self._among(path, start, end):
            place.value.is_touched = True
            self._note(place.value, _NOTHING)

    def _among(self, path: str, start: int, end: int) -> Iterator[_Place]:
        """Yield the extents that have some of the bytes [start, end) of a file."""
        places = self._places.get(path, [])
        for number in range(max(bisect_right(self._starts.get(path, []), start) - 1, 0), len(places)):
            place = places[number]
            if place.start >= end:
                return
            if start < place.end:
                yield place

    def rest(self, *, whole: bool, step_bytes: int = STEP_BYTES) -> Iterator[SumPart]:
        """Yield what must still be read: of values that were read in part, or of all, in steps."""
        for value in self.values:
            for low, high in list(value.gaps(0, value.size_bytes)) if whole or value.is_touched else ():
                for start in range(low, high, step_bytes):
                    yield SumPart(value.shard, value.number, start, min(start + step_bytes, high))

    def take(self, parts: Iterable[SumPart], sums: Iterable[int]) -> None:
        """Take the checksums of parts that were read for that."""
        values = {(value.shard, value.number): value for value in self.values}
        for part, crc in zip(parts, sums, strict=True):
            value = values[part.shard, part.number]
            value.is_touched = True
            value.put(_Piece(part.start, part.end, crc))

    def compared(self) -> SumsCompared:
        """Return how many values have all their bytes summed, and how many have none."""
        left = [value.stored.subject for value in self.values if not value.is_touched]
        return SumsCompared(len(self.values) - len(left), len(left), tuple(dict.fromkeys(left))[:SOME_NAMES])

    def wrong(self) -> Iterator[tuple[int, StoredSum, int]]:
        """Yield the number of the shard, the checksum and what the bytes have, where these differ."""
        for value in self.values:
            if value.is_touched and (crc := value.crc()) != value.stored.value:
                yield value.shard, value.stored, crc


class SummedReader(RangeReader):
    """A file whose bytes are added to sums as they are read."""

    def __init__(self, inner: RangeReader, sums: StoredSums) -> None:
        self.inner, self._sums = inner, sums
        self.path, self.size_bytes, self.block_bytes = inner.path, inner.size_bytes, inner.block_bytes
        self.generation, self.mark, self.bytes_read = inner.generation, inner.mark, inner.bytes_read

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        self.inner.read_into(offset, buffer)
        self.bytes_read = self.inner.bytes_read
        self._sums.add(self.path, offset, buffer.cast("B"))

    def unsummed(self, start: int, end: int) -> RangeReader:
        """Return what reads here and there in [start, end) without adding: its values are read again at the end."""
        self._sums.touch(self.path, start, end)
        return self.inner

    def check_unchanged(self) -> None:
        """Raise LockedError when the file has changed since it was opened."""
        self.inner.check_unchanged()

    def close(self) -> None:
        """Close the file."""
        self.inner.close()


def sum_part(checkpoint: Checkpoint, part: SumPart) -> int:
    """Return the checksum of a part of a value, read from its files."""
    shard = checkpoint.shards[part.shard]
    stored = shard.sums[part.number]
    crc, at = 0, 0
    for extent in stored.extents:
        start, end = max(part.start - at, 0), min(part.end - at, extent.size_bytes)
        if start < end:
            for data in _pieces(checkpoint, shard, Extent(extent.start + start, extent.start + end, file=extent.file)):
                crc = CRCS[stored.kind].of(data, crc)
        at += extent.size_bytes
    return crc


def stored_sum_now(checkpoint: Checkpoint, shard: int, number: int) -> int:
    """Return the checksum that the bytes of a value have when they are read now."""
    stored = checkpoint.shards[shard].sums[number]
    return sum_part(checkpoint, SumPart(shard, number, 0, sum(extent.size_bytes for extent in stored.extents)))


def _pieces(checkpoint: Checkpoint, shard: ShardIndex, extent: Extent) -> Iterator[memoryview]:
    buffer = np.empty(min(STEP_BYTES, extent.size_bytes), np.uint8).data
    reader = checkpoint.reader(shard, extent)
    reader = reader.inner if isinstance(reader, SummedReader) else reader
    for start in range(extent.start, extent.end, STEP_BYTES):
        piece = buffer[: min(extent.end - start, STEP_BYTES)]
        reader.read_into(start, piece)
        yield piece
