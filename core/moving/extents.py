"""Files of which one process writes only some extents: all other bytes belong to others, and are dropped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from edl_ckpt.core.commit.sent_parts import Extent
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

    def wants(self, offset: int, size: int) -> bool:
        """Say whether any of some bytes belong here."""
        return next(self._inside(offset, offset + size), None) is not None

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


def wants(sink: Sink, offset: int, size: int) -> bool:
    """Say whether a file takes any of some bytes."""
    return not isinstance(sink, ExtentSink) or sink.wants(offset, size)
