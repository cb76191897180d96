"""Deleting versions so that it can be undone: one rename into the trash, then removal there.

`.edl-ckpt-0/trash-0/<id>/` has, for one deletion, `record.json` (time, versions, whether they stay), the versions under
their own names, and their metadata in `meta/`. One rename moves a version, so a crash at any instant leaves it whole in
its place or whole in the trash. Before bytes are removed, `<id>` is renamed to `drop-<id>`, which `undo` never puts
back. Storage without rename (S3) has no trash: files are removed one by one, and the first removal already makes the
version invalid for ElasticDL.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.core.errors import EdlCkptError, NotFoundError, RefusedError, UnsupportedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import SINGLE_FILE, version_names
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.state.paths import META_DIR, STATE_DIR, TRASH_DIR, metadata_owner, seal_file, version_file
from edl_ckpt.core.storage import LocalStore, LocationLike, open_store
from edl_ckpt.core.storage.faults import Fault, storage_errors
from edl_ckpt.core.storage.files import flush_directory, make_inside, rename_new, write_new
from edl_ckpt.core.storage.interface import ObjectStore
from edl_ckpt.core.storage.local import is_gone
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.regular import open_input
from edl_ckpt.core.storage.trees import remove_tree

RECORD_SCHEMA: Final = "edl-ckpt/trash/1"
_RECORD: Final = "record.json"
_META: Final = "meta"
_DROP: Final = "drop-"


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a deletion: the versions that are gone, those that could not be deleted, and what they left."""

    deleted: tuple[Version, ...]
    failed: tuple[tuple[Version, EdlCkptError], ...] = ()
    problems: tuple[EdlCkptError, ...] = ()
    """Why files of deleted versions could not be removed."""
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """One deletion in the trash: its directory, its time in seconds since the epoch, the names of its versions."""

    path: str
    time: float
    keep: bool
    names: tuple[str, ...]
    size_bytes: int


def delete_versions(
    location: Location,
    versions: Sequence[Version],
    *,
    keep: bool = False,
) -> Removal:
    """Delete versions of a location, or with `keep` leave them in its trash; the caller holds its lock.

    A version that is gone already is no error; the result does not name it. Raises UnsupportedError for `keep` on
    storage without rename, before anything changes.
    """
    if not versions:
        return Removal(())
    store = open_store(location)
    if keep and not store.properties.trash:
        raise UnsupportedError("this storage has no rename, and so no trash", path=location.url)
    if not isinstance(store, LocalStore):
        return _remove_in_order(store, versions)
    state = os.path.join(store.root, STATE_DIR)
    trash = os.path.join(state, "trash-0", new_id())
    make_inside(trash)
    record = {"schema": RECORD_SCHEMA, "time": time.time(), "keep": keep, "versions": [v.version for v in versions]}
    write_new(os.path.join(trash, _RECORD), json.dumps(record).encode())
    flush_directory(trash)
    if keep:  # first: once a version is gone, the next prune removes its metadata
        _copy_metadata(store.root, [file for v in versions for file in _metadata_of(v)], os.path.join(trash, _META))
    moved, failed = _move_all(versions, trash)
    _flush_moves(store.root, trash)
    if keep:  # the metadata of a version that stays is not in the trash
        _forget(os.path.join(trash, _META), [os.path.basename(f) for v, _ in failed for f in _metadata_of(v)])
    in_place = [] if keep else [version for version, error in failed if isinstance(error, UnsupportedError)]
    removal = _remove_in_place(store, in_place)
    failed = [(v, e) for v, e in failed if v not in in_place] + list(removal.failed)
    deleted = (*moved, *removal.deleted)
    # Another version may have the same number, spelled otherwise; they share their metadata.
    _forget(store.root, [f for v in deleted if _is_absent(store, v.version) for f in _metadata_of(v)])
    problems = [] if keep and moved else _drop(trash)
    left = {name for top in (trash, _doomed(trash)) for name in _names(top)}
    freed = 0 if keep else sum(v.own_bytes for v in moved if os.path.basename(v.path) not in left)
    _tidy(state)
    return Removal(deleted, tuple(failed), tuple(problems), freed + removal.freed_bytes)


def _metadata_of(version: Version) -> tuple[str, str]:
    return version_file(version.version), seal_file(version.version)


def _forget(directory: str, files: Iterable[str]) -> None:
    for file in files:
        with storage_errors(directory), suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(os.path.join(directory, file))


def _is_absent(store: LocalStore, version: int) -> bool:
    """Say whether there is no version of a number: each of its names is looked up, and only a missing one is absent."""
    return all(is_gone(store.path(name)) for name in version_names(version))


def _move_all(versions: Iterable[Version], trash: str) -> tuple[list[Version], list[tuple[Version, EdlCkptError]]]:
    """Move versions into the trash; return those that moved, and why others could not. One does not stop the next."""
    moved: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        try:
            if _move(version.path, os.path.join(trash, os.path.basename(version.path))):
                moved.append(version)
        except UnsupportedError as error:
            hint = "delete it without --trash"
            failed.append((version, UnsupportedError(error.message, path=version.path, hint=hint)))
        except EdlCkptError as error:
            failed.append((version, error))
    return moved, failed


