"""A job: what does the work of an operation. It is made once, where the operation begins, and travels as one value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from edl_ckpt.core.base.parallel import (
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
from edl_ckpt.core.base.progress import SILENT, WARNINGS, Reporter

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
