"""What can go wrong, as one tree: every class carries the exit code and the id that scripts rely on.

Anything outside this tree that reaches the command line is a bug of ours and is shown as one. A class also
subclasses the standard error that a library user would catch.

What a signal must not end half-way. A base module of few lines, because every command handles signals.
"""

from __future__ import annotations

from threading import get_ident, main_thread
from typing import Final


class EdlCkptWarning(UserWarning):
    """What people should look at, where a caller gives no reporter; `warnings.filterwarnings` takes this class."""


class EdlCkptError(Exception):
    """A failure with a plain sentence, and a hint when there is a next step.

    `path` is the file or location concerned, `offset` a byte position in it.
    """

    exit_code = 1
    id = "failed"

    def __init__(
        self, message: str, *, path: str | None = None, offset: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.offset = offset
        self.hint = hint
        if hint:
            self.add_note(hint)  # a traceback of the library's caller shows it below the message

    def __str__(self) -> str:
        place = "" if self.offset is None else f" (at byte {self.offset})"
        prefix = f"{self.path}: " if self.path and not self.message.startswith(self.path) else ""
        return f"{prefix}{self.message}{place}"


class UsageError(EdlCkptError, ValueError):
    """A wrong flag, value or configuration; nothing was touched."""

    exit_code = 2
    id = "usage"


class MismatchError(UsageError, AssertionError):
    """Values of a checkpoint and of the program that restores it do not match; the message names each one."""


class IncompleteError(EdlCkptError):
    """The checkpoint asked for lacks shards, or is still being written."""

    exit_code = 4
    id = "incomplete"


class CorruptError(EdlCkptError, ValueError):
    """The bytes read cannot be what they claim, or shards contradict each other.

    `code` is the finding of `verify` that names the same fault.
    """

    exit_code = 5
    id = "corrupt"

    def __init__(
        self,
        message: str,
        *,
        code: str = "malformed",
        path: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, path=path, offset=offset, hint=hint)
        self.code = code


class NotFoundError(EdlCkptError, FileNotFoundError):
    """No such location, version, shard, table, variable or tag."""

    exit_code = 10
    id = "not_found"


class NameNotFoundError(NotFoundError, KeyError):
    """No such variable or table in a version, or no row of an id; a KeyError too, as of any mapping."""


class LockedError(EdlCkptError):
    """Somebody holds the lock, or a race was lost; it is safe to try again."""

    exit_code = 11
    id = "locked"


class ReplacedError(LockedError):
    """A file is gone or is another one than in the listing: a command that only reads may begin again at once."""


class AuthError(EdlCkptError, PermissionError):
    """Credentials or permissions."""

    exit_code = 12
    id = "auth"


class UnavailableError(EdlCkptError, ConnectionError):
    """Storage is unreachable or throttled, after retries; it is safe to try again."""

    exit_code = 13
    id = "unavailable"


class NoSpaceError(EdlCkptError, OSError):
    """A limit of disk, quota or file size."""

    exit_code = 14
    id = "no_space"


class UnsupportedError(EdlCkptError):
    """A format, or a server, that lacks something needed."""

    exit_code = 15
    id = "unsupported"


class RefusedError(EdlCkptError):
    """A guard said no: stale plan, existing target, last complete version, missing confirmation."""

    exit_code = 16
    id = "refused"


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
