"""Wait for an event and not for a time: until a condition holds, or until the program is about to make a call."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

CHANGES = "pwrite,posix_fallocate,ftruncate,fsync,rename,replace,unlink,rmdir,mkdir"
"""The functions of `os` that change a directory, or bring a change to the disk."""

_PROGRAM = """
import os, sys, threading
stops = [(names.split(","), int(k)) for names, _, k in (stop.partition(":") for stop in sys.argv[1].split())]
ready, go = int(sys.argv[2]), int(sys.argv[3])
del sys.argv[1:4]
lock, count, write = threading.Lock(), 0, os.write
def watched(name, real):
    def call(*arguments, **options):
        global count
        with lock:
            seen = bool(stops) and name in stops[0][0]
            count += seen
            here = seen and count == stops[0][1]
            counted = seen and not stops[0][1]
            if here:
                del stops[0]
                count = 0
        if here or counted:  # last of all, for a signal may come now
            write(ready, b".")
        if here:
            os.read(go, 1)
        return real(*arguments, **options)
    return call
from edl_ckpt.cli.app import main
for name in {name for names, _ in stops for name in names}:
    setattr(os, name, watched(name, getattr(os, name)))
main()
"""


def wait_until(condition: Callable[[], object], *, seconds: float = 300.0) -> None:
    """Return as soon as a condition is true; fail when it is not within so many seconds."""
    for _ in wait_for(condition, seconds=seconds, pause=0.01):
        pass


def settle() -> None:
    """Return when the clock of files has ticked: no later change has the time of one that was made before."""
    now = time.time()
    wait_until(lambda: time.time() > now + 0.06)


def wait_for(condition: Callable[[], object], *, seconds: float = 300.0, pause: float = 0.3) -> Iterator[None]:
    """Yield before each look at a condition until it is true; fail when it is not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"nothing of the kind within {seconds:g} s"
        yield
        time.sleep(pause)


@dataclass(frozen=True, slots=True)
class Paused:
    """The program as a process of which one thread waits before a call; the others go on."""

    process: subprocess.Popen[str]
    ready: int
    go: int

    def wait_for_stop(self) -> None:
        """Wait until the program is about to make the next call that it is to stop at."""
        assert os.read(self.ready, 1), "the program ended before it made the call"

    def resume(self) -> None:
        """Let the thread make its call."""
        with suppress(BrokenPipeError):  # the process has ended
            os.write(self.go, b".")

    def end_by(self, number: int) -> int:
        """Send a signal, let the thread go on, and return the exit code."""
        self.process.send_signal(number)
        self.resume()
        return self.process.wait(300)


@contextmanager
def paused(
    *arguments: str | Path, at: str, cwd: Path | None = None, stderr: int | IO[str] = subprocess.DEVNULL
) -> Iterator[Paused]:
    """Run the program, and yield it when it is about to make a call; in the end it goes on.

    `at` is a function of `os` and a count: `fsync:2` stops before the second `fsync`. Several functions are counted
    together as in `unlink,rmdir:1`; a space stands before a further stop, which counts from the one before it.
    """
    with _watched(arguments, at, cwd, stderr) as program:
        program.wait_for_stop()
        yield program
        program.resume()


def count_calls(*arguments: str | Path, of: str, cwd: Path | None = None) -> int:
    """Run the program to its end, and return how many calls of some functions of `os` it made."""
    with _watched(arguments, f"{of}:0", cwd) as program:
        count = sum(map(len, iter(lambda: os.read(program.ready, 65536), b"")))
        assert program.process.wait(300) == 0
    return count


@contextmanager
def _watched(
    arguments: Iterable[str | Path], stops: str, cwd: Path | None, stderr: int | IO[str] = subprocess.DEVNULL
) -> Iterator[Paused]:
    """Run the program with some functions watched; `ready` is at its end when the process has ended."""
    ready, ready_there = os.pipe()
    go_there, go = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, stops, str(ready_there), str(go_there), *map(str, arguments)],
            cwd=cwd,
            env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"},
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            text=True,
            pass_fds=(ready_there, go_there),
        ) as process:
            os.close(ready_there)
            os.close(go_there)
            try:
                yield Paused(process, ready, go)
            except BaseException:
                process.kill()
                raise
    finally:
        os.close(ready)
        os.close(go)
