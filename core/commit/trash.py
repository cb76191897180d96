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
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from edl_ckpt.core.commit.removal import Before, Removal, remove_in_order, safe_order
from edl_ckpt.core.commit.staging import remove_empty_state
from edl_ckpt.core.errors import EdlCkptError, NotFoundError, RefusedError, UnsupportedError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import SINGLE_FILE, parse_single_file, parse_version_dir, version_names
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.state.document import MAX_BYTES, parse_document
from edl_ckpt.core.state.holder import prove_lock
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.metadata import is_unread
from edl_ckpt.core.state.paths import META_DIR, TRASH_DIR, metadata_owner, seal_file, version_file
from edl_ckpt.core.storage import LocalStore, LocationLike, open_store
from edl_ckpt.core.storage.beneath import Directory, ForeignError
from edl_ckpt.core.storage.files import NEW
from edl_ckpt.core.storage.interface import SMALL_BYTES, ObjectStore
from edl_ckpt.core.storage.local import is_gone
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.words import neighbours

RECORD_SCHEMA: Final = "edl-ckpt/trash/1"
RECORD: Final = "record.json"
_META: Final = "meta"
_SEAL: Final = ".seal.json"
_DROP: Final = "drop-"
_LAST_MOMENT: Final = 253_402_300_800
"""The end of the year 9999: no later time can be printed."""
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class TrashEntry:
    """One deletion in the trash: its directory, its time in seconds since the epoch, the names in it.

    `recorded` has those that its record names as deleted versions, `metadata` the files of their metadata that are
    still there.
    """

    path: str
    time: float
    keep: bool
    names: tuple[str, ...]
    size_bytes: int
    recorded: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    fault: EdlCkptError | None = None
    """Why its record, which is there, cannot be read now; then it stays, and its time is that of the directory."""

    @property
    def numbers(self) -> set[int]:
        """Return the numbers of the versions that can be put back, wholly or, after a kill, their metadata alone."""
        owners = {metadata_owner(name) for name in self.metadata}
        return {number for number in owners | set(map(_number_of, self.recorded)) if isinstance(number, int)}

    def part(self, number: int) -> TrashEntry:
        """Return the entry with one version only."""
        recorded = tuple(name for name in self.recorded if _number_of(name) == number)
        metadata = tuple(name for name in self.metadata if metadata_owner(name) == number)
        return replace(self, recorded=recorded, metadata=metadata)


def delete_versions(
    location: Location,
    versions: Sequence[Version],
    *,
    keep: bool = False,
    look: Before = lambda _: None,
    known: Known | None = None,
) -> Removal:
    """Delete versions of a location, or with `keep` leave them in its trash; the caller holds its lock.

    `look` is called right before each version is deleted, and raises an error when it must stay. Metadata in `known` is
    not read again. A version that is gone already is no error; the result does not name it. Raises UnsupportedError for
    `keep` on storage without rename, before anything changes.
    """
    if not versions:
        return Removal(())
    store = open_store(location)
    if keep and not store.properties.trash:
        raise UnsupportedError("this storage has no rename, and so no trash", path=location.url)

    def before(version: Version) -> None:
        look(version)
        prove_lock(location)

    if not isinstance(store, LocalStore):
        return remove_in_order(store, versions, look, known or Known())  # proves the lock, once for many versions
    entry = new_id()
    with Directory.open(store.root) as root:
        with root.enter(f"{TRASH_DIR}/{entry}", make=True) as trash:
            _write_record(trash, versions, keep=keep)
            if keep:  # first: once a version is gone, the next prune removes its metadata
                _copy_metadata(root, trash, [v.version for v in versions])
            moved, failed = _move_all(root, trash, versions, before)
            trash.flush()
            root.flush()
            # the metadata of a version that stays is not in the trash
            problems = _forget(trash, _META, [v.version for v, _ in failed]) if keep else []
        in_place = [] if keep else [version for version, error in failed if isinstance(error, UnsupportedError)]
        removal = _remove_in_place(root, in_place)
        failed = [(v, e) for v, e in failed if v not in in_place] + list(removal.failed)
        deleted = (*moved, *removal.deleted)
        # Another version may have the same number, spelled otherwise; they share their metadata.
        problems += _forget(root, META_DIR, [v.version for v in deleted if _is_absent(root, v.version)])
        problems += [] if keep and moved else _drop(root, entry)
        left = _left_of(root, entry)
        remove_empty_state(root)
    freed = 0 if keep else sum(v.own_bytes for v in moved if os.path.basename(v.path) not in left)
    return Removal(deleted, tuple(failed), tuple(problems), freed + removal.freed_bytes)


