"""Small pieces of work go together into tasks: each task costs something, whatever it does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from edl_ckpt.core.base.parallel import (
    RESULT_BYTES,
)

Some = TypeVar("Some")

_MOST_PIECES: Final = 128
"""Pieces of one task, so that what is said of each of them is a small result."""


def together(sizes: Iterable[tuple[Some, int]], limit: int, *, most: int = sys.maxsize) -> Iterator[list[Some]]:
    """Yield items that follow each other, so many that their sizes add up to a limit at most, but one at least.

    >>> list(together([("a", 2), ("b", 2), ("c", 9), ("d", 0)], 4))
    [['a', 'b'], ['c'], ['d']]
    """
    some: list[Some] = []
    total = 0
    for name, size in sizes:
        if some and (total + size > limit or len(some) == most):
            yield some
            some, total = [], 0
        some.append(name)
        total += size
    if some:
        yield some


def near(
    items: Iterable[Some], extent: Callable[[Some], tuple[int, int]], gap: int, most: int = sys.maxsize
) -> Iterator[tuple[int, int, list[Some]]]:
    """Yield (start, end, items) of stretches: each item begins at most `gap` behind those before it.

    Items come in the order of their extents, [start, end). A stretch is no longer than `most`, unless it is one item.

    >>> list(near([(0, 2), (3, 5), (9, 10)], lambda item: item, 1))
    [(0, 5, [(0, 2), (3, 5)]), (9, 10, [(9, 10)])]
    """
    some: list[Some] = []
    start = end = 0
    for item in items:
        first, last = extent(item)
        if some and (first - end > gap or last - start > most):
            yield start, end, some
            some = []
        start, end = (start, max(end, last)) if some else (first, last)
        some.append(item)
    if some:
        yield start, end, some


def packed(measured: Iterable[tuple[Some, int, str, int]], task_bytes: int) -> Iterator[tuple[Some, ...]]:
    """Yield pieces in tasks with small results, from (piece, bytes, what it is of, bytes of a result for that).

    All pieces of one thing have one result; '' is a thing of its own each time. A piece that is too large is a task.

    >>> list(packed([("a", 2, "t", 9), ("b", 2, "t", 9), ("c", 1, "", 60_000), ("d", 1, "", 60_000)], 4))
    [('a', 'b'), ('c',), ('d',)]
    """
    some: list[Some] = []
    results: dict[str | int, int] = {}
    total = 0
    for piece, size, of, result in measured:
        own = {of or len(some): result}
        is_full = total + size > task_bytes or len(some) >= _MOST_PIECES
        if some and (is_full or sum((results | own).values()) > RESULT_BYTES):
            yield tuple(some)
            some = []
            results = {}
            total = 0
            own = {of or 0: result}
        some.append(piece)
        results |= own
        total += size
    if some:
        yield tuple(some)
