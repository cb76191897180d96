"""What a real scheduler takes for a task of ours that does nothing: its CPU, its memory, and the CPU of the command.

`python tests/bench/scale_scheduler.py TASKS WORKERS THREADS` starts a scheduler in a process of its own, and all
workers in another one, because they have nothing to do. Tasks and results have the size of those of a reshard.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_TICKS = os.sysconf("SC_CLK_TCK")


class Nothing:
    """What tasks open."""

    bytes_read = 0

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Trivial:
    """Tasks that return an array of so many bytes."""

    result_bytes: int

    def open(self) -> Nothing:
        """Open nothing."""
        return Nothing()

    def do(self, opened: Nothing, task: tuple[int, bytes], advance: Any) -> Any:
        """Return zeros."""
        return np.zeros(self.result_bytes, np.uint8)


@dataclass(frozen=True)
class SchedulerCost:
    """Seconds of CPU for each task, of the scheduler, the command and a worker; memory of the scheduler in MiB."""

    tasks: int
    workers: int
    threads: int
    wall_ms: float
    scheduler_ms: float
    command_ms: float
    worker_ms: float
    scheduler_mib: float
    command_mib: float


def measure_scheduler(tasks: int, workers: int, threads: int, *, result_bytes: int = 2000) -> SchedulerCost:
    """Let a real cluster do tasks that do nothing."""
    from distributed import Client

    from edl_ckpt.core.cluster.executor import ClusterExecutor

    connect: Any = Client  # it ships no types
    with _cluster(workers, threads) as (file, scheduler, worker), connect(scheduler_file=file) as client:
        client.wait_for_workers(workers, timeout=120)
        executor = ClusterExecutor(client)
        with closing(executor.run(Trivial(10), Nothing(), _tasks(workers), lambda _: None)) as warm:
            list(warm)
        before, begin = [_cpu(scheduler), _cpu(worker), time.process_time()], time.perf_counter()
        work: Any = Trivial(result_bytes)
        with closing(executor.run(work, Nothing(), _tasks(tasks), lambda _: None)) as results:
            assert sum(1 for _ in results) == tasks
        wall = time.perf_counter() - begin
        after = [_cpu(scheduler), _cpu(worker), time.process_time()]
        used = [1e3 * (b - a) / tasks for a, b in zip(before, after, strict=True)]
        peaks = _peak_mib(scheduler), _peak_mib(os.getpid())
    return SchedulerCost(tasks, workers, threads, 1e3 * wall / tasks, used[0], used[2], used[1], *peaks)


def _tasks(count: int) -> Iterator[tuple[int, bytes]]:
    return ((number, bytes(1000)) for number in range(count))


@contextmanager
def _cluster(workers: int, threads: int) -> Iterator[tuple[str, int, int]]:
    """Yield (the scheduler's file, its process, that of all workers)."""
    with tempfile.TemporaryDirectory() as directory:
        file = f"{directory}/scheduler.json"
        words = ["--port", "0", "--no-dashboard", "--interface", "lo", "--scheduler-file", file]
        scheduler = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *words], stderr=subprocess.DEVNULL
        )
        command = [sys.executable, __file__, "--workers", file, str(workers), str(threads), directory]
        started = [scheduler]
        try:
            while not Path(file).exists() and scheduler.poll() is None:
                time.sleep(0.1)
            started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
            yield file, scheduler.pid, started[1].pid
        finally:
            for each in reversed(started):
                each.terminate()
                each.wait(30)


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


async def _work(file: str, workers: int, threads: int, directory: str) -> None:
    from distributed import Worker

    make: Any = Worker
    some = [
        make(scheduler_file=file, nthreads=threads, name=str(k), local_directory=f"{directory}/{k}", dashboard=False)
        for k in range(workers)
    ]
    for each in some:
        await each
    await asyncio.gather(*(each.finished() for each in some))


if __name__ == "__main__":
    if sys.argv[1] == "--workers":
        asyncio.run(_work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]))
    else:
        from scale_scheduler import measure_scheduler as measure  # by its name, for the workers

        print(measure(*map(int, sys.argv[1:])))
