"""A process that runs commands of edl-ckpt on request, each in a child of its own that fails where it is asked to.

It reads one JSON document a line, `Request` in `story.py`, and answers with two lines: the child's process id at once,
and its exit code at the end. Everything is imported before the first fork, so that a command takes milliseconds.
"""

from __future__ import annotations

import ctypes  # noqa: F401 - its calls are counted
import errno
import fcntl
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

CALLS: Final = (
    "open", "close", "read", "write", "pread", "preadv", "pwrite", "pwritev", "stat", "lstat", "fstat", "scandir",
    "listdir", "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "fsync", "ftruncate",
    "posix_fallocate", "utime", "chmod", "fchmod", "fchown", "statvfs",
)  # fmt: skip
_SIZED: Final = {"pread": 1, "read": 1}
"""Calls whose argument of this number is a size: half of it is a short read."""


class Faults:
    """Counts the system calls that concern a directory, and makes one of them fail."""

    def __init__(self, root: str, kind: str, at: int) -> None:
        self.root = root
        self.kind = kind
        self.at = at
        self.count = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """Wrap the calls of the os module, flock, and what ctypes calls (renameat2)."""
        for name in CALLS:
            setattr(os, name, self._wrapped(name, getattr(os, name)))
        fcntl.flock = self._wrapped("flock", fcntl.flock)
        sys.addaudithook(self._audit)

    def _audit(self, event: str, _arguments: Any) -> None:
        if event == "ctypes.call_function" and self._is_due():
            self._strike("renameat2", lambda: None, (), {})

    def _is_due(self) -> bool:
        with self._lock:
            self.count += 1
            return self.count == self.at

    def _concerns(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> bool:
        if named.get("dir_fd") is not None or named.get("src_dir_fd") is not None:
            return True
        first = arguments[0] if arguments else None
        if isinstance(first, int):
            return first > 2  # not a standard stream
        try:
            return self.root in os.fsdecode(first)  # type: ignore[arg-type]
        except TypeError:
            return False

    def _wrapped(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if self._concerns(arguments, named) and self._is_due():
                return self._strike(name, function, arguments, named)
            return function(*arguments, **named)

        return call

    def _strike(
        self, name: str, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        kind = self.kind
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == "short":
            return function(*_halved(name, arguments), **named)
        number = errno.ENOSPC if kind == "full" else errno.EIO
        if kind in {"done", "killed-after"} or name == "close":  # a close that reports an error has closed
            result = function(*arguments, **named)
            if kind == "killed-after":
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "open":
                os.close(result)
        raise OSError(number, os.strerror(number), *(a for a in arguments[:1] if isinstance(a, str)))


def _halved(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a read or a write of half as many bytes."""
    if name in _SIZED:
        size = arguments[_SIZED[name]]
        return (arguments[0], max(1, size // 2), *arguments[2:])
    if name in {"pwrite", "write"}:
        data = memoryview(arguments[1])
        return (arguments[0], data[: max(1, len(data) // 2)], *arguments[2:])
    if name in {"preadv", "pwritev"}:
        first = memoryview(arguments[1][0]).cast("B")
        return (arguments[0], [first[: max(1, len(first) // 2)]], *arguments[2:])
    return arguments


def _run(request: dict[str, Any]) -> None:
    """Run one command in this process, and end it with the command's exit code."""
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    null = os.open(os.devnull, os.O_RDWR)
    for number, fd in ((0, null), (1, null), (2, log)):
        os.dup2(fd, number)
    os.environ.update(request["environment"])
    faults = Faults(request["root"], request["kind"], request["at"])
    code: Any = 1
    try:
        from edl_ckpt.cli.app import main

        faults.install()
        main(request["argv"])
    except SystemExit as end:
        code = end.code or 0
    finally:
        faults.at = -1
        sys.stderr.flush()
        os.write(log, f"\n{faults.count} calls".encode())
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Serve requests until stdin ends."""
    from edl_ckpt.cli.catalogue import COMMANDS, function_of

    for command in COMMANDS:
        function_of(command)
    for module in ("rich.console", "rich.text", "numpy", "edl_ckpt.proto.model_v4_pb2", *sys.argv[1:]):
        import_module(module)
    from edl_ckpt import core

    for name in core.__all__:
        getattr(core, name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(request)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
