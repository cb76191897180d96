"""The figures of a Dask cluster on this machine: each command on two worker processes, beside two threads of its own.

Scheduler and workers are the processes that `dask scheduler` and `dask worker` start. They run before the first pair,
and have done the same work once. Seconds of CPU are those of the command, the scheduler and the workers together; the
memory is that of the largest of these processes, and the note of a figure has each of them.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from disk_figures import Bench
from measure import EDL, Figure, Run, Target, elsewhere, remove, run
from shapes import Shape, make, size_of

WORKERS = 2
THREADS = "--workers 2"
START_SECONDS = 120


def cluster_figures(bench: Bench) -> Iterator[Figure]:
    """Reshard and verify on two workers of one thread, beside two threads of the command."""
    if importlib.util.find_spec("distributed") is None:
        print("cluster is left out: distributed is not installed", file=sys.stderr)
        return
    for rows in (16_000_000, 64_000_000):
        source = make(bench.work / "source", Shape(4, ((bench.rows(rows), 16),), 40))
        yield from figures_of(bench, source)
        remove(source)()


def figures_of(bench: Bench, source: Path) -> Iterator[Figure]:
    """Measure the commands on one checkpoint."""
    size, out = f"{size_of(source) / 1e9:.2f} GB", bench.work / "out"
    runs = bench.few if size_of(source) > 2e9 else bench.runs
    cases = [
        ("reshard 4 -> 8", ["reshard", str(source), "--ps", "8", "--output", str(out)], Target(1.15, mib=300)),
        ("verify --deep", ["verify", str(source), "--deep"], Target()),
    ]
    with started(bench.work / "dask") as (address, pids):
        for name, words, target in cases:
            figure = Figure(f"{name}, {size}, 2 workers of one thread", THREADS, target)
            command, clean = [*EDL, *words, "--quiet"], remove(out)
            for turn in range(runs + 1):
                clean()
                ours = on_cluster([*command, "--cluster", str(address)], bench.work, pids, figure)
                clean()
                reference = run([*command, *THREADS.split()], bench.work)
                if turn:
                    figure.ours.append(ours)
                    figure.reference.append(reference)
            clean()
            print(figure.line(), flush=True)
            yield figure


def on_cluster(command: list[str], work: Path, pids: dict[str, int], figure: Figure) -> Run:
    """Run a command; count the processes of its cluster too, and note the memory of each."""
    before = sum(cpu_seconds(pid) for pid in pids.values())
    done = run(command, work)
    done.cpu += sum(cpu_seconds(pid) for pid in pids.values()) - before
    peaks = {"command": done.peak_mib} | {name: peak_mib(pid) for name, pid in pids.items()}
    figure.note = ", ".join(f"{name} {peak:.0f} MiB" for name, peak in peaks.items())
    done.peak_mib = max(peaks.values())
    return done


@contextmanager
def started(place: Path, count: int = WORKERS) -> Iterator[tuple[Path, dict[str, int]]]:
    """Start a scheduler and workers; yield the scheduler's file, and the processes that work, by their names."""
    place.mkdir(parents=True)
    address = place / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    where = ["--no-dashboard", "--host", "127.0.0.1"]
    begun: list[subprocess.Popen[bytes]] = []
    with (place / "log").open("wb") as log:

        def start(*words: str) -> None:
            begun.append(subprocess.Popen([*dask, *words, *where], stderr=log, stdout=log))

        try:
            start("scheduler", "--port", "0", "--scheduler-file", str(address))
            wait_for(address)
            for _ in range(count):
                start("worker", "--nthreads", "1", "--scheduler-file", str(address), "--local-directory", str(place))
            workers = elsewhere(worker_processes, str(address), count)
            pids = {f"worker {number}": pid for number, pid in enumerate(sorted(workers), 1)}
            yield address, {"scheduler": begun[0].pid} | pids
        finally:
            for process in reversed(begun):
                process.terminate()
            for process in begun:
                process.wait()
    remove(place)()


def wait_for(path: Path) -> None:
    """Wait until a file is there, and whole."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"{path}: no scheduler")


def worker_processes(address: str, count: int) -> list[int]:
    """Return the processes of all workers, once they are there."""
    from distributed import Client

    connect: Any = Client
    with connect(scheduler_file=address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=START_SECONDS)
        found: dict[str, Any] = client.run(os.getpid)
    return list(found.values())


def cpu_seconds(pid: int) -> float:
    """Return the CPU that a process has taken so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """Return the most memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
