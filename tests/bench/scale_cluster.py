"""A cluster that does the tasks of a plan, as events: the command, the scheduler, threads, networks, the file server.

The command and the scheduler do one thing at a time. Results are taken in the order of the tasks, and so many tasks are
under way as the executor allows. A thread reads, computes and writes in slices, which queue for the network of its
machine and for the file server. What is busy most is what a pass waits for.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from edl_ckpt.core.cluster.executor import UNDER_WAY

_SLICE = 32 << 20


@dataclass(frozen=True)
class Machines:
    """A cluster: bytes per second of each worker's network and of the file server, and its operations per second."""

    workers: int = 64
    threads: int = 16
    network: float = 3.1e9
    storage: float = 40e9
    operations: float = 100_000.0
    cores: int = 16

    @property
    def slots(self) -> int:
        """Return the threads of all workers."""
        return self.workers * self.threads


@dataclass(frozen=True)
class Task:
    """What a task takes: bytes read and written, operations on files, seconds of CPU."""

    read: int
    written: int
    operations: int
    cpu: float


@dataclass
class Outcome:
    """How long a pass took, and the part of that time for which each resource was busy."""

    tasks: int
    seconds: float = 0.0
    busy: dict[str, float] = field(default_factory=dict)

    @property
    def bound(self) -> str:
        """Return what was busy most."""
        return max(self.busy, key=self.busy.__getitem__)


class _Queue:
    """Something that serves one at a time."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def serve(self, now: float, seconds: float) -> float:
        """Return when work that arrives now is done."""
        self.free = max(self.free, now) + seconds
        self.busy += seconds
        return self.free


def simulate(tasks: Sequence[Task], machines: Machines, *, command: float, scheduler: float) -> Outcome:
    """Return the outcome of a pass; seconds of the command and of the scheduler for each task."""
    one, other, storage, files = _Queue(), _Queue(), _Queue(), _Queue()
    networks = [_Queue() for _ in range(machines.workers)]
    idle = [number % machines.workers for number in range(machines.slots)]
    waiting: deque[int] = deque()
    done = [False] * len(tasks)
    begun = taken = 0
    cpu = now = 0.0
    events: list[tuple[float, int, int, int, int]] = []  # time, task, worker (-1: it becomes known), slices left

    def step(at: float, number: int, place: int, left: int) -> None:
        """Let a thread do one slice of a task."""
        nonlocal cpu
        task = tasks[number]
        total = _slices(task)
        moved = (task.read + task.written) / total
        if left == total:
            at = max(at, files.serve(at, task.operations / machines.operations))
        at = max(networks[place].serve(at, moved / machines.network), storage.serve(at, moved / machines.storage))
        cpu += task.cpu / total
        heapq.heappush(events, (at + task.cpu / total, number, place, left - 1, 1))

    while taken < len(tasks):
        while begun < len(tasks) and begun - taken < UNDER_WAY * machines.slots:
            ready = other.serve(one.serve(now, command / 2), scheduler)
            heapq.heappush(events, (ready, begun, -1, 0, 0))
            begun += 1
        now, number, place, left, _ = heapq.heappop(events)
        if place < 0:
            waiting.append(number)
        elif left:
            step(now, number, place, left)
        else:
            idle.append(place)
            done[number] = True
            while taken < len(tasks) and done[taken]:
                one.serve(now, command / 2)
                taken += 1
        while idle and waiting:
            number = waiting.popleft()
            step(now, number, idle.pop(), _slices(tasks[number]))
    end = max(now, one.free)
    shares = {
        "the command": one.busy,
        "the scheduler": other.busy,
        "the network of workers": sum(queue.busy for queue in networks) / machines.workers,
        "the bandwidth of the file server": storage.busy,
        "operations of the file server": files.busy,
        "the processors": cpu / (machines.workers * min(machines.threads, machines.cores)),
    }
    return Outcome(len(tasks), end, {name: busy / end if end else 0.0 for name, busy in shares.items()})


def _slices(task: Task) -> int:
    return max(-(-(task.read + task.written) // _SLICE), 1)
