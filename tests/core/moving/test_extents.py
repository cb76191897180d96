"""Files of which some extents are written: what is dropped, and which rows need not be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.commit.sent_parts import Extent
from edl_ckpt.core.converting.rows import Cut
from edl_ckpt.core.moving.extents import ExtentSink, ExtentSinks, Span, spans_of, taken_of_matrix, taken_rows
from edl_ckpt.core.storage.interface import Sink
from examples import examples


class Memory(Sink):
    """A file that counts how often each of its bytes was written."""

    path = "memory"

    def __init__(self, size_bytes: int) -> None:
        self.data, self.times = bytearray(size_bytes), np.zeros(size_bytes, np.int64)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write some bytes."""
        self.data[offset : offset + len(data)] = data
        self.times[offset : offset + len(data)] += 1


def apart(edges: list[int]) -> list[Span]:
    """Return spans that are apart, between every other pair of edges."""
    return [Span(low, high) for low, high in zip(edges[::2], edges[1::2], strict=False)]


SPANS = st.lists(st.integers(0, 60), unique=True, max_size=8).map(sorted).map(apart)


@examples(100)
@given(SPANS, st.integers(0, 60), st.integers(0, 20))
def test_only_bytes_inside_are_written(spans: list[Span], offset: int, size: int) -> None:
    """Each byte of a write that is in a span arrives, once and at its place, and no other one does."""
    memory = Memory(80)
    sink = ExtentSink(memory, spans)
    sink.write(offset, bytes(range(1, size + 1)))
    inside = [any(low <= at < high for low, high in spans) for at in range(80)]
    wanted = [int(offset <= at < offset + size and inside[at]) for at in range(80)]
    assert memory.times.tolist() == wanted
    assert [memory.data[at] for at in range(80) if wanted[at]] == [at - offset + 1 for at in range(80) if wanted[at]]
    taken = sink.taken(offset, size)
    places = np.flatnonzero(wanted).tolist()
    assert (taken is None) == (not places)
    assert taken is None or (taken.start, taken.end) == (places[0], places[-1] + 1)


def test_extents_of_one_file_are_in_order() -> None:
    """Extents come in any order, and files without any take nothing."""
    spans = spans_of([Extent(3, (8, 9, 12), 4), Extent(1, (0, 4), 0), Extent(3, (0, 2), 0)])
    assert spans == {3: [(0, 2), (8, 12)], 1: [(0, 4)]}
    files: Any = [Memory(20) for _ in range(4)]
    sinks = ExtentSinks(files, spans)
    for number in range(4):
        sinks[number].write(0, bytes(20))
    assert [int(file.times.sum()) for file in files] == [0, 4, 0, 6]


@examples(100)
@given(st.lists(st.integers(0, 2), max_size=12), st.lists(SPANS, min_size=3, max_size=3), st.integers(1, 5))
def test_rows_that_are_taken(owners: list[int], spans: list[list[Span]], row_bytes: int) -> None:
    """The rows from the first to the last that any file takes are the least that must be read."""
    owner, starts = np.array(owners, np.uint16), np.array([7, 0, 3])
    counts = np.bincount(owner, minlength=3).astype(np.int64)
    memories = [Memory(100) for _ in range(3)]
    sinks = ExtentSinks(memories, dict(enumerate(spans)))
    taken = taken_rows(sinks, owner, counts, starts, row_bytes)
    wanted = []
    for row, file in enumerate(owners):
        at = int(starts[file]) + owners[:row].count(file) * row_bytes
        if sinks[file].taken(at, row_bytes) is not None:
            wanted.append(row)
    assert (taken.start, taken.stop) == ((wanted[0], wanted[-1] + 1) if wanted else (len(owners), len(owners)))


def test_rows_of_a_matrix_that_are_taken() -> None:
    """Cuts say where the rows of a matrix are; a part may begin, and end, inside a row."""
    files: Any = [Memory(100), Memory(100)]
    cuts = [Cut(0, 40, 0, 10), Cut(40, 80, 1, 0)]
    sinks = ExtentSinks(files, {0: [Span(35, 60)], 1: [Span(0, 6)]})
    assert taken_of_matrix(sinks, cuts, 0, 20, 4) == slice(6, 12)
    assert taken_of_matrix(sinks, cuts, 8, 4, 4) == slice(0, 4)
    assert taken_of_matrix(sinks, cuts, 12, 8, 4) == slice(8, 8)
    assert taken_of_matrix(files, cuts, 3, 5, 4) == slice(0, 5)
