"""Digests of a listing's small files, remembered between two listings: the indexes of a thousand steps are read once.

Each entry is known by its path, its size, its time and its inode, or by its mark on object storage. Only what a whole
read said is remembered, and never an error: one bad read must not be a fact for ever.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.catalog.remembered_digests import code_revision, digests_file, load_digests, save_digests
from edl_ckpt.core.sources.hostile import hostile_bytes
from edl_ckpt.core.sources.interface import Digest, NotOfFormatError, OtherFormatError
from edl_ckpt.core.state.user_cache import cache_directory
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import BytesReader, Entry, RangeReader, Store

_HEAD_BYTES: Final = 64 << 20
_ONE_REQUEST_BYTES: Final = 8 << 20
"""Where a read takes a request, a file of so many bytes is one request; of a larger one, only what is asked for."""
_FRESH_SECONDS: Final = 2.0
"""A file that was written so short a time ago may be written again with the same size and time."""
_IN_PROCESSES: Final = 64
"""For so many files a second process may be worth its start. Only the program starts one, no user's script."""
_START_SECONDS: Final = 0.2
"""Of CPU time, for the start of other processes."""
_FIRST: Final = 16
"""So many files show how long the others take: the head of a small file takes far less than an index of torch."""
_ERRORS: Final = {
    error.__name__: error for error in (CorruptError, UnsupportedError, NotOfFormatError, OtherFormatError)
}


class SmallReads:
    """Reads the small files of one listing of a store, and remembers what functions say of them."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, entry: Entry) -> bytes:
        """Return the bytes of a small file of a listing, of a larger one its first ones; the errors of reading."""
        return read_small(self._store, entry, _HEAD_BYTES)

    def digests(self, wanted: Sequence[tuple[Entry, Digest]], *, again: bool = False) -> list[Any]:
        """Return what functions return for files, or the EdlCkptError that one raises; `again` reads all of them."""
        if not wanted:
            return []
        keys = [_key(entry, digest) for entry, digest in wanted]
        modules = sorted({digest.__module__ for _, digest in wanted})
        path = digests_file(self._store, code_revision(tuple(modules)))
        remembered = load_digests(path) if path else {}
        usable = {} if again else {key: remembered[key] for key in keys if key in remembered}
        to_read = {key: pair for key, pair in zip(keys, wanted, strict=True) if key not in usable}
        from_files = dict(zip(to_read, self._read_all(list(to_read.values())), strict=True))
        if path and from_files:
            # A listing forgets the files that are gone. A second look is one at some files, so it forgets none.
            kept = remembered if again else usable
            new = {key: made for key, made in from_files.items() if _is_fact(made, to_read[key][0])}
            kept = {key: made for key, made in kept.items() if key not in from_files}
            save_digests(path, kept | new)
        results = usable | from_files
        return [_value(results[key], entry) for key, (entry, _) in zip(keys, wanted, strict=True)]

    def _read_all(self, wanted: list[tuple[Entry, Digest]]) -> list[Any]:
        """Return the digests of files: by threads on a network, by processes where that takes less time, else here."""
        digest = partial(_digest, self._store)
        if self._store.properties.round_trips:
            return list(run_parallel(digest, wanted, REMOTE_WORKERS))
        if not cache_directory() or len(wanted) < _IN_PROCESSES or (os.cpu_count() or 1) == 1:
            return [digest(pair) for pair in wanted]
        begun = time.process_time()
        first = [digest(pair) for pair in wanted[:_FIRST]]
        seconds_each = (time.process_time() - begun) / _FIRST
        remaining = wanted[_FIRST:]
        if seconds_each * len(remaining) > _START_SECONDS:
            with suppress(OSError):
                return first + _in_processes(self._store, remaining)
        return first + [digest(pair) for pair in remaining]


def _is_fact(made: Any, entry: Entry) -> bool:
    """Say whether a result may be remembered: what was read, and no error, of a file that nothing writes just now."""
    return "is" in made and entry.modified < time.time() - _FRESH_SECONDS


def _in_processes(store: Store, wanted: list[tuple[Entry, Digest]]) -> list[Any]:
    """Return the digests of files, of which this process reads the first share, and others read the rest."""
    import multiprocessing  # only for many files: it takes 20 ms
    from concurrent.futures import ProcessPoolExecutor

    workers = min(os.cpu_count() or 1, 4)
    # Not fork: a client of S3 in this process would share its connections.
    with ProcessPoolExecutor(workers - 1, multiprocessing.get_context("forkserver")) as pool:
        share = -(-len(wanted) // workers)
        elsewhere = pool.map(partial(_digest, store), wanted[share:], chunksize=share)
        here = [_digest(store, pair) for pair in wanted[:share]]
        return [*here, *elsewhere]


def _digest(store: Store, pair: tuple[Entry, Digest]) -> Any:
    """Return the digest of a file, `{"is": JSON}`; or the error of its content or of the storage, as a dict."""
    entry, digest = pair
    try:
        with _opened(store, entry) as file, hostile_bytes(entry.path):
            return {"is": digest(file)}
    except (CorruptError, UnsupportedError) as error:
        kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _ERRORS)
        return {"error": kind, "message": error.message, "offset": error.offset}
    except EdlCkptError as error:
        return {"fault": Fault.of(error, entry.path)}


def _opened(store: Store, entry: Entry) -> RangeReader:
    """Return an open file of a listing; where a read takes a request, a small one is read at once."""
    if entry.fault:
        raise entry.fault.error()
    if store.properties.round_trips and entry.size_bytes <= _ONE_REQUEST_BYTES:
        return BytesReader(store.read_small(entry.relative) or b"", entry.path)
    return store.open(entry.path)


def _value(made: Any, entry: Entry) -> Any:
    """Return the digest that `_digest` has made; an error as an EdlCkptError of the file."""
    if "fault" in made:
        return made["fault"].error()
    if "error" not in made:
        return made["is"]
    return _ERRORS[made["error"]](made["message"], path=entry.path, offset=made["offset"])


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
