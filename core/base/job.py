"""A job: what does the work of an operation. It is made once, where the operation begins, and travels as one value.

Its reporter takes warnings, and how far the operation is. Without one from the caller, warnings are Python's and
progress is silent (`WARNINGS`); `SILENT` drops both. Small pieces of work go together: each task costs something,
whatever it does.
"""

from __future__ import annotations

import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from edl_ckpt.core.base.errors import EdlCkptWarning, UsageError
from edl_ckpt.core.base.parallel import (
    RESULT_BYTES,
    Advance,
    Executor,
    Opened,
    Resource,
    Result,
    Task,
    Threads,
    Work,
    default_workers,
)


class Reporter(Protocol):
    """What an operation calls as it works; called from several threads."""

    def warn(self, text: str) -> None:
        """Tell people something that they should look at; the operation goes on."""

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase of `total_bytes` bytes of work."""

    def advance(self, size_bytes: int) -> None:
        """Report that this many more bytes are done."""


class SilentReporter:
    """A reporter that nobody listens to."""

    def __repr__(self) -> str:
        return "SILENT"

    def warn(self, text: str) -> None:
        """Do nothing."""

    def start(self, what: str, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, size_bytes: int) -> None:
        """Do nothing."""


SILENT = SilentReporter()


def expect(reporter: Reporter, total_bytes: int) -> None:
    """Tell a reporter that shows one bar for all phases how many bytes they have together, from the next one on."""
    if takes := getattr(reporter, "expect", None):
        takes(total_bytes)


class WarningReporter(SilentReporter):
    """The reporter where a caller gives none: its warnings are Python's, at the caller's own line."""

    def __repr__(self) -> str:
        return "WARNINGS"

    def warn(self, text: str) -> None:
        """Issue an EdlCkptWarning; Python shows each text once for a line, unless its filters say otherwise."""
        frame, level = sys._getframe(), 1  # noqa: SLF001 - `skip_file_prefixes` came with Python 3.12
        while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_OURS):
            frame, level = frame.f_back, level + 1
        warnings.warn(repr(text)[1:-1], EdlCkptWarning, stacklevel=level)  # names in it come from files


WARNINGS = WarningReporter()
_OURS: Final = ("edl_ckpt.", "contextlib")


class Counted(SilentReporter):
    """A reporter that only passes on how many bytes are done."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance = advance

    def __repr__(self) -> str:
        return "<Counted>"

    def advance(self, size_bytes: int) -> None:
        """Pass bytes on."""
        self._advance(size_bytes)


class Progress:
    """A reporter that calls back, and collects warnings: `save_checkpoint(..., reporter=Progress(print))`.

    `callback(what, done_bytes, total_bytes)` is called when a phase begins, at most once in `every_seconds` while it
    goes on, and when all of its bytes are done; never by two threads at a time. It must not raise an exception: that
    ends the operation. `on_warning` gets each warning; all of them are in `warnings` too.

    >>> progress = Progress(lambda what, done, total: print(f"{what}: {done} of {total}"), every_seconds=0)
    >>> progress.start("rows", 20)
    rows: 0 of 20
    >>> progress.advance(20)
    rows: 20 of 20
    """

    def __init__(
        self,
        callback: Callable[[str, int, int], object] | None = None,
        *,
        on_warning: Callable[[str], object] | None = None,
        every_seconds: float = 0.1,
    ) -> None:
        for what, function in (("callback", callback), ("on_warning", on_warning)):
            if function is not None and not callable(function):
                raise UsageError(f"{what} must be a function, got {function!r}")
        self.what, self.done_bytes, self.total_bytes = "", 0, 0
        self.warnings: list[str] = []
        self._callback, self._on_warning, self._every = callback, on_warning, every_seconds
        self._lock = threading.Lock()
        self._next = 0.0

    def __repr__(self) -> str:
        done = f"{self.done_bytes} of {self.total_bytes} bytes"
        return f"<Progress {self.what}{': ' if self.what else ''}{done}, {len(self.warnings)} warnings>"

    def warn(self, text: str) -> None:
        """Keep a warning, and pass it on."""
        with self._lock:
            self.warnings.append(text)
            if self._on_warning is not None:
                self._on_warning(text)

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase, and call back."""
        with self._lock:
            self.what, self.done_bytes, self.total_bytes = what, 0, total_bytes
            self._call()

    def advance(self, size_bytes: int) -> None:
        """Count bytes, and call back when it is time."""
        with self._lock:
            self.done_bytes += size_bytes
            if self.done_bytes >= self.total_bytes or time.monotonic() >= self._next:
                self._call()

    def _call(self) -> None:
        self._next = time.monotonic() + self._every
        if self._callback is not None:
            self._callback(self.what, self.done_bytes, self.total_bytes)


_Opened_co = TypeVar("_Opened_co", bound=Resource, covariant=True)


class Opens(Protocol[_Opened_co]):
    """A picklable value that another process opens."""

    def open(self) -> _Opened_co:
        """Open what it stands for."""


@dataclass(frozen=True, slots=True)
class FunctionWork(Generic[Opened, Task, Result]):
    """A work whose tasks a function does: one of a module, or a part of one, so that other processes import it."""

    source: Opens[Opened]
    function: Callable[[Opened, Task, Advance], Result]

    def __str__(self) -> str:
        return str(getattr(self.function, "func", self.function).__name__).strip("_")

    def open(self) -> Opened:
        """Open the source in another process."""
        return self.source.open()

    def do(self, opened: Opened, task: Task, advance: Advance) -> Result:
        """Do one task."""
        return self.function(opened, task, advance)


@dataclass(frozen=True, slots=True)
class Job:
    """An executor for the tasks of works, threads of this process for what it does itself, memory, and a reporter."""

    executor: Executor
    workers: int
    """Threads of this process; those of the executor where it has no other ones."""
    memory_bytes: int | None = None
    """The most memory for the values in all threads; None for the default of the operation."""
    reporter: Reporter = WARNINGS

    @classmethod
    def here(cls, workers: int | None = None, *, reporter: Reporter = WARNINGS) -> Job:
        """Return a job for so many threads of this process, by default one a core."""
        workers = default_workers() if workers is None else workers
        return cls(Threads(workers), workers, reporter=reporter)

    def limited(self, workers: int) -> Job:
        """Return the same job with so many threads of this process; other processes keep theirs."""
        return replace(self, executor=self.executor.limited(workers), workers=workers)

    def silent(self) -> Job:
        """Return the same job, which reports nothing."""
        return replace(self, reporter=SILENT)

    @contextmanager
    def run(
        self, work: Work[Opened, Task, Result], opened: Opened, tasks: Iterable[Task], *, in_turn: bool = False
    ) -> Iterator[Iterator[Result]]:
        """Yield the results of all tasks, in their order, as `Executor.run`; at the end of the block the work ends.

        With `in_turn` a task uses `task_threads` threads by itself, so this process does one after the other.
        """
        executor = self.executor.limited(1) if in_turn else self.executor
        with closing(executor.run(work, opened, tasks, self.reporter.advance)) as results:
            yield results


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
            some, results, total, own = [], {}, 0, {of or 0: result}
        some.append(piece)
        results |= own
        total += size
    if some:
        yield tuple(some)
