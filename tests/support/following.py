"""A job that saves, step by step, and a clock on which nothing takes time: each wait of a follower is the next step."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import builders
from edl_ckpt.core.operations.follow.observe import Clock
from oracle import Model, Table

START = 2_000_000_000.0
"""The time of day when a test begins: later than every file that a test writes."""


@dataclass(slots=True)
class Script:
    """Steps, each taken while a follower waits; after the last one the clock goes on alone."""

    steps: Iterator[Callable[[], object]]
    seconds: float = 0.0
    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        """Let the time pass, and take the next step."""
        self.waits.append(seconds)
        assert len(self.waits) < 10_000, "the follower waits for ever"
        self.seconds += seconds
        next(self.steps, lambda: None)()

    @property
    def clock(self) -> Clock:
        """The clock of this script."""
        return Clock(lambda: START + self.seconds, lambda: self.seconds, self.sleep)


def script(*steps: Callable[[], object]) -> Script:
    """Return a script of some steps."""
    return Script(iter(steps))


def endless(steps: Iterable[Callable[[], object]]) -> Script:
    """Return a script of any number of steps."""
    return Script(iter(steps))


@functools.cache
def shard_data(number: int, ps_id: int, ps_num: int) -> bytes:
    """Return a shard of a version with one table of 40 rows."""
    rows = {i: bytes(8) for i in range(40)}
    model = Model(number, tables={"t": Table(2, "zeros", "float32", rows)})
    return builders.shard_bytes(model, ps_id, ps_num, "v4")


@dataclass(slots=True)
class Job:
    """A job that saves in place, as ElasticDL does.

    Where one process writes and looks, `dated` gives each write a time of its own. Beside another process it would
    change a file twice: its bytes, and a moment later its time.
    """

    run: Path
    ps_num: int = 2
    dated: bool = True
    writes: int = 0

    def path(self, number: int, ps_id: int) -> Path:
        """Return the path of a shard."""
        return self.run / f"version-{number}" / f"variables-{ps_id}-of-{self.ps_num}.ckpt"

    def shard(self, number: int, ps_id: int, *, part: float = 1.0) -> None:
        """Write a shard, or the first part of it."""
        path = self.path(number, ps_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        data = shard_data(number, ps_id, self.ps_num)
        path.write_bytes(data[: int(len(data) * part)])
        self.writes += 1
        if self.dated:
            os.utime(path, (1_000_000_000 + self.writes,) * 2)

    def save(self, *numbers: int) -> None:
        """Write all shards of versions."""
        for number in numbers:
            for ps_id in range(self.ps_num):
                self.shard(number, ps_id)


_SAVER = """
import random, sys, threading
from pathlib import Path
sys.path[:0] = sys.argv[1].split(":")
from following import Job
job, chance, pause = Job(Path(sys.argv[2]), dated=False), random.Random(int(sys.argv[3])), threading.Event()
for number in map(int, sys.argv[4:]):
    for ps_id in range(job.ps_num):
        for part in sorted(chance.random() for _ in range(2)) + [1.0]:
            job.shard(number, ps_id, part=part)
            pause.wait(chance.random() / 20)
"""


def saving(run: Path, *numbers: int, seed: int = 0) -> subprocess.Popen[bytes]:
    """Start a process that saves versions in place, piece by piece, at a pace of its own."""
    paths = ":".join(path for path in sys.path if path)
    return subprocess.Popen([sys.executable, "-c", _SAVER, paths, str(run), str(seed), *map(str, numbers)])
