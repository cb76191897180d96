"""Names from checkpoints as names of files: reversible, and never a path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

from edl_ckpt.core.errors import UnsupportedError

_SAFE: Final = " !#$&'()+,-.;=@[]^_`{}~"
_DEVICES: Final = {"CON", "PRN", "AUX", "NUL", *(f"{name}{k}" for name in ("COM", "LPT") for k in range(1, 10))}
_MAX_BYTES: Final = 200


def escaped_file_name(name: str) -> str:
    """Return a name as one component of a path: %XX stands for characters that could make a path.

    >>> escaped_file_name("dense/kernel:0"), escaped_file_name("../../etc/passwd"), escaped_file_name("CON")
    ('dense%2Fkernel%3A0', '%2E.%2F..%2Fetc%2Fpasswd', '%43ON')
    """
    quoted = quote(name, safe=_SAFE)
    if quoted[:1] in {".", ""} or quoted.partition(".")[0].upper() in _DEVICES:
        quoted = f"%{ord(quoted[0]):02X}{quoted[1:]}" if quoted else "%"
    return quoted


def original_name(name: str) -> str:
    """Return the name that `escaped_file_name` escaped.

    >>> original_name(escaped_file_name("a/b.. %"))
    'a/b.. %'
    """
    return "" if name == "%" else unquote(name)


def check_names(names: Iterable[str]) -> None:
    """Raise UnsupportedError when two names would be one file where case does not count, or one is too long for any."""
    seen: dict[str, str] = {}
    for name in names:
        written = escaped_file_name(name)
        if len(written) > _MAX_BYTES:
            raise UnsupportedError(f"{name[:40]!r}...: too long for the name of a file")
        other = seen.setdefault(written.casefold(), name)
        if other != name:
            raise UnsupportedError(f"{other!r} and {name!r} would be the same file on some systems")
