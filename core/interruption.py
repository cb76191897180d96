"""What a signal must not end half-way. A base module of few lines, because every command handles signals."""

from __future__ import annotations

from threading import get_ident, main_thread
from typing import Final


class _Whole:
    """What a signal must not end half-way, because it would leave a lock of Python's taken; for the main thread."""

    def __init__(self) -> None:
        self._depth = 0
        self._kept: BaseException | None = None

    def keep(self, error: BaseException) -> bool:
        """Say whether the error of a signal waits for the end of a block: then its handler does not raise it."""
        if self._depth:
            self._kept = error
        return self._depth > 0

    def __enter__(self) -> None:
        if get_ident() == main_thread().ident:
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        if get_ident() == main_thread().ident:
            self._depth -= 1
            if self._kept is not None and not self._depth:
                error, self._kept = self._kept, None
                raise error


WHOLE: Final = _Whole()
"""Around calls that take Python's own conditions and do not wait. A handler that raises there would leave one taken, in
its `__enter__` or `__exit__`, and the thread that needs it next would wait for ever."""
