"""Errors of the operating system and of storage clients, translated into our own error tree.

The clients of fsspec's file systems raise errors of their own libraries. They are recognized by the library that they
come from, and by the answer of the server if they carry one; no library is imported for that.

Owner, group, mode and POSIX ACLs of files and directories: what takes the place of something keeps them.

A new version gets what the kernel gives to anything new in its location: the umask, or the default ACL and the group of
a setgid directory. But it is made in a staging directory, so that has to pass on the same (`inherit_as`).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)

_CLIENTS: Final = frozenset({
    "adlfs", "aiohttp", "asyncssh", "azure", "ftplib", "gcsfs", "google", "http", "httpcore", "httpx", "paramiko",
    "requests", "smbprotocol", "socket", "ssl", "urllib", "urllib3",
})  # fmt: skip
"""Libraries that talk to servers: an error of theirs that says no more means that the storage does not answer."""
_UNREACHABLE: Final = frozenset({
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH, errno.ENOTCONN,
})  # fmt: skip
_MEANINGS: Final[Mapping[int, tuple[type[EdlCkptError], str]]] = {
    errno.ENOTDIR: (NotFoundError, "not a directory"),
    errno.EISDIR: (NotFoundError, "expected a file, but this is a directory"),
    errno.ENXIO: (NotFoundError, "not a regular file"),  # a socket
    errno.ELOOP: (NotFoundError, "the symbolic links form a circle"),
    errno.EROFS: (AuthError, "read-only filesystem"),
    errno.EXDEV: (UnsupportedError, "the file system cannot rename this: it is on another device or layer"),
    errno.ESTALE: (LockedError, "the file was replaced on the file server while it was being read"),
}
_THROTTLED: Final = frozenset({408, 425, 429})
_MAX_CAUSES: Final = 8


class Fault(NamedTuple):
    """Why something that is there cannot be read now: an error as a value, for listings that go on with the rest."""

    kind: type[EdlCkptError]
    message: str
    path: str

    @staticmethod
    def of(error: EdlCkptError | OSError, path: str) -> Fault:
        """Return an error of reading a path as a value."""
        ours = error if isinstance(error, EdlCkptError) else _of_system(error, path)
        return Fault(type(ours), ours.message, ours.path or path)

    def error(self) -> EdlCkptError:
        """Return the error, to be raised by a command that needs what cannot be read."""
        return self.kind(self.message, path=self.path)


@contextmanager
def storage_errors(path: str) -> Iterator[None]:
    """Translate errors of the block into ours; each names the path."""
    try:
        yield
    except EdlCkptError:
        raise
    except OSError as error:
        raise _of_system(error, path) from error
    except Exception as error:
        meaning = _of_client(error, path)
        if meaning is None:  # a bug of ours, which must stay one
            raise
        raise meaning from error


@contextmanager
def lacking(numbers: Collection[int]) -> Iterator[None]:
    """Leave the block, and raise nothing, at an error of the system with one of these numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def error_of_system(error: OSError | MemoryError | RecursionError) -> EdlCkptError:
    """Return the meaning of an error of the system that no code near its call has translated.

    Its path is the one that the system names, none otherwise.
    """
    if isinstance(error, EdlCkptError):
        return error
    if isinstance(error, MemoryError):
        return EdlCkptError("there is not enough memory", hint="give the command more memory, or use fewer --workers")
    if isinstance(error, RecursionError):
        return EdlCkptError("an input is nested too deeply")
    name = error.filename2 or error.filename
    meaning = _of_system(error, os.fsdecode(name) if isinstance(name, str | bytes) else "")
    meaning.path = meaning.path or None
    return meaning


