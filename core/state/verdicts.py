"""What verify found for the versions of a location, remembered so that every command knows it.

A verdict counts only while all files of its version are the very files that were read: the same names, sizes, times and
inodes, or ETags (`Version.files_identity`). So a lost file of verdicts costs a verification, and an old, a copied or a
damaged one never says anything of other files.

Verdicts are in files `verdicts-{id}.json` in META_DIR of the location if it is there: a reader makes no directory of
ours in a location, where a job may stumble over it, or where its owner could not write in it later. Otherwise they are
in the user's own directory. No lock is needed. A file is never changed: who adds a verdict writes a new file with all
that the others contain, and then removes those that it has read. Two that do so at once leave two files, which
together contain everything.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import EdlCkptError, UnavailableError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.model.verdicts import DEPTHS, Verdict, verdict_of
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state.document import MAX_BYTES, parse_document
from edl_ckpt.core.state.paths import META_DIR, is_verdicts, verdicts_file
from edl_ckpt.core.state.user_cache import cache_directory, name_of
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.interface import Store

VERDICTS_SCHEMA: Final = "edl-ckpt/verdicts/1"
_MOST: Final = 5000
_MOST_BYTES: Final = MAX_BYTES // 2
"""The oldest verdicts go when there are more, or when their file would be larger."""
_MOST_FIRST: Final = 200
_ATTEMPTS: Final = 10
_CACHE: Final = ".verdicts"
"""The directory in the user's own one: hidden, so no link in it is followed."""


class Remembered(NamedTuple):
    """A verdict, the name of its version's directory or prefix, and the identity of the files that were read."""

    name: str
    files: str
    verdict: Verdict


@dataclass(slots=True)
class VerdictFiles:
    """Reads the verdicts of one location; what a file contained is kept, since files never change."""

    store: Store
    _read: dict[tuple[str, str], tuple[Remembered, ...]] = field(default_factory=dict)

    def of(self, versions: Iterable[Version], listed: Iterable[str] | None = None) -> tuple[Version, ...]:
        """Return versions with what is known of their files; `listed` are the names in META_DIR, if they are known."""
        found: defaultdict[str, list[Remembered]] = defaultdict(list)
        for each in self._all(listed):
            found[each.name].append(each)
        return tuple(_with_verdict(v, found[base_name(v.path)]) if found else v for v in versions)

    def _all(self, listed: Iterable[str] | None) -> list[Remembered]:
        every: list[Remembered] = []
        names = None if listed is None else [name for name in listed if is_verdicts(name)]
        if names is None or names:
            every += self._in(self.store, META_DIR, names)
        with suppress(EdlCkptError):
            if (cache := _cache()) and os.path.isdir(cache.path(_CACHE)):
                every += self._in(cache, _cache_folder(self.store.location), None)
        return every

    def _in(self, store: Store, folder: str, names: list[str] | None) -> list[Remembered]:
        """Return the verdicts in the files of a directory; who adds one replaces files, so they are listed again."""
        for _ in range(_ATTEMPTS):
            if names is None:
                names = [name for name in store.names(folder) if is_verdicts(name)]
            self._read = {key: self._read[key] for key in self._read if key[0] != folder or key[1] in names}
            read = [self._file(store, folder, name) for name in names]
            if None not in read:
                break
            names = None
        return [each for content in read if content is not None for each in content]

    def _file(self, store: Store, folder: str, name: str) -> tuple[Remembered, ...] | None:
        """Return the verdicts in a file, None when it is gone; one that cannot be read has none."""
        key = (folder, name)
        if key not in self._read:
            try:
                data = store.read_small(f"{folder}/{name}")
            except UnavailableError:
                raise  # a fault of the storage, not of the file
            except EdlCkptError:
                return ()
            if data is None:
                return None
            self._read[key] = parse_verdicts(data)
        return self._read[key]


def _with_verdict(version: Version, remembered: Sequence[Remembered]) -> Version:
    if version.state is not State.COMPLETE or not remembered:
        return version
    files = version.files_identity
    return replace(version, verdict=verdict_of(each.verdict for each in remembered if each.files == files))


def remember_verdicts(location: Location, found: Sequence[Remembered]) -> None:
    """Keep verdicts for later commands, in the location or in the user's own directory; neither may be possible."""
    if not found:
        return
    with suppress(EdlCkptError):
        store = open_store(location)
        if names := store.names(META_DIR):
            _add(store, META_DIR, names, found)
            return
    with suppress(EdlCkptError, OSError):
        if cache := _cache(make=True):
            folder = _cache_folder(location)
            _add(cache, folder, cache.names(folder), found)


