"""The executor over a Dask scheduler: tasks of a work in order, a few of them for each thread under way at a time.

Dask gives the tasks of a lost worker to others. What it cannot know is decided here: how long to wait for a cluster
without workers, and what its own errors mean.
"""

from __future__ import annotations

import heapq
import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from edl_ckpt.core.base.errors import UnavailableError, UnsupportedError
from edl_ckpt.core.base.job import FunctionWork
from edl_ckpt.core.base.parallel import RESULT_BYTES, SMALL_READS, Advance, Meeting, Opened, Result, Task, Work
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import abridged, counted, size
from edl_ckpt.core.cluster import messages, reach, worker
from edl_ckpt.core.cluster.messages import Done, Published, Seen, SharedFile
from edl_ckpt.core.commit.meeting import TOKEN

TASKS_A_THREAD: Final = 12
"""So many tasks for each thread at least, where there is data for them: the last ones end at about the same time. More
would cost more: a task takes 8 ms of CPU of the worker, the scheduler and the command together, besides its work."""
LEAST_TASK_BYTES: Final = 8 << 20
_MOST_TASK_BYTES: Final = 256 << 20
"""A task of this size takes a fifth of a second or more, and Dask's own work for it a few milliseconds."""
_TASKS: Final = 1 << 14
"""Larger tasks where a pass would have more than so many: a scheduler takes a millisecond for each of them."""
UNDER_WAY: Final = 16
"""Tasks for each thread that the scheduler knows. An answer takes 15 ms to become a new task at a worker, and a small
task 2 ms: with four for each thread, workers waited for half of a survey."""
_LIGHT_BYTES: Final = 8 << 10
"""A plan of so many bytes goes along with each task. A larger one is a task itself, from which workers get it."""
LOOK_SECONDS: Final = 2.0
NO_WORKER_SECONDS: Final = 120.0
"""How long the work waits for a worker, or for one that is not paused."""
PAUSED_SECONDS: Final = 10.0
"""After so long a wait for paused workers, people are told."""
ANSWER_SECONDS: Final = 60.0
"""How long each process may take for an answer before any work."""
SCHEDULER_SECONDS: Final = 120.0
"""How long the scheduler may take for an answer during the work."""
END_SECONDS: Final = 10.0
"""How long workers may take to hear that a work is over."""
_AGAIN_SECONDS: Final = 0.3
"""How soon those are asked again that were just starting, or ending."""
_LIVES: Final = 3
"""How often a task is given to the cluster, each time until so many workers died with it as Dask allows."""
_SLOWEST: Final = 3
_NAMED: Final = 3
LOG: Final = logging.getLogger("edl_ckpt")
START_WORKERS: Final = "start workers: dask worker SCHEDULER_ADDRESS"
LOOK_AT_SCHEDULER: Final = "check the log of the scheduler, and try again"


@contextmanager
def meanings() -> Iterator[None]:
    """Turn the errors of Dask itself into ours: UnavailableError when the scheduler is gone."""
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (FutureCancelledError, CommClosedError) as error:
        raise lost() from error


def lost() -> UnavailableError:
    """Return the error for a scheduler that does not answer any more."""
    return UnavailableError("the connection to the scheduler is lost", hint=LOOK_AT_SCHEDULER)


@dataclass(frozen=True, slots=True, order=True)
class ClusterWorker:
    """A worker of a cluster, as it was before any work; `memory_bytes` is its limit, None where it has none."""

    name: str
    address: str
    threads: int
    memory_bytes: int | None
    version: str


