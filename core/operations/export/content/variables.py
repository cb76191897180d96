"""Dense variables on their way out, read in the order of the shards: neighbours in one read, large ones in pieces.

Small ones are written together: an output has them in the order of their names, which is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.packing import near, together
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import DenseEntry, ShardIndex
from edl_ckpt.core.operations.export.output.places import Place, reads_back_differently
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.reader import Checkpoint

SPAN_BYTES: Final = 4 << 20
_SMALL_BYTES: Final = bulk.CHUNK_BYTES
"""The size up to which a variable is small: a write and a read of its own would cost more than its bytes."""
_TOGETHER_BYTES: Final = 8 << 20
"""Bytes of small variables that are written together."""
_GAP_BYTES: Final = 4096
"""Bytes between two variables that are read along: the head of the second is among them."""
Convert = Callable[[bulk.U8, DType | None], bulk.U8]
"""Returns bytes of elements of some dtype in the dtype that is written."""


class Piece(NamedTuple):
    """Bytes [start, start + size) of the values of a dense variable."""

    entry: DenseEntry
    start: int
    size: int

    @property
    def extent(self) -> tuple[int, int]:
        """Return where the bytes begin and end in the file."""
        start = self.entry.values.start + self.start
        return start, start + self.size


@dataclass(frozen=True, slots=True)
class Span:
    """Pieces of variables that lie close together in a shard, in their order there."""

    shard: ShardIndex
    pieces: tuple[Piece, ...]
    start: int
    end: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the values."""
        return sum(piece.size for piece in self.pieces)


def spans(checkpoint: Checkpoint, names: Container[str] | None = None) -> Iterator[Span]:
    """Yield all dense variables, or those with some names; an empty one is an empty piece."""
    for shard in checkpoint.shards:
        wanted = (entry for entry in shard.variables if names is None or entry.name in names)
        ordered = sorted(wanted, key=lambda entry: (entry.values.file, entry.values.start))
        for _, of_file in groupby(ordered, key=lambda entry: entry.values.file):
            starts = ((entry, start) for entry in of_file for start in range(0, max(entry.size_bytes, 1), SPAN_BYTES))
            pieces = (Piece(entry, start, min(SPAN_BYTES, entry.size_bytes - start)) for entry, start in starts)
            for start, end, close in near(pieces, lambda piece: piece.extent, _GAP_BYTES, SPAN_BYTES):
                yield Span(shard, tuple(close), start, end)


def read_span(checkpoint: Checkpoint, span: Span, sketch: ContentSketch) -> list[tuple[Piece, bulk.U8]]:
    """Return the pieces of a span with their bytes, which are added to a sketch."""
    data = np.empty(span.end - span.start, np.uint8)
    if len(data):
        checkpoint.reader(span.shard, span.pieces[0].entry.values).read_into(span.start, data.data)
    pieces = [(piece, data[piece.extent[0] - span.start :][: piece.size]) for piece in span.pieces]
    for piece, values in pieces:
        sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, values)
    return pieces


class SmallVariable(NamedTuple):
    """A whole variable to be written: its place, and its bytes as they are written."""

    place: Place
    name: str
    data: bytes


def write_piece(piece: Piece, data: bulk.U8, places: Mapping[str, Place], convert: Convert) -> SmallVariable | None:
    """Write a piece if its variable has a place, and check what the file then has; return a small variable instead."""
    place = places.get(piece.entry.name)
    if place is None:
        return None
    written = convert(data, piece.entry.dtype)
    if piece.entry.size_bytes <= _SMALL_BYTES:
        return SmallVariable(place, piece.entry.name, written.tobytes())
    at = piece.start * len(written) // max(piece.size, 1)
    with place.file as file:
        area = place.area(file)
        area.write(at, written)
        if not (place.read_back(area, at, len(written)) == written).all():
            raise reads_back_differently(piece.entry.name, place.file.path)
    return None


def write_together(found: Iterable[Sequence[SmallVariable]]) -> None:
    """Write small variables as they come, many at a time, and check what the files then have.

    Those that follow each other in a file are written in one go.
    """
    sized = ((small, len(small.data)) for small in chain.from_iterable(found))
    for some in together(sized, _TOGETHER_BYTES):
        some.sort(key=lambda small: (small.place.file.path, small.place.offset))
        for _, of_file in groupby(some, key=lambda small: small.place.file):
            for _, _, run in near(of_file, lambda small: (small.place.offset, small.place.offset + len(small.data)), 0):
                _write_run(run)


def _write_run(run: Sequence[SmallVariable]) -> None:
    """Write variables that follow each other in one file, and compare what the file then has."""
    first = run[0].place
    data = b"".join(small.data for small in run)
    with first.file as file:
        area = first.area(file)
        area.write(0, np.frombuffer(data, np.uint8))
        back = Place(first.file, first.offset).read_back(area, 0, len(data)).tobytes()
    at = 0
    for small in run if first.crc is not None or back != data else ():
        own = back[at : at + len(small.data)]
        at += len(small.data)
        if own != small.data:
            raise reads_back_differently(small.name, small.place.file.path)
        if small.place.crc is not None:
            small.place.crc.add(0, own)