def _remove_in_place(store: LocalStore, versions: Iterable[Version]) -> Removal:
    """Delete versions that cannot be renamed, as on a lower layer of overlayfs: file by file, in the safe order.

    As on storage without rename, the first removal makes the version invalid for ElasticDL. A killed deletion leaves an
    incomplete version, which `prune --incomplete` removes.
    """
    deleted: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        first, rest = _safe_order(version)
        try:
            with storage_errors(version.path):
                for path in (*first, *rest):
                    with suppress(FileNotFoundError):
                        os.unlink(path)
                if version.layout is not SINGLE_FILE:
                    with suppress(FileNotFoundError):
                        os.rmdir(version.path)
        except EdlCkptError as error:
            failed.append((version, error))
        else:
            deleted.append(version)
    if deleted:
        flush_directory(store.root)
    return Removal(tuple(deleted), tuple(failed), (), sum(v.own_bytes for v in deleted))


def list_trash(location: LocationLike) -> list[TrashEntry]:
    """Return the deletions in a location's trash, the newest first. Only local storage has a trash."""
    store = open_store(location)
    if not isinstance(store, LocalStore):
        return []
    top = store.path(TRASH_DIR)
    entries: list[TrashEntry] = []
    for name in _names(top):
        path = os.path.join(top, name)
        record = _read_record(path)
        if name.startswith(_DROP) or not os.path.isdir(path):
            continue
        names = tuple(sorted(set(_names(path)) - {_RECORD, _META}))
        recorded = record.get("time")
        with storage_errors(path):
            moment = float(recorded) if isinstance(recorded, int | float) else os.stat(path).st_mtime
        keep = bool(record.get("keep", True))  # `reshard --keep-old` writes no record
        entries.append(TrashEntry(path, moment, keep, names, _tree_bytes(path)))
    return sorted(entries, key=lambda entry: (entry.time, entry.path), reverse=True)


def last_deletion(location: Location) -> TrashEntry | None:
    """Return the deletion that `put_back` would undo, None when there is none."""
    return next((e for e in list_trash(location) if _read_record(e.path) and _has_content(e.path)), None)


def put_back(store: LocalStore, reporter: Reporter) -> tuple[str, ...]:
    """Put the versions of the last deletion in the trash back, with their metadata; return their names.

    The caller holds the location's lock. Raises NotFoundError when there is nothing to put back, and RefusedError,
    before anything moves, when a version of such a name exists again.
    """
    root, location = store.root, store.location
    entry = last_deletion(location)
    if entry is None:
        raise NotFoundError(
            "nothing to undo", path=location.url, hint="undo restores only versions that `prune --trash` deleted"
        )
    taken = [name for name in entry.names if os.path.lexists(os.path.join(root, name))]
    if taken:
        raise RefusedError(
            f"{taken[0]} exists again; nothing was restored",
            path=location.url,
            hint=f"move it away and try again; the deleted version is in {entry.path}",
        )
    for name in entry.names:
        rename_new(os.path.join(entry.path, name), os.path.join(root, name))
    meta = os.path.join(entry.path, _META)
    with storage_errors(root):
        if entry.names or _names(meta):
            os.makedirs(os.path.join(root, META_DIR), exist_ok=True)
        for name in _names(meta):
            target = os.path.join(root, META_DIR, name)
            if not os.path.lexists(target):
                os.rename(os.path.join(meta, name), target)
    flush_directory(os.path.join(root, META_DIR))
    _flush_moves(root, entry.path)
    problems = _drop(entry.path)
    _tidy(os.path.join(root, STATE_DIR))
    for problem in problems:
        reporter.warn(str(problem))
    return entry.names


@dataclass(frozen=True, slots=True)
class Purge:
    """The result of emptying the trash: the bytes that this freed, and the files that could not be removed."""

    freed_bytes: int
    problems: tuple[EdlCkptError, ...] = ()


def empty_trash(locations: Iterable[Location], *, now: float, older_than_seconds: float = 0.0) -> Purge:
    """Remove versions that have been in the trash for so long; the caller holds the locks of all locations.

    This includes the old shards of `reshard --keep-old`. Locations on storage without rename have no trash.
    """
    freed = 0
    problems: list[EdlCkptError] = []
    for location in locations:
        for entry in list_trash(location):
            if now - entry.time >= older_than_seconds:
                problems += _drop(entry.path)
                freed += 0 if os.path.lexists(entry.path) else entry.size_bytes
        problems += sweep(open_store(location))
    return Purge(freed, tuple(problems))


def sweep(store: LocalStore | ObjectStore) -> tuple[EdlCkptError, ...]:
    """Finish deletions that were killed, except those that stay in the trash. The caller holds the lock."""
    if not isinstance(store, LocalStore) or not os.path.isdir(store.path(TRASH_DIR)):
        return ()
    state = store.path(STATE_DIR)
    top = os.path.join(state, "trash-0")
    problems: list[EdlCkptError] = []
    for name in _names(top):
        path = os.path.join(top, name)
        if name.startswith(_DROP) or not _read_record(path).get("keep", True) or not _has_content(path):
            problems += _drop(path)
    _tidy(state)
    return tuple(problems)