def _of_system(error: OSError, path: str) -> EdlCkptError:
    """Return the meaning of an error of the operating system, or of a client whose errors look like that."""
    number = error.errno
    if isinstance(error, FileNotFoundError):
        # HTTP's file system says so of a server that does not answer, too; its cause tells them apart.
        reason = _of_client(error, path) if number is None else None
        return reason or NotFoundError("no such file or directory", path=path)
    if isinstance(error, PermissionError):
        return AuthError("permission denied", path=path)
    if isinstance(error, ConnectionError | TimeoutError) or number in _UNREACHABLE:
        return _silent(error, path)
    if number in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        return NoSpaceError(os.strerror(number or 0), path=path)
    if number in {errno.EMFILE, errno.ENFILE}:
        whose = "this process has" if number == errno.EMFILE else "all processes of this machine have"
        hint = "raise the limit (`ulimit -n`), use fewer --workers, or run fewer commands at a time"
        return NoSpaceError(f"too many open files: {whose} as many as the limit allows", path=path, hint=hint)
    kind, message = _MEANINGS.get(number or 0, (None, ""))
    if kind is not None:
        return kind(message, path=path)
    reason = _of_client(error, path)
    if reason is None and number == errno.EIO and error.strerror == os.strerror(errno.EIO):
        return EdlCkptError("input/output error", path=path)  # its own words are these
    return reason or EdlCkptError(f"input/output error: {error.strerror or error}", path=path)


