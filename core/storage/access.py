"""Owner, group, mode and POSIX ACLs of files and directories: what takes the place of something keeps them.

A new version gets what the kernel gives to anything new in its location: the umask, or the default ACL and the group of
a setgid directory. But it is made in a staging directory, so that has to pass on the same (`inherit_as`).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.storage.faults import lacking

_ACL: Final = "system.posix_acl_access"
_DEFAULT_ACL: Final = "system.posix_acl_default"
_NO_ACL: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EPERM})
"""Errors by which a file has no ACL, or its file system has none."""
_NOT_ALLOWED: Final = frozenset({errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of a change of the owner by a user who may not, or where the file system has no owners."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what with a file or directory."""

    uid: int
    gid: int
    mode: int
    acl: bytes | None
    default_acl: bytes | None
    """What new files in a directory inherit."""

    @staticmethod
    def of(place: int | str) -> Access:
        """Return the access of an open file, or of a path; raises OSError."""
        found = os.stat(place)
        inherited = _read_acl(place, _DEFAULT_ACL) if stat.S_ISDIR(found.st_mode) else None
        return Access(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), _read_acl(place, _ACL), inherited)

    def give(self, fd: int) -> tuple[str, ...]:
        """Give an open file or directory this access; return what could not be kept: 'owner', 'group', 'ACL'."""
        lost = _change_owner(fd, self.uid, self.gid)
        mode = self.mode
        is_directory = stat.S_ISDIR(os.fstat(fd).st_mode)
        if lost and not is_directory:  # or the rights of somebody else would go with the file
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if not _write_acl(fd, _ACL, self.acl):
            lost = (*lost, "ACL")
        os.fchmod(fd, mode)
        if is_directory and not _write_acl(fd, _DEFAULT_ACL, self.default_acl) and "ACL" not in lost:
            lost = (*lost, "ACL")
        return lost


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