def forget_gone(location: Location, present: Iterable[int]) -> None:
    """Remove the metadata of gone versions: a restarted job may use their numbers. The caller holds the lock.

    `present` are the numbers in a listing. On a local disk each name of another number is looked up as well, and only
    what has no name is gone. Storage whose listings may lack something keeps all metadata.
    """
    store = open_store(location)
    if not store.properties.whole_listings:
        return
    listed = set(present)
    for name in store.names(META_DIR):
        number = metadata_owner(name)
        if number is None or number in listed:
            continue
        if not isinstance(store, LocalStore) or _is_absent(store, number):
            store.remove(f"{META_DIR}/{name}")


def _copy_metadata(root: str, files: Iterable[str], target: str) -> None:
    """Copy the metadata files that exist into a directory of the trash."""
    for file in files:
        path = os.path.join(root, file)
        with storage_errors(path), suppress(FileNotFoundError), open_input(path, "rb") as source:
            data = source.read()
            os.makedirs(target, exist_ok=True)
            write_new(os.path.join(target, os.path.basename(file)), data)
    if os.path.isdir(target):
        flush_directory(target)


def _move(source: str, target: str) -> bool:
    """Rename into the trash; False when another process was faster."""
    with storage_errors(source):
        try:
            os.rename(source, target)
        except FileNotFoundError:
            if not is_gone(source):
                raise
            return False
        except OSError:  # a file server may report an error for what it did
            if not is_gone(source) or is_gone(target):
                raise
    return True


def _flush_moves(root: str, trash: str) -> None:
    flush_directory(trash)
    flush_directory(root)


def _doomed(path: str) -> str:
    """Return the name of a directory of the trash while it is being removed."""
    name = os.path.basename(path)
    return path if name.startswith(_DROP) else os.path.join(os.path.dirname(path), _DROP + name)


def _drop(path: str) -> list[EdlCkptError]:
    """Remove a directory of the trash; return why files could not be removed."""
    doomed = _doomed(path)
    problems: list[EdlCkptError] = []

    def note(_function: object, failed: str, error: BaseException) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            reason = getattr(error, "strerror", None) or error
            problems.append(Fault.of(error, failed).kind(f"cannot be removed ({reason})", path=failed))

    if doomed != path:
        try:
            _move(path, doomed)
        except EdlCkptError as error:
            return [error]
    _remove_tree(doomed, note)
    return problems


def _remove_tree(path: str, note: Callable[[object, str, BaseException], None]) -> None:
    import sys

    if not os.path.isdir(path) or os.path.islink(path):  # a pipe would block `rmtree`
        remove_tree(path)
    elif sys.version_info >= (3, 12):
        shutil.rmtree(path, onexc=note)
    else:
        shutil.rmtree(path, onerror=lambda function, failed, info: note(function, failed, info[1]))


def _tidy(state: str) -> None:
    """Remove those of our directories that are empty now."""
    for path in (os.path.join(state, "trash-0"), os.path.join(state, "meta-0"), state):
        with suppress(OSError):  # not empty
            os.rmdir(path)


def _names(directory: str) -> list[str]:
    try:
        with storage_errors(directory):
            return sorted(os.listdir(directory))
    except NotFoundError:
        return []


def _has_content(path: str) -> bool:
    return any(name != _RECORD and (name != _META or _names(os.path.join(path, name))) for name in _names(path))


def _read_record(path: str) -> dict[str, Any]:
    try:
        with open_input(os.path.join(path, _RECORD), encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _tree_bytes(path: str) -> int:
    total = 0
    for file in _files(path):
        with suppress(FileNotFoundError):  # another prune is removing it
            total += os.lstat(file).st_size
    return total


def _files(path: str) -> Iterator[str]:
    for top, _, names in os.walk(path):
        yield from (os.path.join(top, name) for name in names)


def _safe_order(version: Version) -> tuple[list[str], list[str]]:
    """Return the files of a version as (first, rest): after the first no remainder passes for a whole version."""
    firsts = {shard.ps_num: shard for shard in reversed(version.shards)}
    first = [shard.path for shard in firsts.values()]
    rest = [shard.path for shard in version.shards if shard.path not in first]
    return first, rest + [f"{version.path}/{name}" for name in version.extra]


def _remove_in_order(store: ObjectStore, versions: Sequence[Version]) -> Removal:
    """Delete files one by one; a shard of each ps_num goes first."""
    deleted: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        first, rest = _safe_order(version)
        try:
            for path in first:
                store.remove(path.removeprefix(store.path("")))
            store.remove_many([path.removeprefix(store.path("")) for path in rest])
            store.remove_many(list(_metadata_of(version)))
            store.remove_directory(version.path.removeprefix(store.path("")))
        except EdlCkptError as error:
            failed.append((version, error))
        else:
            deleted.append(version)
    return Removal(tuple(deleted), tuple(failed), (), sum(v.size_bytes for v in deleted))
