"""Names from checkpoints as names of files: never a path, never too long, and reversible where that is possible."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import quote, unquote

_SAFE: Final = " !#$&'()+,-.;=@[]^_`{}~"
_DEVICES: Final = {"CON", "PRN", "AUX", "NUL", *(f"{name}{k}" for name in ("COM", "LPT") for k in range(1, 10))}
_MAX_BYTES: Final = 200
_KEPT_BYTES: Final = 79
_DIGEST_BYTES: Final = 20


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


def file_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of a file for each name, no two alike even where case does not count.

    It is `escaped_file_name`, unless that is too long or taken: then its beginning, '~' and a digest of the name. Such
    a name cannot be turned back, so the writer records the true one.

    >>> file_names(["a", "A"])["a"], len(file_names(["x" * 500])["x" * 500])
    ('a', 120)
    """
    files: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        written = escaped = escaped_file_name(name)
        salt = b""
        while len(written) > _MAX_BYTES or written.casefold() in taken:
            written = _shortened(escaped, name.encode() + salt)
            salt += b"~"  # for the next turn: the true name of another tensor may look like this one
        taken.add(written.casefold())
        files[name] = written
    return files


def _shortened(escaped: str, data: bytes) -> str:
    """Return the beginning of an escaped name, cut between its characters, with a digest of some bytes."""
    start = re.sub(r"%[0-9A-F]?$", "", escaped[:_KEPT_BYTES])
    return f"{start}~{hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()}"
