"""The floor of a reshard on a disk: `python tests/bench/floor.py LOCATION OUT` reads, writes, flushes and reads back.

It moves the bytes of a version as a reshard moves them, and does nothing else: the source in blocks of 1 MiB that fit
into a cache, the copy in stretches of 128 KiB into allocated files, which are flushed while they are read back. There
is no id, no fingerprint, no checksum and no command line. What a reshard takes beyond that is its own work.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK, STRETCH = 1 << 20, 128 << 10
WORKERS = len(os.sched_getaffinity(0))


def move(source: int, target: int, start: int, end: int) -> None:
    """Copy some bytes of a file."""
    buffer = bytearray(BLOCK)
    for at in range(start, end, BLOCK):
        size = os.preadv(source, [memoryview(buffer)[: end - at]], at)
        for part in range(0, size, STRETCH):
            os.pwrite(target, memoryview(buffer)[part : min(part + STRETCH, size)], at + part)


def read(target: int, start: int, end: int) -> None:
    """Read some bytes of a file."""
    buffer = bytearray(BLOCK)
    for at in range(start, end, BLOCK):
        os.preadv(target, [memoryview(buffer)[: end - at]], at)


def main(location: Path, out: Path) -> None:
    """Print the seconds of both passes, and what they took of the processor."""
    begin = time.perf_counter()
    out.mkdir(parents=True)
    files = [
        (os.open(path, os.O_RDONLY), os.open(out / path.name, os.O_RDWR | os.O_CREAT), path.stat().st_size)
        for path in sorted(location.rglob("variables-*"))
    ]
    for _, target, size in files:
        os.posix_fallocate(target, 0, size)
    cuts = [(s, t, at, min(at + 8 * BLOCK, size)) for s, t, size in files for at in range(0, size, 8 * BLOCK)]
    with ThreadPoolExecutor(WORKERS) as pool, ThreadPoolExecutor(len(files)) as flushers:
        list(pool.map(lambda cut: move(*cut), cuts))
        written = time.perf_counter() - begin
        flushed = [flushers.submit(os.fsync, target) for _, target, _ in files]
        list(pool.map(lambda cut: read(*cut[1:]), cuts))
        for each in flushed:
            each.result()
    total, usage = sum(size for _, _, size in files), os.times()
    print(
        f"{total / 1e9:.2f} GB, {WORKERS} threads: {time.perf_counter() - begin:.2f} s, {written:.2f} s until all was"
        f" written, {usage.user + usage.system:.2f} s CPU"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
