"""What each kind of task of a reshard costs a processor: measured with the real tasks on a real version, one at a time.

Every task is packed, opened and done as a worker does it, in this thread. Two runs, with small and with large tasks,
tell what a task costs from what its bytes cost. The files are in the page cache: bandwidth is a question of its own.
"""

from __future__ import annotations

import pickle
import shutil
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shapes import Shape, write

from edl_ckpt.core import reshard_version
from edl_ckpt.core.cluster import worker
from edl_ckpt.core.parallel import alone

SMALL, LARGE = 4 << 20, 64 << 20
_TURNS = 144
"""Tasks of so many threads have the memory for ids of 16 threads where tables are nine times as large."""


@dataclass(frozen=True)
class Cost:
    """Seconds of CPU of a task, and of each GB that it reads."""

    task: float
    gigabyte: float


class Measuring:
    """An executor that does each task as a worker does, one after the other, and notes its CPU and its bytes."""

    elsewhere, threads = True, _TURNS

    def __init__(self, task_bytes: int) -> None:
        self._task_bytes = task_bytes
        self._read = 0
        self.found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
        """By the name of the work: tasks, seconds, bytes read."""

    def task_bytes(self, total_bytes: int) -> int:
        """Return the bytes that all tasks have."""
        return self._task_bytes

    def share(self, place: Any, size_bytes: int = 0) -> None:
        """Do nothing."""

    def check_temporary(self, size_bytes: int, tasks: int) -> None:
        """Do nothing."""

    def bytes_read(self) -> int:
        """Return the bytes that tasks have read."""
        return self._read

    def run(self, work: Any, opened: Any, tasks: Iterable[Any], advance: Any) -> Generator[Any, None, None]:
        """Yield the results of tasks."""
        own = pickle.loads(worker.packed(work))
        resource, before = own.open(), 0
        counted = self.found[type(work).__name__.strip("_")]
        try:
            for task in tasks:
                data = worker.packed(task)
                begin = time.thread_time()
                with alone():
                    result = own.do(resource, pickle.loads(data), advance)
                done = pickle.loads(pickle.dumps(result))
                counted[0] += 1
                counted[1] += time.thread_time() - begin
                counted[2] += resource.bytes_read - before
                before = resource.bytes_read
                yield done
        finally:
            self._read += resource.bytes_read
            resource.close()


def measure_costs(work: Path, megabytes: int) -> dict[str, Cost]:
    """Return the cost of each kind of task, by the name of its work; a version of so many MB is made for it."""
    rows = megabytes * 1_000_000 // (2 * (4 * 36 + 5))
    location = work / "costs"
    write(location, Shape(16, ((rows, 24), (rows, 48)), 40, 16))
    runs = []
    try:
        for number, task_bytes in enumerate((LARGE, SMALL, LARGE)):  # the first one warms everything up
            executor = Measuring(task_bytes)
            out = work / f"costs-{number}"
            reshard_version(f"{location}@1", 25, output=str(out), executor=executor)
            shutil.rmtree(out)
            runs.append(executor.found)
    finally:
        shutil.rmtree(location)
    small, large = runs[1:]
    return {name: _cost(small[name], large[name]) for name in large if large[name][0]}


def _cost(small: list[float], large: list[float]) -> Cost:
    """Return what fits both runs; where the number of tasks is the same, bytes cost everything."""
    tasks = small[0] - large[0]
    each = max((small[1] - large[1]) / tasks, 0.0) if tasks > 0 else 0.0
    return Cost(each, max(large[1] - each * large[0], 0.0) / max(large[2] / 1e9, 1e-9))
