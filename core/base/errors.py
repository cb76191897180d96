"""What can go wrong, as one tree: every class carries the exit code and the id that scripts rely on.

Anything outside this tree that reaches the command line is a bug of ours and is shown as one. A class also
subclasses the standard error that a library user would catch.
"""

from __future__ import annotations

from edl_ckpt.core.base.python_form import in_python


class EdlCkptWarning(UserWarning):
    """What people should look at, where a caller gives no reporter; `warnings.filterwarnings` takes this class."""


class EdlCkptError(Exception):
    """A failure with a plain sentence, and a hint when there is a next step.

    `path` is the file or location concerned, `offset` a byte position in it, `code` the finding of `verify` that names
    the same fault of a file. `hint` is the next step at the command line, and `python_hint` the same in Python, which a
    traceback shows below the message.
    """

    exit_code = 1
    id = "failed"
    code = ""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        offset: int | None = None,
        hint: str | None = None,
        code: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.message = message
        self.path = path
        self.offset = offset
        self._hint: str | None = None
        self.hint = hint

    @property
    def hint(self) -> str | None:
        """The next step at the command line, if there is one."""
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        notes = getattr(self, "__notes__", [])
        if (shown := self.python_hint) in notes:
            notes.remove(shown)
        self._hint = hint
        if shown := self.python_hint:
            self.add_note(shown)

    @property
    def python_hint(self) -> str | None:
        """The next step in Python: calls and arguments in place of commands and options."""
        return in_python(self._hint) if self._hint else None

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
    """The bytes read cannot be what they claim, or shards contradict each other."""

    exit_code = 5
    id = "corrupt"
    code = "malformed"


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