def _write_record(trash: Directory, versions: Sequence[Version], *, keep: bool) -> None:
    record = {
        "schema": RECORD_SCHEMA,
        "time": time.time(),
        "keep": keep,
        "versions": [v.version for v in versions],
        "names": [os.path.basename(v.path) for v in versions],
    }
    trash.replace(RECORD, json.dumps(record).encode())


def _is_absent(root: Directory, version: int) -> bool:
    """Say whether there is no version of a number: each of its names is looked up, and only a missing one is absent."""
    return all(root.is_gone(name) for name in version_names(version))


def _move_all(
    root: Directory, trash: Directory, versions: Iterable[Version], before: Before
) -> tuple[list[Version], list[tuple[Version, EdlCkptError]]]:
    """Move versions into the trash; return those that moved, and why others could not. One does not stop the next."""
    moved: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        name = os.path.basename(version.path)
        before(version)
        try:
            if _move(root, name, trash, name):
                moved.append(version)
        except UnsupportedError as error:
            hint = "delete it without --trash"
            failed.append((version, UnsupportedError(error.message, path=version.path, hint=hint)))
        except EdlCkptError as error:
            failed.append((version, type(error)(error.message, path=version.path, hint=error.hint)))
    return moved, failed


def _move(directory: Directory, name: str, to: Directory, new: str) -> bool:
    """Rename into the trash, or in it; False when another process was faster."""
    try:
        directory.rename(name, to, new)
    except NotFoundError:
        if not directory.is_gone(name):
            raise
        return False
    except EdlCkptError:  # a file server may report an error for what it did
        if not directory.is_gone(name) or to.is_gone(new):
            raise
    return True


def _remove_in_place(root: Directory, versions: Iterable[Version]) -> Removal:
    """Delete versions that cannot be renamed, as on a lower layer of overlayfs: file by file, in the safe order.

    As on storage without rename, the first removal makes the version invalid for ElasticDL. A killed deletion leaves an
    incomplete version, which `prune --incomplete` removes.
    """
    deleted: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        name = os.path.basename(version.path)
        try:
            if version.layout is SINGLE_FILE:
                root.unlink(name)
            else:
                first, rest = safe_order(version)
                with root.enter(name) as inside:
                    for path in (*first, *rest):
                        inside.unlink(os.path.basename(path))
                root.remove_empty(name)
        except EdlCkptError as error:
            failed.append((version, error))
        else:
            deleted.append(version)
    if deleted:
        root.flush()
    return Removal(tuple(deleted), tuple(failed), (), sum(v.own_bytes for v in deleted))


def _copy_metadata(root: Directory, trash: Directory, numbers: Iterable[int]) -> None:
    """Copy the metadata files that exist into a directory of the trash; a seal that is no file stays where it is."""
    source = root.find(META_DIR)
    if source is None:
        return
    with source:
        names = [name for number in numbers for name in _metadata_names(number)]
        found = {n: source.read(n, SMALL_BYTES) for n in names if source.is_file(n) or not n.endswith(_SEAL)}
    present = {name: data for name, data in found.items() if data is not None}
    if present:
        with trash.enter(_META, make=True) as target:
            for name, data in present.items():
                target.write_new(name, data)
            target.flush()


def _forget(directory: Directory, folder: str, numbers: Iterable[int]) -> list[EdlCkptError]:
    """Remove the metadata of versions in a folder of a directory; return why some could not be removed."""
    problems: list[EdlCkptError] = []
    try:
        meta = directory.find(folder)
        if meta is not None:
            with meta:
                for name in (name for number in numbers for name in _metadata_names(number)):
                    if meta.is_file(name):
                        meta.unlink(name)
    except EdlCkptError as error:  # the versions are gone: the next prune forgets the rest
        problems.append(error)
    return problems


def _metadata_names(number: int) -> tuple[str, str]:
    return os.path.basename(version_file(number)), os.path.basename(seal_file(number))


@contextmanager
def _entries(root: Directory) -> Iterator[Directory | None]:
    """Open the trash of a location, None when there is none."""
    top = root.find(TRASH_DIR)
    try:
        yield top
    finally:
        if top is not None:
            top.close()


def list_trash(location: LocationLike) -> list[TrashEntry]:
    """Return the deletions in a location's trash, the newest first. Only local storage has a trash.

    What is no directory there is none of ours, and is left out.
    """
    store = open_store(location)
    if not isinstance(store, LocalStore) or is_gone(store.root):
        return []
    with Directory.open(store.root) as root, _entries(root) as top:
        if top is None:
            return []
        entries = [_read_entry(top, name) for name in top.names() if not name.startswith(_DROP)]
    return sorted((e for e in entries if e is not None), key=lambda entry: (entry.time, entry.path), reverse=True)


