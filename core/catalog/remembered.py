"""What small files of a listing say, remembered between two listings: the indexes of a thousand steps are read once.

What is remembered of a location is one file in a directory of the user's own, never in the location. Each entry is
known by its path, its size, its time and its inode, or by its mark on object storage. A damaged file, or one of another
release, counts as none, and one that cannot be written is no error.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.version import VERSION
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry, Store

_HEAD_BYTES: Final = 64 << 20
_MOST_BYTES: Final = 64 << 20
_FRESH_SECONDS: Final = 2.0
"""A file that was written so short a time ago may be written again with the same size and time."""
_IN_PROCESSES: Final = 64
"""For so many files a second process is worth the 0.2 s of its start. Only the program starts one, no user's script."""
_ERRORS: Final = {error.__name__: error for error in (CorruptError, UnsupportedError)}
Digest: TypeAlias = Callable[[bytes], Any]
_directory: list[str] = []


def remember_in(directory: str) -> None:
    """Remember digests in files of a directory, which is made for the first of them; by default none is kept."""
    _directory[:] = [directory]


class SmallReads:
    """Reads the small files of one listing of a store, and remembers what functions say of them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, entry: Entry) -> bytes:
        """Return the bytes of a small file of a listing, of a larger one its first ones; the errors of reading."""
        return read_small(self._store, entry, _HEAD_BYTES)

    def digests(self, wanted: Sequence[tuple[Entry, Digest]]) -> list[Any]:
        """Return what functions return for the bytes of files, or the EdlCkptError that one raises."""
        if not wanted:
            return []
        path = _file_of(self._store)
        before = _load(path) if path else {}
        keys = [_key(entry, digest) for entry, digest in wanted]
        unknown = [(key, *pair) for key, pair in zip(keys, wanted, strict=True) if key not in before]
        made = dict(zip((key for key, *_ in unknown), self._make([(e, d) for _, e, d in unknown]), strict=True))
        if path and made:
            old = time.time() - _FRESH_SECONDS
            kept = {key: made[key] for key, entry, _ in unknown if entry.modified < old and "fault" not in made[key]}
            _save(path, {key: before[key] for key in keys if key in before} | kept)
        return [
            _value(before[key] if key in before else made[key], e) for key, (e, _) in zip(keys, wanted, strict=True)
        ]

    def _make(self, wanted: list[tuple[Entry, Digest]]) -> list[Any]:
        near = not self._store.properties.round_trips
        if near and _directory and len(wanted) >= _IN_PROCESSES and (os.cpu_count() or 1) > 1:
            with suppress(OSError):
                return _in_processes(self._store, wanted)
        return list(run_parallel(partial(_digest, self._store), wanted, 1 if near else REMOTE_WORKERS))


def _in_processes(store: Store, wanted: list[tuple[Entry, Digest]]) -> list[Any]:
    import multiprocessing  # only for many files: it takes 20 ms
    from concurrent.futures import ProcessPoolExecutor

    workers = min(os.cpu_count() or 1, 4)
    # Not fork: a client of S3 in this process would share its connections.
    with ProcessPoolExecutor(workers - 1, multiprocessing.get_context("forkserver")) as pool:
        share = -(-len(wanted) // workers)
        rest = pool.map(partial(_digest, store), wanted[share:], chunksize=share)
        return [*[_digest(store, pair) for pair in wanted[:share]], *rest]


def _digest(store: Store, pair: tuple[Entry, Digest]) -> Any:
    """Return the digest of a file, as a JSON value; an error as its kind, its message and its offset."""
    entry, digest = pair
    try:
        return {"is": digest(read_small(store, entry, _HEAD_BYTES))}
    except (CorruptError, UnsupportedError) as error:
        return {"error": type(error).__name__, "message": error.message, "offset": error.offset}
    except EdlCkptError as error:
        return {"fault": Fault.of(error, entry.path)}


def _value(made: Any, entry: Entry) -> Any:
    if "fault" in made:
        return made["fault"].error()
    if "error" not in made:
        return made.get("is")
    error = _ERRORS.get(made["error"], CorruptError)
    return error(str(made.get("message")), path=entry.path, offset=made.get("offset"))


def read_small(store: Store, entry: Entry, most: int) -> bytes:
    """Return the bytes of a small file of a listing, of a larger one its first ones; the errors of reading."""
    if entry.fault:
        raise entry.fault.error()
    if store.properties.round_trips:
        return store.read_small(entry.relative) or b""
    with store.open(entry.path) as reader:
        return reader.read(0, min(reader.size_bytes, most))


def _key(entry: Entry, digest: Digest) -> str:
    return f"{digest.__module__}:{entry.size_bytes}:{entry.modified}:{entry.mark}:{entry.relative}"


def _file_of(store: Store) -> str:
    if not _directory:
        return ""
    import hashlib  # only locations with such files need it

    name = hashlib.blake2b(store.location.absolute.encode("utf-8", "surrogatepass"), digest_size=12).hexdigest()
    return os.path.join(_directory[0], f"{name}.json")


def _load(path: str) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
        document = json.loads(data) if len(data) <= _MOST_BYTES else None
        if isinstance(document, dict) and document.get("release") == VERSION:
            digests = document.get("digests")
            if isinstance(digests, dict) and all(isinstance(made, dict) for made in digests.values()):
                return digests
    return {}


def _save(path: str, digests: dict[str, Any]) -> None:
    data = json.dumps({"release": VERSION, "digests": digests}).encode()
    staged = f"{path}.{new_id()}"
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        try:
            descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            os.replace(staged, path)
        except OSError:
            with suppress(OSError):
                os.unlink(staged)
            raise
