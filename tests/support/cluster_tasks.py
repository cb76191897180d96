"""What tests let workers do: this module can be imported there."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edl_ckpt.core.base.errors import CorruptError, NotFoundError
from edl_ckpt.core.base.memory import peak_memory_bytes
from edl_ckpt.core.cluster import messages, reach, worker
from edl_ckpt.core.commit import writers
from edl_ckpt.core.kernel import bulk
from waiting import wait_until

if TYPE_CHECKING:
    import pytest

CLOSED: list[int] = []
"""The processes that closed what they had opened."""
_KERNEL: list[Any] = []
_REPLACED: dict[str, Any] = {}


class Opened:
    """What the tasks of `Slow` use."""

    bytes_read = 3

    def close(self) -> None:
        """Leave a trace."""
        CLOSED.append(os.getpid())


@dataclass(frozen=True)
class Slow:
    """Tasks that take a while, and one that fails."""

    seconds: float
    bad: int = -1

    def open(self) -> Opened:
        """Open nothing."""
        return Opened()

    def do(self, opened: Opened, task: int, advance: Any) -> tuple[int, int]:
        """Return the number of the task and the process."""
        threading.Event().wait(self.seconds)
        if task == self.bad:
            raise CorruptError("bad", code="truncated", path="x", offset=task, hint="look")
        advance(task)
        return task, os.getpid()


@dataclass(frozen=True)
class Gated(Slow):
    """Tasks of which one, or else those from the eleventh on, wait until a file is there."""

    gate: str = ""
    held: int = -1

    def do(self, opened: Opened, task: int, advance: Any) -> tuple[int, int]:
        """Return the number of the task and the process."""
        if task == self.held or (self.held < 0 and task >= 10):
            wait_until(lambda: os.path.exists(self.gate))
        return Slow.do(self, opened, task, advance)


def what_travels(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the list to which everything is added that is sent to workers from now on."""
    sent: list[bytes] = []
    real = messages.packed

    def packed(value: object) -> bytes:
        sent.append(real(value))
        return sent[-1]

    monkeypatch.setattr(messages, "packed", packed)
    return sent


@contextmanager
def killed_worker(client: Any, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> Iterator[None]:
    """Let workers reach S3, and kill one when a method of a class is called first, here; wait until all are back."""
    killed: list[int] = []
    real = getattr(owner, name)

    def killing(*arguments: Any, **named: Any) -> Any:
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        return real(*arguments, **named)

    monkeypatch.setattr(owner, name, killing)
    with environment(client):
        pid = min(client.run(os.getpid).values())
        try:
            yield
        finally:
            renewed(client, pid)
    assert killed


@contextmanager
def environment(client: Any) -> Iterator[None]:
    """Let the workers have the environment of S3 that this process has now."""
    mine = {name: value for name, value in os.environ.items() if name.startswith("AWS_") or name == "no_proxy"}
    client.run(exchange_environment, mine)
    try:
        yield
    finally:
        client.run(exchange_environment, dict.fromkeys(mine))


def exchange_environment(names: Mapping[str, str | None]) -> None:
    """Set these names, and remove those without a value."""
    for name, value in names.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def renewed(client: Any, killed: int) -> None:
    """Wait until a new worker has taken the place of a process that was killed."""
    wait_until(lambda: len(pids := set(client.run(os.getpid, on_error="ignore").values())) == 2 and killed not in pids)


def signal_writer(number: int, marker: str) -> None:
    """Let the first process that has opened a staged file leave its number, and get a signal before it writes."""
    real: Any = writers._Files.__getitem__

    def opened(self: Any, index: int) -> Any:
        file = real(self, index)
        with suppress(FileExistsError), open(marker, "x", encoding="ascii") as mark:
            mark.write(str(os.getpid()))
            mark.flush()
            os.kill(os.getpid(), number)
        return file

    writers._Files.__getitem__ = opened  # type: ignore[method-assign,method-assign]
    _REPLACED["writers"] = real


def hold_writes(gate: str) -> None:
    """Let this process write no staged file before a file is there."""
    real: Any = writers._Files.__getitem__

    def opened(self: Any, index: int) -> Any:
        wait_until(lambda: os.path.exists(gate), seconds=60)
        return real(self, index)

    writers._Files.__getitem__ = opened  # type: ignore[method-assign,method-assign]
    _REPLACED["writers"] = real


def write_again() -> None:
    """Let this process write as ever."""
    if "writers" in _REPLACED:
        writers._Files.__getitem__ = _REPLACED.pop("writers")  # type: ignore[method-assign]


def closed() -> list[int]:
    """Return who closed what it had opened, and forget it."""
    found = list(CLOSED)
    CLOSED.clear()
    return found


def pause(fraction: float, dask_worker: Any = None) -> None:
    """Let Dask give a worker no task while it has more than a fraction of its memory."""
    dask_worker.memory_manager.memory_pause_fraction = fraction


async def never(**_: Any) -> None:
    """Answer when nobody waits any more."""
    await asyncio.sleep(2)


def left_open() -> int:
    """Return how many works a worker has open."""
    return len(worker._OPENINGS._opened)


def tasks_known(dask_scheduler: Any) -> set[str]:
    """Return the names of the tasks that a scheduler knows."""
    return set(dask_scheduler.tasks)


def peak_bytes() -> int:
    """Return the most memory that this process has had."""
    return peak_memory_bytes()


def exchange(name: str, value: Any) -> Any:
    """Set a name of a worker's module, or of the one that looks at what it reaches; return the value that it had."""
    module = reach if hasattr(reach, name) else worker
    old = getattr(module, name)
    setattr(module, name, value)
    return old


def not_mounted(place: object) -> Any:
    """Stand for the store of a machine that does not have the volume."""
    raise NotFoundError("no such file or directory", path=str(place))


def replaced(name: str, value: Any) -> None:
    """Set a name of a worker's module until `restored`."""
    _REPLACED[name] = exchange(name, value)


def restored(name: str) -> None:
    """Give a name of a worker's module its own value again."""
    exchange(name, _REPLACED.pop(name))


def no_room(directory: str) -> int:
    """Stand for a worker whose user has a quota."""
    return len(directory)


def forget() -> None:
    """Let a worker be one that was not asked before the work."""
    worker._asked_for.clear()


def another_address(dask_worker: Any = None) -> messages.Seen:
    """Answer as a process does that has the port of one that is gone."""
    return messages.Seen(messages.VERSION, True, "tcp://x:1")


def without_kernel(gone: bool) -> None:
    """Take the kernel of a worker away, or put it back."""
    if gone:
        _KERNEL.append(bulk.kernel)
        bulk.kernel = None
    else:
        bulk.kernel = _KERNEL.pop()


def note_tasks(monkeypatch: pytest.MonkeyPatch, kind: Any, note: Callable[[Any, Any, Any], object]) -> None:
    """Call `note` with the work, the task and the result of each task of a class of work that this process does."""
    real = kind.do

    def do(self: Any, opened: Any, task: Any, advance: Any) -> Any:
        result = real(self, opened, task, advance)
        note(self, task, result)
        return result

    monkeypatch.setattr(kind, "do", do)
