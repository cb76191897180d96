"""The executor over a Dask scheduler: tasks of a work in order, a few of them for each thread under way at a time.

Dask gives the tasks of a lost worker to others. What it cannot know is decided here: how long to wait for a cluster
without workers, and what its errors mean.
"""

from __future__ import annotations

import heapq
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from edl_ckpt.core.cluster import worker
from edl_ckpt.core.cluster.connection import START_WORKERS, meanings
from edl_ckpt.core.cluster.worker import Done, Published
from edl_ckpt.core.errors import UnavailableError, UnsupportedError
from edl_ckpt.core.parallel import Advance, Opened, Result, Task, Work
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.words import abridged, counted

_TASKS_A_THREAD: Final = 16
"""So many tasks for each thread at least, where there is data for them: the last ones end at about the same time."""
_LEAST_TASK_BYTES: Final = 4 << 20
_MOST_TASK_BYTES: Final = 256 << 20
"""A task of this size takes a fifth of a second or more, and Dask's own work for it a few milliseconds."""
_UNDER_WAY: Final = 4
"""Tasks for each thread that the scheduler knows: the next one waits at the worker already."""
_LOOK_SECONDS: Final = 2.0
_NO_WORKER_SECONDS: Final = 120.0
_LIVES: Final = 3
"""How often a task is given to the cluster, each time until so many workers died with it as Dask allows."""
_SLOWEST: Final = 3
_NAMED: Final = 3
LOG: Final = logging.getLogger("edl_ckpt")


