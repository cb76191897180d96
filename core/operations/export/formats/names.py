"""Names from checkpoints as names of files and of members of archives, reversible where that is possible.

The name of a file is never a path and never too long. A member of an archive has the name itself, wherever an archive
can have it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container, Iterable
from functools import partial
from typing import Final
from urllib.parse import quote, unquote

_SAFE: Final = " !#$&'()+,-.;=@[]^_`{}~"
_DEVICES: Final = {"CON", "PRN", "AUX", "NUL", *(f"{name}{k}" for name in ("COM", "LPT") for k in range(1, 10))}
_MAX_BYTES: Final = 200
_UNSAFE_IN_ARCHIVES: Final = re.compile(r"\0|\\|\A/|(?<![^/])\.(?=\.?(?:/|\Z))")
_KEPT_BYTES: Final = 79
_DIGEST_BYTES: Final = 20
_MAX_MEMBER_BYTES: Final = 65_000
"""Of the name of a member: its length has 16 bits."""
NOTES: Final = "__edl_ckpt__"
"""The array of bytes, JSON, that an archive has for importers; no tensor has this name there."""


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
    return _distinct(names, escaped_file_name, _MAX_BYTES, lambda written: {written.casefold()})


def member_names(names: Iterable[str]) -> dict[str, str]:
    """Return the key of each name in an .npz archive: the name itself, unless an archive cannot have it.

    %XX stands for NUL, where readers cut a name; for a backslash; for a slash at the begin, and the first dot of the
    components '.' and '..', which would lead out of the directory where somebody unpacks the archive; for the first
    character of `NOTES`; and for the dot of 'a.npy' beside 'a', because numpy takes that key for the file of 'a'. A
    name that is then too long or taken is shortened and gets a digest, as in `file_names`.

    >>> list(member_names(["dense/kernel:0", "../a", "a", "a.npy"]).values())
    ['dense/kernel:0', '%2E./a', 'a', 'a%2Enpy']
    """
    names = list(names)
    escape = partial(_escaped_member, there=set(names))
    return _distinct(names, escape, _MAX_MEMBER_BYTES, lambda written: {written, f"{written}.npy"})


def _distinct(
    names: Iterable[str], escape: Callable[[str], str], most_bytes: int, keys: Callable[[str], set[str]]
) -> dict[str, str]:
    """Return each name escaped, or shortened where that is too long, or where one before it has one of its keys."""
    chosen: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        written = escaped = escape(name)
        salt = b""
        while len(written.encode()) > most_bytes or not taken.isdisjoint(keys(written)):
            written = _shortened(escaped, name.encode() + salt)
            salt += b"~"  # for the next turn: the true name of another tensor may look like this one
        taken |= keys(written)
        chosen[name] = written
    return chosen


def _escaped_member(name: str, there: Container[str]) -> str:
    """Return a name with %XX for what a member of an archive beside the names `there` cannot have."""
    if name == NOTES:
        return f"%{ord(name[0]):02X}{name[1:]}"
    escaped = _UNSAFE_IN_ARCHIVES.sub(lambda found: f"%{ord(found[0]):02X}", name)
    if escaped.endswith(".npy") and name.removesuffix(".npy") in there:
        escaped = f"{escaped.removesuffix('.npy')}%2Enpy"
    return escaped


def _shortened(escaped: str, data: bytes) -> str:
    """Return the beginning of an escaped name, cut between its characters, with a digest of some bytes."""
    start = re.sub(r"%[0-9A-F]?$", "", escaped[:_KEPT_BYTES])
    return f"{start}~{hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()}"
