"""The floor of what moves a version: `python tests/bench/floor.py LOCATION OUT [--sorted] [--pairs 5]`.

It moves the bytes of a version as a reshard moves them, and does nothing else: it allocates files by several threads,
reads the source in blocks that fit into a cache, writes stretches of 128 KiB, and reads the copy back while it is
flushed. With `--sorted` the copy is one file and is read and written once more, as by a sort of rows that do not fit
into memory. There is no id, no fingerprint, no checksum and no command line: what a command takes beyond that is its
own work. `cp -r` and `sync` run in turn with it, so a ratio says what no command can be below on this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

BLOCK, STRETCH = 256 << 10, 128 << 10
CUT = 8 << 20
"""Bytes that a thread moves at a time."""
WORKERS = len(os.sched_getaffinity(0))


class Taken(NamedTuple):
    """What a run took: wall seconds, and those of the processor."""

    wall: float
    cpu: float


class Cut(NamedTuple):
    """Bytes [start, end) of a source, and where they go in a target: descriptors of both."""

    source: int
    target: int
    start: int
    end: int
    shift: int


def move(cut: Cut) -> None:
    """Copy some bytes of a file."""
    buffer = memoryview(bytearray(BLOCK))
    for at in range(cut.start, cut.end, BLOCK):
        size = os.preadv(cut.source, [buffer[: cut.end - at]], at)
        for part in range(0, size, STRETCH):
            os.pwrite(cut.target, buffer[part : min(part + STRETCH, size)], at + cut.shift + part)


def read(cut: Cut) -> None:
    """Read some bytes of the target."""
    buffer = memoryview(bytearray(BLOCK))
    for at in range(cut.start, cut.end, BLOCK):
        os.preadv(cut.target, [buffer[: cut.end - at]], at + cut.shift)


def floor(location: Path, out: Path, *, is_sorted: bool) -> None:
    """Copy all shards of a location and read the copy back; one file that is written twice where rows are sorted."""
    out.mkdir(parents=True)
    paths = sorted(location.rglob("variables-*"))
    sizes = [path.stat().st_size for path in paths]
    shifts = [0, *accumulate(sizes)][: len(sizes)] if is_sorted else [0] * len(sizes)
    sources = [os.open(path, os.O_RDONLY) for path in paths]
    names, totals = (["sorted"], [sum(sizes)]) if is_sorted else ([path.name for path in paths], sizes)
    targets = [os.open(out / name, os.O_RDWR | os.O_CREAT) for name in names]
    files = zip(sources, targets * len(sources) if is_sorted else targets, sizes, shifts, strict=True)
    cuts = [
        Cut(source, target, start, min(start + CUT, size), shift)
        for source, target, size, shift in files
        for start in range(0, size, CUT)
    ]
    with ThreadPoolExecutor(WORKERS) as pool, ThreadPoolExecutor(len(targets)) as flushers:
        list(pool.map(os.posix_fallocate, targets, [0] * len(targets), totals))
        list(pool.map(move, cuts))
        if is_sorted:
            list(
                pool.map(
                    lambda cut: move(Cut(cut.target, cut.target, cut.start + cut.shift, cut.end + cut.shift, 0)), cuts
                )
            )
        flushed = [flushers.submit(os.fsync, target) for target in targets]
        list(pool.map(read, cuts))
        for each in flushed:
            each.result()
    for descriptor in (*sources, *targets):
        os.close(descriptor)


def taken(work: Callable[[], object], out: Path) -> Taken:
    """Return what some work takes, with its child processes; what it has written is removed."""
    before, begin = os.times(), time.perf_counter()
    work()
    wall, after = time.perf_counter() - begin, os.times()
    shutil.rmtree(out)
    os.sync()
    return Taken(wall, sum(after[:4]) - sum(before[:4]))


def main() -> None:
    """Run both in turn and print the medians, and the median of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("location", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sorted", action="store_true", dest="is_sorted", help="write and read everything once more")
    parser.add_argument("--pairs", type=int, default=5)
    asked = parser.parse_args()

    def ours() -> None:
        floor(asked.location, asked.out, is_sorted=asked.is_sorted)

    def reference() -> None:
        subprocess.run(["cp", "-r", asked.location, asked.out], check=True)
        os.sync()

    runs = [(taken(ours, asked.out), taken(reference, asked.out)) for _ in range(asked.pairs + 1)][1:]
    for name, number in (("s", 0), ("s of CPU", 1)):
        mine, its = ([run[which][number] for run in runs] for which in (0, 1))
        ratio = statistics.median(one / other for one, other in zip(mine, its, strict=True))
        print(f"{statistics.median(mine):.2f} {name}, {statistics.median(its):.2f} of cp, sync: {ratio:.2f} x")


if __name__ == "__main__":
    main()
