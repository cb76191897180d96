"""A save in a thread, for a loop that goes on meanwhile.

The next save waits for the one before it, and an error is raised where the loop asks next. When the interpreter ends,
it waits for the save under way: what was begun is finished.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - what it does at the end of the interpreter comes after what we do
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError

LOG: Final = logging.getLogger("edl_ckpt")
_open: Final[set[PendingSave]] = set()
"""The saves under way, and those whose error was not raised yet."""


@dataclass(frozen=True, slots=True)
class SavedShard:
    """A shard that is visible, whole, and what its save found out about the version."""

    version: int
    path: str
    size_bytes: int
    variables: int
    rows: int
    seconds: float
    replaced: bool
    """True when it took the place of a shard that an earlier run had saved."""
    complete: bool
    """True when all shards of the version were there after this one: the server may have been the last."""
    sealed: bool
    """True when the version is sealed."""
    removed: tuple[str, ...] = ()
    """The files and directories, or the references of versions, that retention removed."""
    blocked_seconds: float = 0.0
    """How long the training loop waited: for the whole save, or for the snapshot of `save_async`."""


class PendingSave:
    """A save under way in the background; `blocked_seconds` is how long the training loop waited for its snapshot."""

    def __init__(self, work: Callable[[], SavedShard], name: str, begin: float) -> None:
        self._work: Callable[[], SavedShard] | None = work
        self.name = name
        self._saved: SavedShard | None = None
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._process = os.getpid()
        thread = threading.Thread(target=self._run, name="edl-ckpt-save")
        _open.add(self)
        try:
            thread.start()
        except RuntimeError as error:
            _open.discard(self)
            raise EdlCkptError(f"{name} cannot begin: {error}", hint="save without a thread: save(...)") from None
        self.blocked_seconds = time.perf_counter() - begin

    def __repr__(self) -> str:
        return f"<PendingSave {'done' if self.is_done else 'under way'}>"

    def _run(self) -> None:
        assert self._work is not None  # noqa: S101 - taken away only below
        try:
            self._saved = self._work()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks
            self._error = error
        finally:
            self._work = None  # and with it the arrays
            if self._error is None:
                _open.discard(self)
            self._ended.set()

    @property
    def is_done(self) -> bool:
        """Return True when the save has ended, in whatever way; `result` says how. A fork takes no threads along."""
        return self._ended.is_set() or os.getpid() != self._process

    def wait(self) -> None:
        """Wait until the save has ended.

        Not by joining the thread: Python 3.11 counts a thread as ended whose `join` a signal has interrupted.
        """
        if not self.is_done:
            self._ended.wait()

    def result(self) -> SavedShard:
        """Wait for the save and return its result, or raise its error; then nothing raises the error again."""
        self.wait()
        _open.discard(self)
        if self._error is not None:
            raise self._error
        if self._saved is None:  # a fork takes no threads along
            raise EdlCkptError(f"{self.name} runs in the process that this one was forked from")
        return replace(self._saved, blocked_seconds=self.blocked_seconds)

    @property
    def unseen_error(self) -> BaseException | None:
        """Return the error of a save that has ended, None without one, and once it was raised."""
        return self._error if self in _open else None


def _finish_all() -> None:
    for save in list(_open):
        save.wait()
        if save.unseen_error is not None:  # it can only be logged
            LOG.error("%s failed: %s", save.name, save.unseen_error)


# `atexit` would be too late: the interpreter allows no new thread by then, and a save begins some. This is where
# concurrent.futures ends its threads; it registered before us, so it comes after us.
getattr(threading, "_register_atexit", atexit.register)(_finish_all)
