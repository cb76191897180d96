"""Digests of a location's small files, remembered in one file in a directory of the user's own, never in the location.

A file of other code than this, with another checksum or of another kind counts as none, and one that cannot be written
is no error.
"""

from __future__ import annotations

import functools
import json
import os
import stat
import sys
from contextlib import suppress
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.version import VERSION
from edl_ckpt.core.state.user_cache import cache_directory
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.interface import Store

_MOST_BYTES: Final = 64 << 20
_SCHEMA: Final = "edl-ckpt/digests/2"


@functools.cache
def code_revision(modules: tuple[str, ...]) -> str:
    """Return a digest of the code of formats: what another revision of it said is not what this one says."""
    import hashlib  # only locations with such files need it

    known = hashlib.blake2b(f"{VERSION} {_SCHEMA}".encode(), digest_size=8)
    for module in modules:
        file = sys.modules[module].__file__ if module in sys.modules else None
        folder = os.path.dirname(file or "")
        with suppress(OSError):  # without its source, the release must do
            for name in sorted(os.listdir(folder)):
                if name.endswith(".py"):
                    with open(os.path.join(folder, name), "rb") as source:
                        known.update(source.read())
    return known.hexdigest()


def digests_file(store: Store, revision: str) -> str:
    """Return the path of the file for a location and a revision of the code; '' where the user wants none."""
    if not cache_directory():
        return ""
    import hashlib  # only locations with such files need it

    place = f"{store.location.absolute}\0{revision}".encode("utf-8", "surrogatepass")
    return os.path.join(cache_directory(), f"{hashlib.blake2b(place, digest_size=12).hexdigest()}.json")


def _sum(digests: bytes) -> str:
    import hashlib  # only locations with such files need it

    return hashlib.blake2b(digests, digest_size=16).hexdigest()


def load_digests(path: str) -> dict[str, Any]:
    """Return what a file remembers; {} where it is none, or not as this code wrote it."""
    with suppress(OSError, ValueError, RecursionError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would block
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return {}
            head, _, text = file.read(_MOST_BYTES).partition(b"\n")
        if head == _head(text):
            digests = json.loads(text)
            if isinstance(digests, dict) and all(map(_is_remembered, digests.values())):
                return digests
    return {}


def _is_remembered(made: object) -> bool:
    """Return True for what `_digest` returns of a file that it could read."""
    return isinstance(made, dict) and "is" in made


def _head(text: bytes) -> bytes:
    """Return the first line of a file: the schema, and the checksum of what follows."""
    return f"{_SCHEMA} {_sum(text)}".encode()


def save_digests(path: str, digests: dict[str, Any]) -> None:
    """Write digests to a file, as far as that is possible."""
    text = json.dumps(digests).encode()
    folder, name = os.path.split(path)
    with suppress(OSError, EdlCkptError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with Directory.open(folder) as directory:
            directory.replace(name, _head(text) + b"\n" + text, flush=False)
