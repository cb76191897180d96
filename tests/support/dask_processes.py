"""Real `dask scheduler` and `dask worker` processes, also workers that something is wrong with.

`dask scheduler` and `dask worker` are the modules that they run; each is a process of its own here, on a free port.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from waiting import wait_until

_QUIET: Final = {"DASK_LOGGING__DISTRIBUTED": "critical"}
BLIND: Final = 'mount -t tmpfs none "$0" && exec "$@"'
"""A shell's words: the directory is another one."""
READ_ONLY: Final = 'mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
ANOTHER_VERSION: Final = "import edl_ckpt.core.base.version as v; v.VERSION = '0.0.9'"
NO_ROOM: Final = "import edl_ckpt.core.cluster.reach as r; r.free_bytes = lambda directory: 10"
"""Stands for a quota of the worker's user."""


class DaskProcesses:
    """A scheduler and its workers; `file` is the scheduler file."""

    def __init__(self, place: Path, env: Mapping[str, str] | None = None) -> None:
        self.place, self.file = place, place / "scheduler.json"
        self._env = {**os.environ, **_QUIET, **(env or {}), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self.scheduler: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Return the address of the scheduler."""
        found: str = json.loads(self.file.read_text())["address"]
        return found

    def start_scheduler(self, *options: str) -> None:
        """Start the scheduler, and wait until it has written its file."""
        self.file.unlink(missing_ok=True)
        given = ["--scheduler-file", str(self.file), "--port", "0", "--no-dashboard", "--host", "127.0.0.1", *options]
        self.scheduler = self._start([sys.executable, "-m", "distributed.cli.dask_scheduler", *given])
        wait_until(lambda: self.file.exists() and self.file.read_text().endswith("}"))

    def start_worker(
        self,
        name: str,
        *options: str,
        first: str = "",
        mount: tuple[str, Path] | None = None,
        at: str = "",
    ) -> subprocess.Popen[bytes]:
        """Start a worker of one thread without a nanny; `first` is Python that it runs before.

        `mount` is (`BLIND` or `READ_ONLY`, a directory): then the worker has file systems of its own. `at` is the
        address of the scheduler, if the worker does not take that of the file.
        """
        code = f"{first}\nfrom distributed.cli.dask_worker import main\nmain()"
        where = [at] if at else ["--scheduler-file", str(self.file)]
        given = [*where, "--name", name, "--no-nanny", "--no-dashboard", "--nthreads", "1", "--host", "127.0.0.1"]
        command = [sys.executable, "-c", code, *given, "--local-directory", str(self.place), *options]
        if mount is not None:
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount[0], str(mount[1]), *command]
        self.workers[name] = self._start(command)
        return self.workers[name]

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self._env)

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        """End a worker, and wait for it."""
        process = self.workers.pop(name)
        process.send_signal(number)
        process.wait(300)

    def close(self) -> None:
        """Kill everything."""
        for process in (*self.workers.values(), self.scheduler):
            if process is not None:
                with suppress(OSError):
                    process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait(300)


@contextmanager
def dask_processes(place: Path, workers: int = 0, env: Mapping[str, str] | None = None) -> Iterator[DaskProcesses]:
    """Yield a scheduler with some workers, `w0`, `w1` and so on."""
    place.mkdir(parents=True, exist_ok=True)
    found = DaskProcesses(place, env)
    try:
        found.start_scheduler()
        for number in range(workers):
            found.start_worker(f"w{number}")
        yield found
    finally:
        found.close()


def wait_for_workers(client: Any, count: int) -> None:
    """Wait until a scheduler has as many workers."""
    wait_until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == count)
