"""Files of which one process writes only some extents: all other bytes belong to others, and are dropped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from edl_ckpt.core.commit.sent_parts import Extent
from edl_ckpt.core.converting.rows import Cut
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.storage.interface import Sink, Sinks


class Span(NamedTuple):
    """The bytes [start, end) of a file."""

    start: int
    end: int


class ExtentSink(Sink):
    """A file, and those of its bytes that are written here: `spans` are in their order, and apart from each other."""

    def __init__(self, inner: Sink, spans: Sequence[Span]) -> None:
        self._inner, self._spans = inner, spans
        self.path = inner.path

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write those of the bytes that belong here."""
        view = memoryview(data).cast("B")
        for low, high in self._inside(offset, offset + len(view)):
            self._inner.write(low, view[low - offset : high - offset])

    def taken(self, offset: int, size: int) -> Span | None:
        """Return the bytes from the first to the last of some that belong here; None for none."""
        inside = list(self._inside(offset, offset + size))
        return Span(inside[0].start, inside[-1].end) if inside else None

    def _inside(self, start: int, end: int) -> Iterator[Span]:
        for span in self._spans[max(bisect_right(self._spans, (start,)) - 1, 0) :]:
            if span.start >= end:
                return
            low, high = max(span.start, start), min(span.end, end)
            if low < high:
                yield Span(low, high)


class ExtentSinks(Sinks):
    """Files by their numbers, of each of which some extents are written; of those without any, nothing."""

    def __init__(self, files: Sinks, spans: Mapping[int, Sequence[Span]]) -> None:
        self._files, self._spans = files, spans
        self._opened: dict[int, ExtentSink] = {}

    def __getitem__(self, number: int, /) -> ExtentSink:
        sink = self._opened.get(number)
        if sink is None:
            sink = ExtentSink(self._files[number], self._spans.get(number, ()))
            self._opened[number] = sink
        return sink


def spans_of(extents: Iterable[Extent]) -> dict[int, list[Span]]:
    """Return the bytes of some extents of parts, by the numbers of their files, in their order."""
    spans: dict[int, list[Span]] = {}
    for target, edges, _ in extents:
        spans.setdefault(target, []).append(Span(edges[0], edges[-1]))
    for some in spans.values():
        some.sort()
    return spans


def _taken(sink: Sink, offset: int, size: int) -> Span | None:
    """Return the bytes from the first to the last of some that a file takes; None for none."""
    return sink.taken(offset, size) if isinstance(sink, ExtentSink) else Span(offset, offset + size)


def taken_rows(files: Sinks, owner: bulk.U16, counts: bulk.I64, values_at: bulk.I64, row_bytes: int) -> slice:
    """Return those of some rows, from the first to the last, of which their files take any bytes.

    `owner`, uint16 [n], has the file of each row. `counts` and `values_at`, int64 [files], are the rows of each file
    and the offset of the first of them.
    """
    first, end = len(owner), 0
    for number in np.flatnonzero(counts).tolist():
        at = int(values_at[number])
        span = _taken(files[number], at, int(counts[number]) * row_bytes)
        if span is not None:
            places = np.flatnonzero(owner == number)
            first = min(first, int(places[(span.start - at) // row_bytes]))
            end = max(end, int(places[(span.end - 1 - at) // row_bytes]) + 1)
    return slice(first, max(first, end))


def taken_of_matrix(files: Sinks, cuts: Iterable[Cut], first_row: int, count: int, row_bytes: int) -> slice:
    """Return those of some rows of a matrix, from the first to the last, of which the files of its cuts take any bytes.

    The rows have the numbers from `first_row` on, and the slice those from 0 on.
    """
    first = count
    end = 0
    start = first_row * row_bytes
    for cut in cuts:
        low, high = max(cut.start, start), min(cut.end, start + count * row_bytes)
        shift = cut.offset - cut.start
        span = _taken(files[cut.file], low + shift, high - low) if low < high else None
        if span is not None:
            first = min(first, (span.start - shift - start) // row_bytes)
            end = max(end, -(-(span.end - shift - start) // row_bytes))
    return slice(first, max(first, end))
