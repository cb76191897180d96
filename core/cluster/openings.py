"""Works that a worker has opened: all tasks of a work use one opening, and the command says when the work is over.

Should that word be lost, the oldest openings give way to new ones.
"""

from __future__ import annotations

import pickle
import threading
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.core.base.freed_memory import kept_memory
from edl_ckpt.core.base.parallel import Resource, Work
from edl_ckpt.core.cluster.messages import Published

_MOST_OPENED: Final = 4
_MOST_ENDED: Final = 1000


@dataclass(slots=True)
class Opening:
    """A work, what it opened, and how many tasks use that now."""

    work: Work[Any, Any, Any]
    resource: Resource
    users: int = 0
    is_over: bool = False


class Openings:
    """What this process has opened, by the names of works; what is used stays open until nobody uses it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, Opening] = OrderedDict()
        self._ended: deque[str] = deque(maxlen=_MOST_ENDED)
        self._memory = ExitStack()
        """Has something while there are tasks: then freed memory stays for the next one."""
        self._keeps_memory = False

    @contextmanager
    def use(self, published: Published) -> Iterator[Opening]:
        """Open a work, or use the opening that is there."""
        with self._lock:
            opening = self._opened.get(published.token)
            if opening is None:
                work = pickle.loads(zlib.decompress(published.data))  # noqa: S301 - the scheduler runs any code anyway
                # A task that was on its way when its work ended opens it for itself: nobody would close it later.
                opening = Opening(work, work.open(), is_over=published.token in self._ended)
            if not opening.is_over:
                self._opened[published.token] = opening
                self._opened.move_to_end(published.token)
                if not self._keeps_memory:
                    self._memory.enter_context(kept_memory())
                    self._keeps_memory = True
            opening.users += 1
            old = [token for token in self._opened if token != published.token][: 1 - _MOST_OPENED]
            closing = [self._opened.pop(token) for token in old]
            for each in closing:
                each.is_over = True
        for each in closing:
            self._close_unused(each)
        try:
            yield opening
        finally:
            with self._lock:
                opening.users -= 1
            self._close_unused(opening)

    def end(self, token: str) -> None:
        """Close a work, as soon as no task uses it."""
        with self._lock:
            self._ended.append(token)
            opening = self._opened.pop(token, None)
            if opening is None:
                return
            opening.is_over = True
            if not any(each.users for each in self._opened.values()):  # those of a killed command stay open
                self._memory.close()
                self._keeps_memory = False
        self._close_unused(opening)

    def _close_unused(self, opening: Opening) -> None:
        with self._lock:
            if opening.users or not opening.is_over:
                return
            opening.is_over = False  # closed once
        opening.resource.close()
