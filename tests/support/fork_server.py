"""Runs the program in forked children of one process that has imported everything: a command takes 0.02 s, not 0.3 s.

A test process starts one server at its first command. Each child has the directory, the environment and the streams
that the test gives it; nothing of one command stays for the next. The start of the program itself is tested elsewhere,
by processes of its own.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 20
_MODULES = (
    *("numpy.ma", "numpy.random", "rich.console", "rich.progress", "rich.table", "rich.text"),
    *("edl_ckpt.proto.model_v4_pb2", "tomllib"),
)
_WHERE_INSTALLED = ("jinja2", "pydantic")
"""What reports use, and what typer imports for some types where moto has brought it along: 0.2 s for each command."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server: the socket that takes requests."""

    process: subprocess.Popen[bytes]
    socket: socket.socket

    def run(
        self, arguments: Sequence[str], *, cwd: Path | None, env: Mapping[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; its stdin is empty, and neither output is a terminal."""
        request = {"argv": list(arguments), "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        out, err = os.memfd_create("stdout"), os.memfd_create("stderr")
        try:
            data = json.dumps(request).encode()
            assert len(data) < _MOST_BYTES
            socket.send_fds(self.socket, [data], [out, err])
            pid = int(self.socket.recv(64))
            code = self._wait(pid, timeout, arguments)
            return subprocess.CompletedProcess(arguments, code, _read(out), _read(err))
        finally:
            os.close(out)
            os.close(err)

    def _wait(self, pid: int, timeout: float, argv: Sequence[str]) -> int:
        self.socket.settimeout(timeout)
        try:
            return int(self.socket.recv(64))
        except TimeoutError:
            os.kill(pid, signal.SIGKILL)
            self.socket.settimeout(None)
            self.socket.recv(64)
            raise subprocess.TimeoutExpired(list(argv), timeout) from None
        finally:
            self.socket.settimeout(None)


def _read(fd: int) -> str:
    size = os.fstat(fd).st_size
    return os.pread(fd, size, 0).decode()


@functools.cache
def server(before: Callable[[], None] | None = None) -> Server:
    """Return the server of this process, started at the first call; `before` is called in it before it begins."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            preexec_fn=before,  # noqa: PLW1509 - it makes two calls of the system
        )

    def end() -> None:
        ours.close()
        process.wait(300)

    atexit.register(end)
    return Server(process, ours)


def import_all() -> None:
    """Import whatever a command may import, but not what only some machines have, and not Textual."""
    import edl_ckpt.cli
    import edl_ckpt.core

    for package in (edl_ckpt.cli, edl_ckpt.core):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith("edl_ckpt.cli.browse"):
                import_module(module.name)
    for name in _MODULES:
        import_module(name)
    for name in _WHERE_INSTALLED:
        with suppress(ImportError):
            import_module(name)
    import_module("edl_ckpt.cli.options.program").parser()  # typer imports some more


def _child(request: Mapping[str, Any], fds: Sequence[int]) -> None:
    """Run the program in this process, and end the process with its exit code."""
    code: Any = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for number, fd in ((0, null), (1, fds[0]), (2, fds[1])):
            os.dup2(fd, number)
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["cwd"])
        sys.argv = ["edl-ckpt", *request["argv"]]
        from edl_ckpt.cli.app import main

        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - as the interpreter would end
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _serve(number: int) -> None:
    import_all()
    gc.collect()
    gc.freeze()  # a child that looks for cycles leaves these objects alone, and shares their memory
    with socket.socket(fileno=number) as requests:
        while True:
            data, fds, _, _ = socket.recv_fds(requests, _MOST_BYTES, 2)
            if not data:
                return
            pid = os.fork()
            if pid == 0:
                _child(json.loads(data), fds)
            for fd in fds:
                os.close(fd)
            requests.send(str(pid).encode())
            requests.send(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])).encode())


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