def forget_verdicts(store: Store) -> bool:
    """Remove the files of verdicts in a location that only say something of gone versions; say whether one was removed.

    A version is there as long as an entry has its name, or the index of a bundle. A file that is damaged stays, and so
    does that of a newer edl-ckpt.
    """
    removed = False
    with suppress(EdlCkptError):
        names = [name for name in store.names(META_DIR) if is_verdicts(name)]
        there = set(store.names("")) if names else set()
        there |= {entry.removesuffix(".index") for entry in there}
        for name in names:
            content = parse_verdicts(store.read_small(f"{META_DIR}/{name}") or b"")
            if content and there.isdisjoint(each.name for each in content):
                store.remove(f"{META_DIR}/{name}")
                removed = True
    return removed


def _cache(*, make: bool = False) -> Store | None:
    directory = cache_directory()
    if directory and make:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    return open_store(Location(directory)) if directory and os.path.isdir(directory) else None


def _cache_folder(location: Location) -> str:
    return f"{_CACHE}/{name_of(location)}"


def _add(store: Store, folder: str, names: Iterable[str], found: Sequence[Remembered]) -> None:
    """Write a file with verdicts and all that other files contain, and remove the files that it replaces.

    `names` are those in the directory.
    """
    before: dict[str, tuple[Remembered, ...]] = {}
    for name in filter(is_verdicts, names):
        data = store.read_small(f"{folder}/{name}")
        if data is not None:
            before[name] = parse_verdicts(data)
    every = _newest(found, *before.values())
    store.write_small(f"{folder}/{verdicts_file(new_id())}", verdicts_bytes(every))
    for name, content in before.items():
        if content:  # a damaged one stays, and so does that of a newer edl-ckpt
            store.remove(f"{folder}/{name}")


def _newest(*parts: Iterable[Remembered]) -> list[Remembered]:
    """Return of each version's files the newest verdict of each level and outcome, the newest first, and not too many.

    An error and a later verdict without one are both kept: which of them counts is decided when they are read.
    """
    best: dict[tuple[str, str, str, bool], Remembered] = {}
    for part in parts:
        for each in part:
            key = (each.name, each.files, each.verdict.level, each.verdict.ok)
            if key not in best or best[key].verdict.at < each.verdict.at:
                best[key] = each
    return sorted(best.values(), key=lambda each: each.verdict.at, reverse=True)[:_MOST]


def verdicts_bytes(found: Sequence[Remembered]) -> bytes:
    """Return a file of verdicts, the newest first, of too many without the last; `parse_verdicts` is the inverse."""
    rows: list[dict[str, Any]] = []
    room = _MOST_BYTES
    for each in found:
        verdict = each.verdict
        row = {"name": each.name, "files": each.files, "level": verdict.level, "ok": verdict.ok, "at": verdict.at}
        if not verdict.ok:
            row |= {"errors": verdict.errors, "first": verdict.first[:_MOST_FIRST]}
        room -= len(json.dumps(row))
        if room < 0:
            break
        rows.append(row)
    document = {"schema": VERDICTS_SCHEMA, "verdicts": rows, "digest": _digest(rows)}
    return json.dumps(document).encode("ascii")


def parse_verdicts(data: bytes) -> tuple[Remembered, ...]:
    """Return the verdicts in a file; none of one that is damaged, or that a newer edl-ckpt wrote."""
    try:
        document = parse_document(data, META_DIR)
    except EdlCkptError:
        return ()
    rows = document.get("verdicts")
    is_whole = document.get("schema") == VERDICTS_SCHEMA and isinstance(rows, list)
    if not is_whole or document.get("digest") != _digest(rows):
        return ()
    return tuple(found for row in rows or () if (found := _parsed(row)) is not None)


def _parsed(row: Any) -> Remembered | None:
    match row:
        case {"name": str(name), "files": str(files), "level": str(level), "ok": bool(ok), "at": float(at) | int(at)}:
            if level not in DEPTHS or isinstance(at, bool):
                return None
            return Remembered(name, files, _verdict(row, level, float(at), ok=ok))
    return None


def _verdict(row: Mapping[str, Any], level: Any, at: float, *, ok: bool) -> Verdict:
    if ok:
        return Verdict(level, ok, at, 0, "")
    errors, first = row.get("errors"), row.get("first")
    count = max(errors, 1) if isinstance(errors, int) else 1
    return Verdict(level, ok, at, count, first if isinstance(first, str) else "")


def _digest(rows: Any) -> str:
    """Return a digest of verdicts: with a flipped bit none of them counts."""
    import hashlib  # only locations with verdicts need it

    return hashlib.blake2b(json.dumps(rows).encode("ascii"), digest_size=16).hexdigest()