def _read_entry(top: Directory, name: str) -> TrashEntry | None:
    if not top.is_directory(name):
        return None
    with top.enter(name) as inside:
        record, damage = _read_record(inside)
        present = [each for each in inside.names() if not _is_ours(each)]
        recorded = record.get("time")
        modified = os.fstat(inside.fd).st_mtime
        return TrashEntry(
            os.path.join(top.path, name),
            float(recorded) if isinstance(recorded, int | float) and 0 <= recorded < _LAST_MOMENT else modified,
            bool(record.get("keep", True)),  # `reshard --keep-old` writes no record
            tuple(present),
            _tree_bytes(inside.fd),
            tuple(each for each in present if _is_recorded(each, record)),
            _recorded_metadata(inside, record),
            damage if damage is not None and is_unread(damage) else None,
        )


def _recorded_metadata(inside: Directory, record: dict[str, Any]) -> tuple[str, ...]:
    numbers = record.get("versions")
    if not isinstance(numbers, list) or not inside.is_directory(_META):
        return ()
    names = {name for number in numbers if isinstance(number, int) for name in _metadata_names(number)}
    with inside.enter(_META) as meta:
        return tuple(name for name in meta.names() if name in names and meta.is_file(name))


def _is_recorded(name: str, record: dict[str, Any]) -> bool:
    """Say whether a record names this version; older records have the numbers only."""
    number, names = _number_of(name), record.get("names")
    listed = isinstance(record.get("versions"), list) and number is not None and number in record["versions"]
    return listed and (names is None or (isinstance(names, list) and name in names))


def _number_of(name: str) -> int | None:
    """Return the number of a version by the name of its directory or file."""
    parsed = parse_version_dir(name)
    return parsed[1] if parsed else parse_single_file(name)


def last_deletion(location: Location, number: int | None = None) -> TrashEntry:
    """Return what `put_back` would put back: the last deletion, or of the last one that has a version only that.

    Raises NotFoundError when there is none, and the error of reading a newer record: an older deletion is not the last.
    """
    known: set[int] = set()
    for entry in list_trash(location):
        if entry.fault is not None:
            raise entry.fault
        if number is None and entry.numbers:
            return entry
        if number in entry.numbers:
            return entry.part(number)
        known |= entry.numbers
    if number is None or not known:
        hint = "undo restores only versions that `prune --trash` deleted"
        raise NotFoundError("nothing to undo", path=location.url, hint=hint)
    near = ", ".join(map(str, neighbours(number, known, 8)))
    raise NotFoundError(f"no version {number} in the trash", path=location.url, hint=f"versions there: {near}")


def put_back(store: LocalStore, reporter: Reporter, number: int | None = None) -> tuple[str, ...]:
    """Put the versions of the last deletion in the trash back, with their metadata; return their names.

    With `number` only that version is put back, from the last deletion that has it. Only what the record names is put
    back. What else is in the entry stays there, with a warning. The caller holds the location's lock. Raises
    NotFoundError when there is nothing to put back, and RefusedError, before anything moves, when a version of such a
    name exists again.
    """
    location = store.location
    entry = last_deletion(location, number)
    name = os.path.basename(entry.path)
    with Directory.open(store.root) as root:
        with root.enter(f"{TRASH_DIR}/{name}") as trash:
            _restore(root, trash, entry, location)
            record, _ = _read_record(trash)
            others = [each for each in trash.names() if not _is_ours(each)]
            unnamed = [each for each in others if not _is_recorded(each, record)]
            is_done = not others and not _recorded_metadata(trash, record)
        if unnamed:
            reporter.warn(f"{entry.path}: the record does not name {', '.join(unnamed[:3])}; left in the trash")
        problems = _drop(root, name) if is_done else []
        remove_empty_state(root)
    for problem in problems:
        reporter.warn(str(problem))
    return entry.recorded


def _restore(root: Directory, trash: Directory, entry: TrashEntry, location: Location) -> None:
    """Move the versions that a record names, and their metadata, out of the trash."""
    taken = [name for name in entry.recorded if root.stat(name) is not None]
    if taken:
        raise RefusedError(
            f"{taken[0]} exists again; nothing was restored",
            path=location.url,
            hint=f"move it away and try again; the deleted version is in {entry.path}",
        )
    for name in entry.recorded:
        trash.rename_new(name, root, name)
    if entry.metadata:
        with trash.enter(_META) as meta, root.enter(META_DIR, make=True) as target:
            for name in entry.metadata:
                if target.stat(name) is None:
                    meta.rename(name, target, name)
                else:
                    meta.unlink(name)
            target.flush()
    trash.flush()
    root.flush()


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
        store = open_store(location)
        if isinstance(store, LocalStore):
            for entry in list_trash(location):
                if entry.fault is not None:
                    problems.append(entry.fault)
                elif now - entry.time >= older_than_seconds:
                    with Directory.open(store.root) as root:
                        failed = _drop(root, os.path.basename(entry.path))
                    problems += failed
                    freed += 0 if failed else entry.size_bytes
        problems += sweep(store)
    return Purge(freed, tuple(problems))


