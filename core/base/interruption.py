"""Blocks of code that a signal must not end half-way; its error waits until their end.

Every command handles signals, so the module has few lines and imports little.
"""

from __future__ import annotations

from threading import get_ident, main_thread
from typing import Final


class _Whole:
    """What a signal must not end half-way, because it would leave a lock of Python's taken; for the main thread."""

    def __init__(self) -> None:
        self._depth = 0
        self.kept: BaseException | None = None
        """The error of a signal that waits."""

    @property
    def has_begun(self) -> bool:
        """True in a block."""
        return self._depth > 0

    def keep(self, error: BaseException) -> bool:
        """Say whether the error of a signal waits: then its handler does not raise it."""
        if not self.has_begun:
            return False
        self.kept = error
        return True

    def deliver(self, cause: BaseException | None = None) -> None:
        """Raise the error of a signal that was kept; do nothing without one."""
        if self.kept is not None:
            error, self.kept = self.kept, None
            raise error from cause

    def __enter__(self) -> None:
        if get_ident() == main_thread().ident:
            self._depth += 1

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if get_ident() == main_thread().ident:
            self._depth -= 1
            if not self._depth:
                self.deliver(error)


class Commit(_Whole):
    """The step that makes the result of a command visible, and all that follows it; for the main thread.

    A signal in the block or after it is kept: the command runs to its end, as it would have without the signal. It is
    raised after all where the block, or what follows it, fails, and where `more` work follows.
    """

    is_past = False
    """True after a block that did not fail: the result is there."""

    def __repr__(self) -> str:
        return f"Commit(is_past={self.is_past}, kept={self.kept!r})"

    @property
    def has_begun(self) -> bool:
        """True in a block and after it."""
        return self._depth > 0 or self.is_past

    def forget(self) -> None:
        """Begin another command."""
        self._depth, self.kept, self.is_past = 0, None, False

    def more(self) -> None:
        """Begin work after a commit that a signal may end as ever; a signal that was kept ends it here.

        In a block, nothing changes.
        """
        if get_ident() == main_thread().ident and not self._depth:
            self.is_past = False
            self.deliver()

    def reached(self) -> None:
        """Know in a block that the result is there, whatever else fails in it."""
        if get_ident() == main_thread().ident:
            self.is_past = self.has_begun

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if get_ident() != main_thread().ident:
            return
        self.is_past = self.is_past or (error is None and self._depth == 1)  # first: a signal may come in between
        self._depth -= 1
        if error is not None and not self._depth:
            self.deliver(error)


WHOLE: Final = _Whole()
"""Around calls that take Python's own conditions and do not wait. A handler that raises there would leave one taken, in
its `__enter__` or `__exit__`, and the thread that needs it next would wait for ever."""

COMMIT: Final = Commit()
"""Around the step that makes a result visible, so that no exit code of a signal stands for a result that is there."""


def keeps(error: BaseException) -> bool:
    """Say whether the error of a signal waits: then its handler does not raise it."""
    return COMMIT.keep(error) or WHOLE.keep(error)