def _of_client(error: BaseException, path: str) -> EdlCkptError | None:
    """Return the meaning of a client's error, or of the client's error that caused it; None for any other error."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        libraries = {kind.__module__.partition(".")[0] for kind in type(cause).__mro__}
        if libraries & _CLIENTS:
            return _of_ftp(cause, path) if "ftplib" in libraries else _of_answer(cause, path)
        if isinstance(cause, ConnectionError | TimeoutError):
            return _silent(cause, path)
        cause = cause.__cause__
    return None


def _of_answer(error: BaseException, path: str) -> EdlCkptError:
    """Return the meaning of an error by the HTTP status that it carries, else by its name."""
    status = _status(error) or _status(getattr(error, "response", None))
    name = type(error).__name__.lower()
    if status in {401, 403, 407} or (not status and ("auth" in name or "credential" in name)):
        return AuthError(f"the server refuses access ({status or type(error).__name__})", path=path)
    if status in {404, 410}:
        return NotFoundError("no such file or directory", path=path)
    if status in {405, 501}:
        return UnsupportedError(f"the server does not support the request ({status})", path=path)
    if status and status not in _THROTTLED and status < 500:
        return EdlCkptError(f"the server answers {status}", path=path)
    if status:
        return UnavailableError(f"the server answers {status}", path=path)
    if "url" in name and isinstance(error, ValueError):
        return UsageError("not a valid URL", path=path)
    return _silent(error, path)


def _status(answer: object) -> int:
    """Return an HTTP status, under one of the names that libraries have for it; 0 without one."""
    for name in ("status", "status_code", "code"):
        value = getattr(answer, name, None)
        if isinstance(value, int) and 400 <= value < 600:
            return int(value)
    return 0


def _of_ftp(error: BaseException, path: str) -> EdlCkptError:
    """Return the meaning of an FTP reply, whose first three characters are its code (RFC 959)."""
    code = str(error)[:3]
    if code in {"530", "532"}:
        return AuthError(f"the server refuses access ({code})", path=path)
    if code == "550":
        return NotFoundError("no such file or directory", path=path)
    if code in {"452", "552"}:
        return NoSpaceError(f"the server has no space left ({code})", path=path)
    if code.startswith("5"):
        return EdlCkptError(f"the server answers {code}", path=path)
    return _silent(error, path)


def _silent(error: BaseException, path: str) -> UnavailableError:
    """Return the error for storage that does not answer. Messages of libraries may repeat a URL with a password."""
    reason = getattr(error, "strerror", None) or type(error).__name__
    return UnavailableError(f"storage does not answer: {reason}", path=path)


_ACL: Final = "system.posix_acl_access"
_DEFAULT_ACL: Final = "system.posix_acl_default"
_NO_ACL: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""Errors by which a file has no ACL, or its file system has none."""
_NOT_ALLOWED: Final = frozenset({errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a change of the owner by a user who may not, or where the file system has no owners."""


class Access(NamedTuple):
    """Who may do what with a file or directory."""

    uid: int
    gid: int
    mode: int
    acl: bytes | None
    default_acl: bytes | None
    """What new files in a directory inherit."""

    @staticmethod
    def of(path: str, fd: int | None = None) -> Access:
        """Return the access of a path, or of an open file, of which the path is for messages."""
        with storage_errors(path):
            file = path if fd is None else fd
            state, acl = os.stat(file), _read_acl(file, _ACL)
            inherited = _read_acl(file, _DEFAULT_ACL) if stat.S_ISDIR(state.st_mode) else None
        return Access(state.st_uid, state.st_gid, stat.S_IMODE(state.st_mode), acl, inherited)

    def give(self, fd: int) -> tuple[str, ...]:
        """Give an open file or directory this access; return what could not be kept: 'owner', 'group', 'ACL'."""
        lost = _change_owner(fd, self.uid, self.gid)
        mode = self.mode
        is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        if lost and not is_directory:  # or the rights of somebody else would go with the file
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
        is_kept = _write_acl(fd, _ACL, self.acl)
        os.fchmod(fd, mode)
        is_kept &= not is_directory or _write_acl(fd, _DEFAULT_ACL, self.default_acl)
        return lost if is_kept else (*lost, "ACL")


def give_attributes(old: int, new: int) -> bool:
    """Give an open file the attributes that users have set on another one (`user.*`); False where one is lost."""
    names: list[str] = []
    with lacking(_NO_ACL):
        names = [name for name in os.listxattr(old) if name.startswith("user.")]
    for name in names:
        with lacking(_NO_ACL | {errno.ENOSPC, errno.E2BIG}):
            os.setxattr(new, name, os.getxattr(old, name))
            continue
        return False
    return True


def inherit_as(place: int, stage: int) -> None:
    """Let new files in an open directory of ours inherit what they would inherit in another one; raises OSError.

    The kernel does the rest: it sets group, mode and ACL of whatever is made there.
    """
    model, own = os.fstat(place), os.fstat(stage)
    _write_acl(stage, _DEFAULT_ACL, _read_acl(place, _DEFAULT_ACL))
    if model.st_mode & stat.S_ISGID:
        if own.st_gid != model.st_gid:
            _change_owner(stage, own.st_uid, model.st_gid)
        os.fchmod(stage, stat.S_IMODE(own.st_mode) | stat.S_ISGID)
    elif own.st_mode & stat.S_ISGID:
        os.fchmod(stage, stat.S_IMODE(own.st_mode) & ~stat.S_ISGID)


def _change_owner(fd: int, uid: int, gid: int) -> tuple[str, ...]:
    """Set owner and group as far as this process may; return what it could not set."""
    now = os.fstat(fd)
    lost: list[str] = []
    for what, wanted, have in (("owner", (uid, -1), now.st_uid == uid), ("group", (-1, gid), now.st_gid == gid)):
        if not have:
            with lacking(_NOT_ALLOWED):
                os.fchown(fd, *wanted)
                continue
            lost.append(what)
    return tuple(lost)


def _read_acl(place: int | str, name: str) -> bytes | None:
    with lacking(_NO_ACL):
        return os.getxattr(place, name)
    return None


def _write_acl(fd: int, name: str, acl: bytes | None) -> bool:
    """Set or remove an ACL; False when it cannot be set."""
    if acl is None:
        if _read_acl(fd, name) is not None:
            with suppress(OSError):
                os.removexattr(fd, name)
            return _read_acl(fd, name) is None
        return True
    with lacking(_NO_ACL):
        os.setxattr(fd, name, acl)
        return True
    return False