class ClusterExecutor:
    """Does tasks on the workers of a cluster, through a `distributed.Client`."""

    elsewhere = True

    def __init__(self, client: Any) -> None:
        self.client = client
        self.dashboard = ""
        """The address of the scheduler's pages; '' where it has none."""
        self.asked = False
        """True when every process has said which edl-ckpt it has."""
        self.checked: set[tuple[str, str]] = set()
        """The files that every worker sees: (location, path)."""
        self._read: dict[tuple[str, str], int] = {}
        self._slowest: list[tuple[float, int, str, str]] = []
        self._tasks = 0
        self._workers: dict[str, dict[str, Any]] = {}
        self._at_work: list[_Running] = []
        self._asked = -_LOOK_SECONDS

    def __repr__(self) -> str:
        return f"ClusterExecutor({self.client.scheduler.address if self.client.scheduler else 'closed'!r})"

    def workers(self) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows of each worker, by its address; asked again after a while."""
        now = time.monotonic()
        if now - self._asked > _LOOK_SECONDS / 2:
            with meanings():
                self._workers = dict(self.client.scheduler_info(n_workers=-1)["workers"])
            self._asked = now
        return self._workers

    @property
    def threads(self) -> int:
        """Return the threads of the worker that has most."""
        return max((int(info["nthreads"]) for info in self.workers().values()), default=1)

    def task_bytes(self, total_bytes: int) -> int:
        """Return the bytes of a task: enough tasks for every thread, and few enough for the scheduler."""
        threads = sum(int(info["nthreads"]) for info in self.workers().values())
        share: int = total_bytes // (_TASKS_A_THREAD * max(threads, 1))
        return min(max(share, _LEAST_TASK_BYTES), _MOST_TASK_BYTES)

    def share(self, directory: str) -> None:
        """Let every worker read a token in a directory, and write one beside it that this process reads."""
        token = uuid.uuid4().hex
        with storage_errors(directory), open(os.path.join(directory, token), "w", encoding="ascii") as file:
            file.write(token)
        with meanings():
            found = self.client.run(worker.answer, directory, token, on_error="return")
        for address, name in found.items():
            path = os.path.join(directory, str(name))
            if not isinstance(name, str) or name == worker.UNSEEN or not os.path.exists(path):
                why = "" if isinstance(name, str) else f" ({name})"
                raise UnsupportedError(
                    f"worker {address} cannot read and write where this machine does{why}",
                    path=directory,
                    hint="mount the volume at the same path on every worker, for a user who may write there",
                )
            os.unlink(path)
        os.unlink(os.path.join(directory, token))

    def bytes_read(self) -> int:
        """Return how many bytes all workers have read so far."""
        return sum(self._read.values())

    def run(
        self,
        work: Work[Opened, Task, Result],
        opened: Opened,  # noqa: ARG002 - workers open what they need themselves
        tasks: Iterable[Task],
        advance: Advance,
    ) -> Generator[Result, None, None]:
        """Yield the results of all tasks, in their order."""
        waiting, published = iter(tasks), Published.of(work)
        running = _Running(self.client, published, self._left)
        self._at_work.append(running)
        try:
            while True:
                threads = sum(info["nthreads"] for info in self.workers().values())
                room = _UNDER_WAY * max(threads, 1) - len(running)
                if room > 0 and len(running) <= room:  # many at a time: each message to the scheduler costs
                    running.begin(list(islice(waiting, room)))
                if not len(running):
                    return
                done = running.next()
                self._count(published.token, done, work)
                advance(done.done_bytes)
                yield done.result
        finally:
            self._at_work.remove(running)
            running.end()

    def _count(self, token: str, done: Done, work: object) -> None:
        self._tasks += 1
        key = (token, done.process)
        self._read[key] = max(self._read.get(key, 0), done.read_bytes)
        entry = (done.seconds, self._tasks, type(work).__name__.strip("_"), done.process)
        heapq.heappush(self._slowest, entry)
        if len(self._slowest) > _SLOWEST:
            heapq.heappop(self._slowest)

    def doing(self) -> str:
        """Return how many tasks are done, also those that wait for one before them, and who does them; asks nobody."""
        done = self._tasks + sum(running.done() for running in tuple(self._at_work))
        return f"{counted(done, 'task')}, {counted(len(self._workers), 'worker')}"

    def named(self) -> str:
        """Return the workers in words."""
        names = sorted(str(info.get("name", address)) for address, info in self.workers().items())
        return f"{counted(len(names), 'worker')} of the cluster ({abridged(names, _NAMED)})"

    def _left(self) -> int:
        return len(self.workers())

    def log_slowest(self) -> None:
        """Log how many tasks there were, and the slowest of them."""
        if self._tasks:
            LOG.info("%s on the cluster", counted(self._tasks, "task"))
        for seconds, number, work, process in sorted(self._slowest, reverse=True):
            LOG.info("slow: task %d (%s) took %.2f s in %s", number, work, seconds, process.rpartition(":")[0])


class _Running:
    """The tasks of one work that the scheduler has."""

    def __init__(self, client: Any, published: Published, workers: Callable[[], int]) -> None:
        self._client = client
        self._published = published
        self._workers = workers
        with meanings():
            # A task of its own, not data that is lost with the worker that has it.
            self._plan = client.submit(Published, *published, key=f"edl-ckpt-work-{published.token}", pure=False)
        self._futures: deque[tuple[Any, bytes, int]] = deque()

    def __len__(self) -> int:
        return len(self._futures)

    def done(self) -> int:
        """Return how many tasks are done whose results were not taken yet, as the scheduler has told."""
        return sum(future.done() for future, _, _ in tuple(self._futures))

    def begin(self, tasks: Sequence[Any]) -> None:
        """Give tasks to the scheduler."""
        if tasks:
            self._submit([(worker.packed(task), 1) for task in tasks])

    def _submit(self, data: Sequence[tuple[bytes, int]], *, first: bool = False) -> None:
        with meanings():
            futures = self._client.map(
                worker.do_task,
                [task for task, _ in data],
                published=self._plan,
                key=[f"edl-ckpt-{uuid.uuid4().hex}" for _ in data],
                pure=False,
            )
        entries = [(future, *each) for future, each in zip(futures, data, strict=True)]
        if first:
            self._futures.extendleft(reversed(entries))
        else:
            self._futures.extend(entries)

    def next(self) -> Done:
        """Return the next result, in the order of the tasks."""
        from distributed import KilledWorker

        future, data, life = self._futures.popleft()
        try:
            done: Done = self._wait(future)
        except KilledWorker as error:
            if life == _LIVES:
                raise UnavailableError(
                    f"{error.allowed_failures + 1} workers died at the same task, {life} times",
                    hint="give workers more memory (their --memory-limit), and look at their logs",
                ) from error
            self._submit([(data, life + 1)], first=True)
            return self.next()
        return done

    def _wait(self, future: Any) -> Done:
        from distributed import TimeoutError as NotYet

        alone_since: float | None = None
        while True:
            try:
                with meanings():
                    done: Done = future.result(timeout=_LOOK_SECONDS)
            except NotYet:
                now = time.monotonic()
                alone_since = None if self._workers() else alone_since or now
                if alone_since is not None and now - alone_since > _NO_WORKER_SECONDS:
                    raise UnavailableError(
                        f"the cluster has had no worker for {_NO_WORKER_SECONDS:.0f} seconds", hint=START_WORKERS
                    ) from None
            else:
                return done

    def end(self) -> None:
        """Drop what is left of the work, here and in the workers."""
        if self._client.status != "running":  # the scheduler is gone, and everything would wait for it
            return
        with suppress(Exception):  # what ends the work is another error, or nothing
            if self._futures:
                self._client.cancel([future for future, _, _ in self._futures], force=True)
            self._futures.clear()
            self._client.run(worker.end_work, self._published.token, on_error="ignore")