class ClusterExecutor:
    """Does tasks on the workers of a cluster, through a `distributed.Client`."""

    is_cluster = True
    result_bytes = RESULT_BYTES
    openings: int | None = SMALL_READS  # a file system of many machines takes requests, too
    task_threads = 1

    def __init__(self, client: Any) -> None:
        self.client = client
        self.dashboard = ""
        """The address of the scheduler's pages; '' where it has none."""
        self.asked = False
        """True when every process has said which edl-ckpt it has."""
        self.versions: dict[str, str] = {}
        """The edl-ckpt of each worker, by its address."""
        self.shown: dict[tuple[str, str], SharedFile] = {}
        """The files that every worker sees, by (location, path)."""
        self.hidden: set[str] = set()
        """The storage options that no worker gets, and that were warned of."""
        self.reporter: Reporter = WARNINGS
        """Whom to tell that workers do not go on."""
        self._read: dict[tuple[str, str], int] = {}
        self._slowest: list[tuple[float, int, str, str]] = []
        self._tasks = 0
        self._workers: dict[str, dict[str, Any]] = {}
        self._at_work: list[_Running] = []
        self._asked = -LOOK_SECONDS

    def __repr__(self) -> str:
        return f"ClusterExecutor({self.client.scheduler.address if self.client.scheduler else 'closed'!r})"

    def workers(self, *, now: bool = False) -> dict[str, dict[str, Any]]:
        """Return what the scheduler knows of each worker, by its address; asked again after a while, or `now`."""
        if now or time.monotonic() - self._asked > LOOK_SECONDS / 2:
            self._workers = dict(self.identity()["workers"])
            self._asked = time.monotonic()
        return self._workers

    def identity(self) -> dict[str, Any]:
        """Return what the scheduler says of itself and of its workers."""
        client = self.client
        if client.status != "running":
            raise lost()
        try:
            with meanings():
                return dict(self._in_time(SCHEDULER_SECONDS, client.scheduler.identity, n_workers=-1))
        except UnavailableError:  # an OSError too
            raise
        except OSError as error:
            raise lost() from error

    def ask_scheduler(self, function: Callable[..., Any]) -> Any:
        """Return what the scheduler answers, or the error that it raised: it unpacks what workers are sent.

        Raises UnavailableError when it does not answer.
        """
        try:
            return self._in_time(ANSWER_SECONDS, self.client._run_on_scheduler, function)  # noqa: SLF001
        except UnavailableError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises is the answer
            return error

    def _in_time(self, seconds: float, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function of the client, which would wait for ever for a scheduler that is stopped."""
        try:
            return self.client.sync(function, *args, callback_timeout=seconds, **options)
        except TimeoutError:
            raise UnavailableError(
                f"the scheduler has not answered for {seconds:.0f} seconds", hint=LOOK_AT_SCHEDULER
            ) from None

    @property
    def threads(self) -> int:
        """Return the threads of the worker that has most."""
        return max((int(info["nthreads"]) for info in self.workers().values()), default=1)

    @property
    def all_threads(self) -> int:
        """Return the threads of all workers."""
        return sum(int(info["nthreads"]) for info in self.workers().values())

    def limited(self, workers: int) -> ClusterExecutor:  # noqa: ARG002 - workers of a cluster have their own threads
        """Return this executor."""
        return self

    def task_bytes(self, total_bytes: int) -> int:
        """Return the bytes of a task: enough tasks for every thread, and few enough for the scheduler.

        With 1024 threads, 4 GiB are cut into tasks of 8 MiB, 1 TiB of 85 MiB, and 10 TiB of 640 MiB.
        """
        share = total_bytes // (TASKS_A_THREAD * max(self.all_threads, 1))
        return max(min(share, _MOST_TASK_BYTES), LEAST_TASK_BYTES, total_bytes // _TASKS)

    def ask(self, function: Callable[..., Any], *args: Any, found: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what each worker answers, or the error that it raised, by its address; `function` raises no OSError.

        Workers come and go meanwhile: who has gone needs no answer, and who has come is asked too. All answers are put
        into `found`, also of those who have gone since. Raises UnavailableError for a worker that does not answer.
        """
        found = {} if found is None else found
        why, until = "nothing came in time", time.monotonic() + ANSWER_SECONDS
        while True:
            there = self.workers(now=True)
            missing = [address for address in there if address not in found]
            if not missing:
                return {address: found[address] for address in there}
            left = until - time.monotonic()
            if left <= 0:
                address = min(missing, key=lambda each: there[each].get("last_seen", float("inf")))
                raise UnavailableError(
                    f"{self.name_of(address)} does not answer ({why})", hint="check its log; stop it, and try again"
                )
            answers: dict[str, Any] = {}
            options = {"workers": missing, "on_error": "return", "callback_timeout": left}
            with suppress(TimeoutError), meanings():
                # As `client.run`, beside their tasks; that would wait for ever for a worker that is stopped.
                answers = self.client.sync(self.client._run, function, *args, **options)  # noqa: SLF001
            for address, answer in answers.items():
                if isinstance(answer, OSError):  # of the connection
                    why = str(answer) or type(answer).__name__
                elif isinstance(answer, Seen) and answer.address != address:
                    why = f"another process answers there: {answer.address}"
                else:
                    found[address] = answer
            if len(found) < len(there):
                time.sleep(_AGAIN_SECONDS)

    def name_of(self, address: str) -> str:
        """Return how people know a process of the cluster."""
        if address not in self._workers:
            return address if "://" not in address else f"worker {address}"
        name = self._workers[address].get("name", address)
        return f"worker {name}" if name == address else f"worker {name} at {address}"

    def share(self, place: Meeting, size_bytes: int = 0) -> None:
        """Let every worker read a token in a place, and write one beside it that this process reads.

        Each must see room for `size_bytes` more there. Raises UnsupportedError.
        """
        token = f"{TOKEN}{uuid.uuid4().hex}"
        place.write(token, token.encode())
        found: dict[str, Any] = {}
        try:
            there = self.ask(reach.reach, messages.packed(place), token, found=found)
            self._check_reached(place, token, there, size_bytes)
        finally:
            names = [reached.name for reached in found.values() if isinstance(reached, reach.Reached)]
            for name in filter(None, (token, *names)):
                place.remove(name)

    def _check_reached(self, place: Meeting, token: str, found: Mapping[str, Any], size_bytes: int) -> None:
        for address, reached in found.items():
            if not isinstance(reached, reach.Reached):
                reached = reach.Reached(fault=f"{type(reached).__name__}: {reached}")  # noqa: PLW2901
            why = reached.fault or ("" if place.has(reached.name, token) else "its file is not here")
            problem, hint = f"cannot read and write where this machine does ({why})", place.hint
            if not why:
                known = f"{size(size_bytes)} will be written, and it sees {size(reached.free_bytes)} free"
                problem = f"has no room: {known}"
                hint = "it has another volume or a smaller quota than this machine; make room, or stop it"
            if why or reached.free_bytes < size_bytes:
                raise UnsupportedError(f"{self.name_of(address)} {problem}", path=place.path, hint=hint)

    def check_temporary(self, size_bytes: int, tasks: int) -> None:
        """Raise UnsupportedError where a worker has no room for temporary files of so many bytes a task."""
        if not size_bytes:
            return
        for address, found in self.ask(reach.spare).items():
            if not isinstance(found, reach.Reached):
                continue  # its first task says it better
            at_once = min(int(self._workers[address]["nthreads"]), tasks)
            if found.free_bytes < size_bytes * at_once:
                raise UnsupportedError(
                    f"{self.name_of(address)} has no room for temporary files: {counted(at_once, 'task')} at a time"
                    f" need {size(size_bytes * at_once)}, and it sees {size(found.free_bytes)} free",
                    path=found.name,
                    hint="start it with TMPDIR on a larger disk, or with fewer threads",
                )

    def bytes_read(self) -> int:
        """Return how many bytes all workers have read so far."""
        return sum(self._read.values())

    def run(
        self, work: Work[Opened, Task, Result], opened: Opened, tasks: Iterable[Task], advance: Advance
    ) -> Generator[Result, None, None]:
        """Yield the results of all tasks, in their order; workers open what they need themselves, and not `opened`."""
        del opened
        waiting, published = iter(tasks), Published.of(work, list(self.shown.values()))
        name = str(work) if isinstance(work, FunctionWork) else type(work).__name__.strip("_")
        running = _Running(self, published, name)
        self._at_work.append(running)
        try:
            while True:
                room = UNDER_WAY * max(self.all_threads, 1) - len(running)
                if room > 0 and len(running) <= room:  # many at a time: each message to the scheduler costs
                    running.begin(list(islice(waiting, room)))
                if not len(running):
                    return
                done = running.next()
                self._count(published.token, done, name)
                advance(done.done_bytes)
                yield done.result
        finally:
            self._at_work.remove(running)
            running.end()

    def _count(self, token: str, done: Done, name: str) -> None:
        self._tasks += 1
        key = (token, done.process)
        self._read[key] = max(self._read.get(key, 0), done.read_bytes)
        entry = (done.seconds, self._tasks, name, done.process)
        self._slowest = heapq.nlargest(_SLOWEST, (*self._slowest, entry))

    def doing(self) -> str:
        """Return how many tasks are done, also those that wait for one before them, and who does them; asks nobody."""
        done = self._tasks + sum(running.done() for running in tuple(self._at_work))
        return f"{counted(done, 'task')}, {counted(len(self._workers), 'worker')}"

    def named(self) -> str:
        """Return the workers in words."""
        names = sorted(str(info.get("name", address)) for address, info in self.workers().items())
        return f"{counted(len(names), 'worker')} of the cluster ({abridged(names, _NAMED)})"

    @property
    def address(self) -> str:
        """Return the address of the scheduler."""
        return str(self.client.scheduler.address)

    def listed(self) -> tuple[ClusterWorker, ...]:
        """Return the workers that were asked, by their names."""
        found: list[ClusterWorker] = []
        for address, info in self.workers().items():
            if address in self.versions:
                name, memory_bytes = str(info.get("name", address)), int(info["memory_limit"]) or None
                found.append(ClusterWorker(name, address, int(info["nthreads"]), memory_bytes, self.versions[address]))
        return tuple(sorted(found))

    def log_slowest(self) -> None:
        """Log how many tasks there were, and the slowest of them."""
        if self._tasks:
            LOG.info("%s on the cluster", counted(self._tasks, "task"))
        for seconds, number, work, process in self._slowest:
            LOG.info("slow: task %d (%s) took %.2f s in %s", number, work, seconds, process.rpartition(":")[0])


class Silence:
    """The time in which a command waits for a result, and no worker can go on."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._before = ("", 0)
        self._has_warned = False

    def look(self, executor: ClusterExecutor, done: int) -> None:
        """Look at the workers again; warn, and then raise UnavailableError, when nobody has gone on for long.

        `done` are the tasks that are done, of those that the scheduler has.
        """
        workers = executor.workers()
        paused = [executor.name_of(address) for address, info in workers.items() if info["status"] == "paused"]
        is_at_work = any(info["metrics"].get("task_counts", {}).get("executing") for info in workers.values())
        why = ""
        if paused and not is_at_work:
            why = "paused"
        elif not workers:
            why = "no worker"
        if not why or (why, done) != self._before:
            self._since = None
        self._before = why, done
        if not why:
            return
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if paused and now - self._since > PAUSED_SECONDS and not self._has_warned:
            self._has_warned = True
            executor.reporter.warn(
                f"{abridged(paused, _NAMED)}: paused by Dask, with more in memory than it allows; the work waits"
                f" {NO_WORKER_SECONDS:.0f} seconds"
            )
        if now - self._since > NO_WORKER_SECONDS:
            waited, hint = f"for {NO_WORKER_SECONDS:.0f} seconds", START_WORKERS
            message = f"the cluster has had no worker {waited}"
            if paused:
                message = f"{abridged(paused, _NAMED)}: paused by Dask {waited}, with more in memory than it allows"
                hint = "give workers more memory (their --memory-limit), or start them again"
            raise UnavailableError(message, hint=hint)


class _Running:
    """The tasks of one work that the scheduler has."""

    def __init__(self, executor: ClusterExecutor, published: Published, name: str) -> None:
        self._executor = executor
        self._client = client = executor.client
        self._name = name
        self._published = published
        self._plan: Any = published
        if len(published.data) + len(published.shown) > _LIGHT_BYTES:
            with meanings():
                # A task of its own, not data that is lost with the worker that has it. Dask gives the tasks that use
                # it to that worker first, and few tasks only to that one: so not where a plan is small.
                self._plan = client.submit(Published, *published, key=f"edl-ckpt-plan-{published.token}", pure=False)
        self._futures: deque[tuple[Any, bytes, int]] = deque()

    def __len__(self) -> int:
        return len(self._futures)

    def done(self) -> int:
        """Return the number of finished tasks with results that were not fetched, as the scheduler says."""
        return sum(future.done() for future, _, _ in tuple(self._futures))

    def begin(self, tasks: Sequence[Any]) -> None:
        """Give tasks to the scheduler."""
        if tasks:
            self._futures.extend(self._given([(messages.packed(task), 1) for task in tasks]))

    def _given(self, tasks: Sequence[tuple[bytes, int]]) -> Iterator[tuple[Any, bytes, int]]:
        """Give packed tasks to the scheduler, each with the number of its life; return them with their futures."""
        with meanings():
            futures = self._client.map(
                worker.do_task,
                [data for data, _ in tasks],
                published=self._plan,
                key=[f"edl-ckpt-{self._name}-{uuid.uuid4().hex}" for _ in tasks],
                pure=False,
            )
        return ((future, *task) for future, task in zip(futures, tasks, strict=True))

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
                    hint="give workers more memory (their --memory-limit), and check their logs",
                ) from error
            self._futures.extendleft(self._given([(data, life + 1)]))
            return self.next()
        finally:
            future.release()  # an error has this frame as long as somebody looks at it; its task need not stay
        return done

    def _wait(self, future: Any) -> Done:
        from distributed import TimeoutError as NotYet

        silence = Silence()
        while True:
            try:
                with meanings():
                    done: Done = future.result(timeout=LOOK_SECONDS)
            except NotYet:
                silence.look(self._executor, self.done())
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
            # As `client.run`, which would wait for a worker that is stopped; that one closes its files later.
            options = {"on_error": "ignore", "callback_timeout": END_SECONDS}
            self._client.sync(self._client._run, worker.end_work, self._published.token, **options)  # noqa: SLF001
