"""One task at a time in a thread, for a loop that goes on meanwhile.

The next task waits for the one before it, and an error is raised where the loop asks next. When the interpreter ends,
it waits for the task under way: a save that was begun is finished.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - what it does at the end of the interpreter comes after what we do
import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from edl_ckpt.core.base.errors import EdlCkptError

LOG: Final = logging.getLogger("edl_ckpt")
Result = TypeVar("Result")
_open: Final[set[BackgroundTask[Any]]] = set()
"""The tasks under way, and those whose error was not raised yet."""


class BackgroundTask(Generic[Result]):
    """A task that runs in a thread of its own, its result, or its error."""

    def __init__(self, work: Callable[[], Result], name: str) -> None:
        self._work: Callable[[], Result] | None = work
        self._name = name
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._process = os.getpid()
        self.is_seen = False
        """True once its error was raised, so that nothing raises it again."""
        thread = threading.Thread(target=self._run, name="edl-ckpt-save")
        _open.add(self)
        try:
            thread.start()
        except RuntimeError as error:
            _open.discard(self)
            raise EdlCkptError(f"{name} cannot begin: {error}", hint="save without a thread: save(...)") from None

    def _run(self) -> None:
        assert self._work is not None  # noqa: S101 - taken away only below
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self._error = error
        finally:
            self._work = None  # and with it the arrays
            if self._error is None:
                _open.discard(self)
            self._ended.set()

    @property
    def is_done(self) -> bool:
        """Return True when the task has ended, in whatever way; a fork takes no threads along."""
        return self._ended.is_set() or os.getpid() != self._process

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the task has ended; False when it has not within `timeout` seconds.

        Not by joining the thread: Python 3.11 counts a thread as ended whose `join` a signal has interrupted.
        """
        if not self.is_done:
            self._ended.wait(timeout)
        return self.is_done

    def result(self) -> Result:
        """Wait for the task and return its result, or raise its error."""
        self.wait()
        self._see()
        if self._error is not None:
            raise self._error
        if not self._ended.is_set():  # a fork takes no threads along
            raise EdlCkptError(f"{self._name} runs in the process that this one was forked from")
        return self._result  # type: ignore[return-value]

    def raise_unseen(self) -> None:
        """Wait for the task; raise its error unless it was raised before."""
        self.wait()
        if self._error is not None and not self.is_seen:
            self._see()
            raise self._error

    def _see(self) -> None:
        self.is_seen = True
        _open.discard(self)

    def end(self) -> None:
        """Wait for the task at the end of the interpreter, where an error can only be logged."""
        self.wait()
        if self._error is not None and not self.is_seen:
            LOG.error("%s failed: %s", self._name, self._error)


def _finish_all() -> None:
    for task in list(_open):
        task.end()


# `atexit` would be too late: the interpreter allows no new thread by then, and a save begins some. This is where
# concurrent.futures ends its threads; it registered before us, so it comes after us.
getattr(threading, "_register_atexit", atexit.register)(_finish_all)