def sweep(store: LocalStore | ObjectStore) -> tuple[EdlCkptError, ...]:
    """Finish deletions that were killed, except those that stay in the trash. The caller holds the lock."""
    if not isinstance(store, LocalStore):
        return ()
    problems: list[EdlCkptError] = []
    with Directory.open(store.root) as root:
        with _entries(root) as top:
            doomed = [] if top is None else [name for name in top.names() if _is_doomed(top, name)]
        for name in doomed:
            problems += _drop(root, name)
        if top is not None:
            remove_empty_state(root)
    return tuple(problems)


def _is_doomed(top: Directory, name: str) -> bool:
    """Say whether an entry of the trash is to be removed now."""
    if not top.is_directory(name):
        return False
    if name.startswith(_DROP):
        return True
    with top.enter(name) as inside:
        record, damage = _read_record(inside)
        return damage is None and (not record.get("keep", True) or not _has_content(inside))


def damaged_records(top: Directory) -> Iterator[tuple[str, str]]:
    """Yield the entries of an open trash whose records are damaged, and why; not those that cannot be read now."""
    for name in top.names():
        if not name.startswith(_DROP) and top.is_directory(name):
            with top.enter(name) as inside:
                damage = _read_record(inside)[1]
            if damage is not None and not is_unread(damage):
                yield name, damage.message


def forget_gone(location: Location, present: Iterable[int]) -> list[EdlCkptError]:
    """Remove the metadata of gone versions: a restarted job may use their numbers. The caller holds the lock.

    Returns why some could not be removed, which the next prune tries again.

    `present` are the numbers in a listing. On a local disk each name of another number is looked up as well, and only
    what has no name is gone. Storage whose listings may lack something keeps all metadata.
    """
    store = open_store(location)
    if not store.properties.whole_listings:
        return []
    listed = set(present)
    try:
        owners = {name: metadata_owner(name) for name in store.names(META_DIR)}
        gone = {name: number for name, number in owners.items() if number is not None and number not in listed}
        if gone and isinstance(store, LocalStore):
            with Directory.open(store.root) as root:
                problems = _forget(root, META_DIR, {n for n in gone.values() if _is_absent(root, n)})
                remove_empty_state(root)
            return problems
        for name in gone:
            prove_lock(location)
            store.remove(f"{META_DIR}/{name}")
    except ForeignError:  # the directory of the metadata is none of ours, of which the listing warns
        return []
    except EdlCkptError as error:
        return [error]
    return []


def _doomed(name: str) -> str:
    """Return the name of a directory of the trash while it is being removed."""
    return name if name.startswith(_DROP) else _DROP + name


def _drop(root: Directory, name: str) -> list[EdlCkptError]:
    """Remove a directory of the trash; return why files could not be removed."""
    problems: list[EdlCkptError] = []
    with _entries(root) as top:
        if top is not None:
            if _doomed(name) != name:
                try:
                    _move(top, name, top, _doomed(name))
                except EdlCkptError as error:
                    return [error]
            top.remove(_doomed(name), problems.append)
    return problems


def _left_of(root: Directory, name: str) -> set[str]:
    """Return what is left in a directory of the trash that was removed."""
    left: set[str] = set()
    with _entries(root) as top:
        for each in (name, _doomed(name)) if top is not None else ():
            inside = top.find(each) if top is not None else None
            if inside is not None:
                with inside:
                    left |= set(inside.names())
    return left


def _is_ours(name: str) -> bool:
    """Say whether a name in an entry is not that of a version: the record, or a record that was being written."""
    return name in {RECORD, _META} or (name.startswith(f".{RECORD}.") and name.endswith(NEW))


def _has_content(inside: Directory) -> bool:
    for name in inside.names():
        if name == _META and inside.is_directory(name):
            with inside.enter(name) as meta:
                if meta.names():
                    return True
        elif not _is_ours(name):
            return True
    return False


def _read_record(inside: Directory) -> tuple[dict[str, Any], EdlCkptError | None]:
    """Return the record of an entry, {} when it has none, and why it cannot be read or used."""
    try:
        data = inside.read(RECORD, MAX_BYTES)
        return (parse_document(data, inside.join(RECORD)) if data else {}), None
    except EdlCkptError as error:
        return {}, error


def _tree_bytes(directory: int) -> int:
    """Return the bytes of all files in an open directory; a file that is removed meanwhile counts as nothing."""
    total = 0
    with suppress(OSError):
        for top, _, names, fd in os.fwalk(dir_fd=directory, topdown=True):
            if top.count("/") > _MAX_DEPTH:
                break
            for name in names:
                with suppress(OSError):
                    total += os.stat(name, dir_fd=fd, follow_symlinks=False).st_size
    return total
