"""The parts of an export's arrays as tasks: which bytes of the files a task sends, and what it reads for them.

A file is cut where a variable or a table may be cut, into extents of at least one part. So each value belongs to one
extent, and is read for that alone. A table that is sorted by one task is not cut at all. What one task sends and
another one counts is weighed by both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.places import DenseAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, DensePiece, read_dense
from edl_ckpt.core.commit.uploads import Extent, Sending, SharedUploads, TargetPart
from edl_ckpt.core.operations.export.balance import Balance, weight_of
from edl_ckpt.core.operations.export.casts import cast_bytes
from edl_ckpt.core.operations.export.runs import Found, in_order
from edl_ckpt.core.operations.export.sent_runs import OPEN_PARTS_BYTES
from edl_ckpt.core.operations.export.spans import ArrayAt, DenseForm, Span, Tables
from edl_ckpt.core.packing import packed
from edl_ckpt.core.parallel import RESULT_BYTES, Advance
from edl_ckpt.core.storage.interface import Sink


class Segment(NamedTuple):
    """Bytes of a file that are of one array, and may be cut at multiples of `step`."""

    start: int
    size: int
    step: int
    name: str
    """A variable, or '' for a table."""
    table: int = -1
    rows: bool = False
    """True for the rows of a table, False for its ids."""


def extents(
    segments: Iterable[Segment], size_bytes: int, first: int, usual: int
) -> Iterator[tuple[int, int, list[tuple[Segment, int, int]]]]:
    """Yield (start, end, [(segment, start, end)]): a file in pieces of at least `first` and then `usual` bytes.

    The last piece is what is left. Starts and ends of segments count from where these begin.

    >>> [(low, high) for low, high, _ in extents([Segment(8, 100, 7, "w")], 108, 10, 40)]
    [(0, 15), (15, 57), (57, 99), (99, 108)]
    """
    low, wanted, some = 0, first, list[tuple[Segment, int, int]]()
    for segment in segments:
        at, end = segment.start, segment.start + segment.size
        while at < end:
            steps = max(-(-(low + wanted - at) // segment.step), 1)
            # From the begin of the segment, so that every cut is a multiple of its step.
            upto = min(segment.start + (at - segment.start) // segment.step * segment.step + steps * segment.step, end)
            some.append((segment, at - segment.start, upto - segment.start))
            at = upto
            if at - low >= wanted and at < size_bytes:
                yield low, at, some
                low, wanted, some = at, usual, []
    if low < size_bytes:
        yield low, size_bytes, some


class RowsPart(NamedTuple):
    """A span of a table of which a task sends the ids, the rows or both; one task `counts` the rows."""

    span: Span
    ids: bool
    rows: bool
    counts: bool


class SendTask(NamedTuple):
    """What one task reads and sends; `heads` are (file, offset, bytes)."""

    extents: tuple[Extent, ...] = ()
    heads: tuple[tuple[int, int, bytes], ...] = ()
    dense: tuple[tuple[DenseAt, bool], ...] = ()
    spans: tuple[RowsPart, ...] = ()

    def uncounted(self) -> SendTask:
        """Return the task without its sums."""
        dense = tuple((place, False) for place, _ in self.dense)
        return self._replace(dense=dense, spans=tuple(each._replace(counts=False) for each in self.spans))

    def counted(self) -> Iterator[SendTask]:
        """Yield tasks that send nothing, and read what this one counts."""
        yield from (SendTask(dense=(each,)) for each in self.dense if each[1])
        yield from (SendTask(spans=(each._replace(ids=False),)) for each in self.spans if each.counts)


class Measured(NamedTuple):
    """A task, and the bytes that it reads and answers with, about."""

    task: SendTask
    size_bytes: int
    result_bytes: int


def together(tasks: Iterable[Measured], task_bytes: int) -> Iterator[SendTask]:
    """Yield tasks, small ones as one; one whose sums are too large leaves them to others that only read."""
    for some in packed(((each, each.size_bytes, "", each.result_bytes) for each in tasks), task_bytes):
        task = some[0].task
        if some[0].result_bytes > RESULT_BYTES and len(task.dense) + len(task.spans) > 1:  # so it is alone
            yield task.uncounted()
            yield from task.counted()
        else:
            yield joined([each.task for each in some])


def joined(tasks: Sequence[SendTask]) -> SendTask:
    """Return several tasks as one."""
    return SendTask(*(sum(parts, ()) for parts in zip(*tasks, strict=True)))


class Sent(NamedTuple):
    """What a task answers: the sums of what it read and counted, of the rows of runs that it sent, and its parts.

    The balance is of what it sent and did not count, or counted and did not send.
    """

    found: Found
    proof: ContentSketch
    balance: Balance
    parts: list[TargetPart]


@dataclass(frozen=True, slots=True, eq=False)
class SendWork:
    """Sending arrays to their places; fields as in `WriteWork`."""

    source: CheckpointValue
    tables: Tables
    places: Mapping[int, tuple[ArrayAt, ArrayAt]]
    dense: Mapping[str, DenseForm]
    uploads: SharedUploads

    def open(self) -> Sending[Checkpoint]:
        """Open the checkpoint in another process."""
        return Sending(self.source.open(), OPEN_PARTS_BYTES)

    def do(self, opened: Sending[Checkpoint], task: SendTask, advance: Advance) -> Sent:
        """Read what a task needs, and send its parts."""
        sent = Sent(Found(), ContentSketch(), Balance(), [])
        sends = bool(task.extents)
        with self.uploads.opened(task.extents, opened.memory) as files:
            for file, at, data in task.heads:
                files[file].write(at, data)
            for place, counts in task.dense:
                piece = place.piece(opened.source)
                advance(self._send_dense(opened.source, piece, files, sent, sends=sends, counts=counts))
            for part in task.spans:
                advance(self._send_rows(opened.source, part, files, sent, sends=sends))
        return sent._replace(parts=files.sent)

    def _send_dense(
        self, opened: Checkpoint, piece: DensePiece, files: Sequence[Sink], sent: Sent, *, sends: bool, counts: bool
    ) -> int:
        name, dtype, done = piece.entry.name, piece.entry.dtype, 0
        place, target = self.dense[name]
        weight = weight_of(name, piece.start)
        for start in range(piece.start, piece.start + piece.size, PIECE_BYTES):
            size = min(PIECE_BYTES, piece.start + piece.size - start)
            data = read_dense(opened, DensePiece(piece.shard, piece.entry, start, size))
            written, overflowed = cast_bytes(data, dtype, target)
            if counts:
                sent.found.source.add_dense(name, piece.entry.size_bytes, start, data)
                sent.found.overflowed += overflowed
            if sends != counts:
                weight.update(written.data)
            files[place.file].write(place.offset + start // dtype.itemsize * target.itemsize, written.data)
            done += len(written) if counts else 0
        if sends != counts:
            sent.balance.weigh(weight, sent=sends)
        return done

    def _send_rows(self, opened: Checkpoint, part: RowsPart, files: Sequence[Sink], sent: Sent, *, sends: bool) -> int:
        span, form = part.span, self.tables.forms[part.span.table]
        ids_at, rows_at = self.places[span.table]
        if not part.rows:
            ids = self.tables.ids(opened, span)
            files[ids_at.file].write(ids_at.offset + 8 * span.first, ids.view(np.uint8).data)
            sent.balance.weigh_ids(form.name, ids, span.first, sent=True)
            return 0
        ids, rows, order = self.tables.rows(opened, span, sent.found if part.counts else Found())
        if part.ids:
            files[ids_at.file].write(ids_at.offset + 8 * span.first, ids.view(np.uint8).data)
        if part.ids != part.counts:
            sent.balance.weigh_ids(form.name, ids, span.first, sent=part.ids)
        begin, weight = rows_at.offset + form.width * span.first, weight_of(form.name, span.first)
        parts = ((0, rows),) if order is None or not form.width else in_order(rows, order)
        for start, some in parts:
            if part.counts and not span.pieces:
                sent.proof.add_rows(form.name, ids[start : start + len(some)], some)
            if sends != part.counts:
                weight.update(some.reshape(-1).data)
            files[rows_at.file].write(begin + start * form.width, some.reshape(-1).data)
        if sends != part.counts:
            sent.balance.weigh(weight, sent=sends)
        return len(ids) * (8 + form.width) if part.counts else 0
