"""Dense variables on their way out, read in the order of the shards: neighbours in one read, large ones in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DenseEntry, DType, ShardIndex
from edl_ckpt.core.operations.export.places import Place

SPAN_BYTES: Final = 4 << 20
_GAP_BYTES: Final = 4096
"""Bytes between two variables that are read along: the head of the second is among them."""

Convert = Callable[[bulk.U8, DType | None], bulk.U8]
"""Returns bytes of elements of some dtype in the dtype that is written."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, start + size) of the values of a dense variable."""

    entry: DenseEntry
    start: int
    size: int

    @property
    def offset(self) -> int:
        """Return where the bytes begin in the shard."""
        return self.entry.values.start + self.start


@dataclass(frozen=True, slots=True)
class Span:
    """Pieces of variables that lie close together in a shard, in their order there."""

    shard: ShardIndex
    pieces: tuple[Piece, ...]

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the values."""
        return sum(piece.size for piece in self.pieces)


def spans(checkpoint: Checkpoint) -> Iterator[Span]:
    """Yield all dense variables; an empty one is an empty piece."""
    for shard in checkpoint.shards:
        near: list[Piece] = []
        for entry in sorted(shard.variables, key=lambda entry: entry.values.start):
            for start in range(0, max(entry.size_bytes, 1), SPAN_BYTES):
                piece = Piece(entry, start, min(SPAN_BYTES, entry.size_bytes - start))
                if near and not _is_near(near, piece):
                    yield Span(shard, tuple(near))
                    near = []
                near.append(piece)
        if near:
            yield Span(shard, tuple(near))


def _is_near(near: list[Piece], piece: Piece) -> bool:
    """Say whether a piece is read with those before it."""
    gap = piece.offset - near[-1].offset - near[-1].size
    return 0 <= gap <= _GAP_BYTES and piece.offset + piece.size - near[0].offset <= SPAN_BYTES


def read_span(
    checkpoint: Checkpoint,
    span: Span,
    sketch: ContentSketch,
    take: Callable[[Piece, bulk.U8], None] | None = None,
) -> int:
    """Read a span and return its bytes; each piece is added to a sketch, and given to `take` with its bytes."""
    start, last = span.pieces[0].offset, span.pieces[-1]
    data = np.empty(last.offset + last.size - start, np.uint8)
    if len(data):
        checkpoint.reader(span.shard).read_into(start, data.data)
    for piece in span.pieces:
        own = data[piece.offset - start :][: piece.size]
        sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, own)
        if take is not None:
            take(piece, own)
    return span.size_bytes


def write_piece(piece: Piece, data: bulk.U8, places: Mapping[str, Place], convert: Convert) -> None:
    """Write a piece if its variable has a place, and compare what the file then has with what was written."""
    place = places.get(piece.entry.name)
    if place is None:
        return
    written = convert(data, piece.entry.dtype)
    at = piece.start * len(written) // max(piece.size, 1)
    with place.file as file:
        area = place.area(file)
        area.write(at, written)
        if not (place.read_back(area, at, len(written)) == written).all():
            raise EdlCkptError(
                f"{piece.entry.name!r} reads back differently; nothing was published",
                path=area.file.path,
                hint="check the memory and the disk of this machine",
            )
