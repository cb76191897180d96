"""Deleting versions so that it can be undone: one rename into the trash, then removal there.

`.edl-ckpt-0/trash-0/<id>/` has, for one deletion, `record.json` (time, versions, whether they stay), the versions under
their own names, and their metadata in `meta/`. One rename moves a version, so a crash at any instant leaves it whole in
its place or whole in the trash. Before bytes are removed, `<id>` is renamed to `drop-<id>`, which `undo` never puts
back. Storage without rename (S3) has no trash (`removal.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError, NoSpaceError, NotFoundError, RefusedError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.commit.deletion.loose import Marks, finish_moves, marks_of, move_back, move_out, recorded_marks
from edl_ckpt.core.commit.deletion.records import (
    DROP,
    META,
    TrashEntry,
    has_content,
    is_record,
    is_recorded,
    is_several,
    kept_name,
    last_deletion,
    list_trash,
    metadata_names,
    read_record,
    recorded_metadata,
    write_record,
)
from edl_ckpt.core.commit.deletion.removal import After, Before, Check, Removal, safe_order
from edl_ckpt.core.commit.publish.disk import put_replaced_back
from edl_ckpt.core.commit.publish.staging import remove_empty_state
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.registry import number_named, version_names
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import META_DIR, TRASH_DIR
from edl_ckpt.core.storage import LocalStore, Location
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import SMALL_BYTES
from edl_ckpt.core.storage.tree import Kind
from edl_ckpt.core.storage.walk import local_tree

_SEAL: Final = ".seal.json"


class Trash:
    """Deletes the versions of a location on a disk, and puts them back; the caller holds its lock."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def delete(
        self,
        versions: Sequence[Version],
        *,
        keep: bool = False,
        look: Before = lambda _: None,
        look_after: After = lambda _, __: None,
        known: Known | None = None,  # noqa: ARG002 - for storage where metadata is not looked up by name
    ) -> Removal:
        """Delete versions, or with `keep` leave them in the trash.

        `look` is called right before each version is deleted, and `look_after` right after its directory was moved into
        the trash; each raises an error when the version must stay. A version that is gone already is no error; the
        result does not name it.
        """
        if not versions:
            return Removal()

        def before(version: Version) -> None:
            look(version)
            prove_lock(self._store.location)

        with Directory.open(self._store.root) as root:
            full = Removal()
            entry, waiting = new_id(), list(versions)
            while waiting:
                try:
                    files = _make_entry(root, entry, waiting, keep=keep)
                except NoSpaceError as error:
                    if keep:
                        raise _trash_is_full(error) from None
                    # The entry needs a block or two: usually one version makes the room for all others.
                    full = full.joined(_remove_here(root, waiting.pop(0), before))
                else:
                    full = full.joined(
                        self._move_and_remove(root, entry, waiting, (before, look_after), files, keep=keep)
                    )
                    break
            remove_empty_state(root)
        return full

    def _move_and_remove(
        self,
        root: Directory,
        entry: str,
        versions: Sequence[Version],
        looks: tuple[Before, After],
        files: Mapping[str, Marks],
        *,
        keep: bool,
    ) -> Removal:
        """Move versions into an entry of the trash, and remove them there unless they are to stay in it."""
        numbers = [v.version for v in versions]
        with root.enter(f"{TRASH_DIR}/{entry}") as trash:
            if keep:  # first: once a version is gone, the next prune removes its metadata
                _copy_metadata(root, trash, numbers)
            moved, failed = _move_all(root, trash, versions, looks, files)
            trash.flush()
            root.flush()
            # the metadata of a version that stays is not in the trash
            problems = _forget(trash, META, [v.version for v, _ in failed]) if keep else []
        in_place = [] if keep else [version for version, error in failed if isinstance(error, UnsupportedError)]
        removal = _remove_in_place(root, in_place)
        failed = [(v, e) for v, e in failed if v not in in_place] + list(removal.failed)
        deleted = (*moved, *removal.deleted)
        # Another version may have the same number, spelled otherwise; they share their metadata.
        problems += _forget(root, META_DIR, _absent(root, [v.version for v in deleted]))
        problems += [] if keep and moved else _drop(root, entry)
        with root.find(f"{TRASH_DIR}/{entry}") as kept, root.find(f"{TRASH_DIR}/{_doomed(entry)}") as doomed:
            left = {*kept.names(), *doomed.names()}
        freed = 0 if keep else sum(v.own_bytes for v in moved if kept_name(v) not in left)
        return Removal(deleted, tuple(failed), tuple(problems), freed + removal.freed_bytes)

    def remove_shard(self, version: Version, path: str | None) -> list[str]:
        """Remove a shard, and its directory when it is empty; return the paths that were removed. Neither need exist.

        None stands for a version whose directory is empty.
        """
        removed = list[str]()
        if path is not None:
            with suppress(NotFoundError), storage_errors(path):
                os.unlink(path)
                removed.append(path)
        with suppress(EdlCkptError), storage_errors(version.path):  # it may have shards of other servers
            os.rmdir(version.path)
            removed.append(version.path)
        return removed

    def put_back(self, number: int | None, check: Check, reporter: Reporter) -> tuple[str, ...]:
        """Put the versions of the last deletion back, or only that of a number, with metadata; return their names.

        A version that was replaced changes places with the one that took its place: that is in the trash then. Only
        what the record names is put back. What else is in the entry stays there, with a warning. Raises RefusedError,
        before anything moves, when a version of such a name exists again, and what `check` raises; errors of the search
        as `last_deletion`.
        """
        store, entry = self._store, last_deletion(self._store, number)
        check(entry)
        name = os.path.basename(entry.path)
        with Directory.open(store.root) as root:
            with root.enter(f"{TRASH_DIR}/{name}") as trash:
                if entry.replaced is not None and root.is_directory(entry.recorded[0]):
                    put_replaced_back(store, entry.recorded[0], entry.replaced, name)
                else:
                    _restore(root, trash, entry, store.location)
                record, _ = read_record(trash)
                others = [each for each in trash.names() if not is_record(each)]
                unnamed = [each for each in others if not is_recorded(each, record)]
                is_done = not others and not recorded_metadata(trash, record)
            if unnamed:
                reporter.warn(f"{entry.path}: the record does not name {', '.join(unnamed[:3])}; left in the trash")
            with COMMIT:
                problems = _drop(root, name) if is_done else []
            remove_empty_state(root)
        for problem in problems:
            reporter.warn(str(problem))
        return entry.recorded

    def empty(self, *, now: float, older_than_seconds: float = 0.0) -> Removal:
        """Remove versions that have been in the trash for so long; this includes old shards of `reshard --keep-old`."""
        freed = 0
        problems: list[EdlCkptError] = []
        for entry in list_trash(self._store.root):
            if entry.fault is not None:
                problems.append(entry.fault)
            elif now - entry.time >= older_than_seconds:
                with Directory.open(self._store.root) as root:
                    failed = _drop(root, os.path.basename(entry.path))
                problems += failed
                freed += 0 if failed else entry.size_bytes
        return Removal(problems=(*problems, *self.sweep()), freed_bytes=freed)

    def sweep(self) -> tuple[EdlCkptError, ...]:
        """Finish deletions that were killed, except those that stay in the trash; return what failed."""
        problems: list[EdlCkptError] = []
        with Directory.open(self._store.root) as root:
            with root.find(TRASH_DIR) as top:
                doomed = [name for name in top.names() if _is_doomed(root, top, name)]
            for name in doomed:
                problems += _drop(root, name)
            remove_empty_state(root)
        return tuple(problems)

    def forget(self, gone: Mapping[str, int]) -> list[EdlCkptError]:
        """Remove files of metadata, given with their versions; each name of a version is looked up once more."""
        with Directory.open(self._store.root) as root:
            problems = _forget(root, META_DIR, _absent(root, gone.values()))
            remove_empty_state(root)
        return problems


def _absent(root: Directory, versions: Iterable[int]) -> set[int]:
    """Return the numbers that no version has; none where the location cannot be listed.

    Each of ElasticDL's names is looked up, and only a missing one is absent. A listing has the names of other systems.
    """
    with suppress(EdlCkptError):
        listed = set(map(number_named, root.names()))
        return {number for number in versions if number not in listed and all(map(root.is_gone, version_names(number)))}
    return set()


def _move_all(
    root: Directory,
    trash: Directory,
    versions: Iterable[Version],
    looks: tuple[Before, After],
    files: Mapping[str, Marks],
) -> tuple[list[Version], list[tuple[Version, EdlCkptError]]]:
    """Move versions into the trash; return those that moved, and why others could not. One does not stop the next."""
    moved: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        name = kept_name(version)
        COMMIT.more()  # between two versions a signal ends the prune
        before, after = looks
        before(version)
        try:
            with COMMIT:
                if name in files:
                    is_ours = _move_files(root, trash, name, files[name])
                else:
                    is_ours = _move(root, name, trash, name)
                    if is_ours:
                        _look_after(root, trash, version, name, after)
            if is_ours:
                moved.append(version)
        except UnsupportedError as error:
            hint = "delete it without --trash"
            failed.append((version, UnsupportedError(error.message, path=version.path, hint=hint)))
        except EdlCkptError as error:
            failed.append((version, type(error)(error.message, path=version.path, hint=error.hint)))
    return moved, failed


def _look_after(root: Directory, trash: Directory, version: Version, name: str, after: After) -> None:
    """Look at what was moved into the trash; what must stay goes back, or into an entry of its own that stays.

    Between a look at a place and a rename, a job may write there. What has no place any more, it does not find.
    """
    try:
        if trash.is_directory(name):
            with trash.enter(name) as inside:
                after(version, local_tree(inside))
    except EdlCkptError as error:
        try:
            trash.rename_new(name, root, name)
        except RefusedError:  # a job has made a directory of this name meanwhile
            kept = f"{TRASH_DIR}/{new_id()}"
            with root.enter(kept, make=True) as other:
                write_record(other, [version.version], [name])
                trash.rename(name, other, name)
            raise RefusedError(
                f"{error.message}, and another directory has its name; its files are in {root.join(kept)}",
                path=error.path,
            ) from error
        raise


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


def _move_files(root: Directory, trash: Directory, name: str, marks: Marks) -> bool:
    """Move the loose files of a version into the trash; after an error, they go back where that is possible."""
    try:
        return move_out(root, trash, name, list(marks))
    except EdlCkptError:
        with suppress(EdlCkptError):
            move_back(trash, root, name, list(marks))
        raise


def _make_entry(root: Directory, entry: str, versions: Sequence[Version], *, keep: bool) -> Mapping[str, Marks]:
    """Make the entry of a deletion with its record; return the files of versions that are not one directory.

    Raises NoSpaceError when the disk has no room for it; then nothing of it stays.
    """
    files = {kept_name(v): marks_of(root, v.names_inside) for v in versions if is_several(v)}
    try:
        with root.enter(f"{TRASH_DIR}/{entry}", make=True) as trash:
            write_record(trash, [v.version for v in versions], list(map(kept_name, versions)), keep=keep, files=files)
    except NoSpaceError:
        with suppress(EdlCkptError), root.find(TRASH_DIR) as top:
            top.remove(entry)
        raise
    return files


def _trash_is_full(error: NoSpaceError) -> NoSpaceError:
    """Return the error of a deletion that is to stay in the trash, which frees no space."""
    return NoSpaceError(
        f"{error.message}; versions in the trash keep their space",
        path=error.path,
        hint="delete them for good, without --trash: that needs no room",
    )


def _remove_here(root: Directory, version: Version, before: Before) -> Removal:
    """Delete a version where it is, with its metadata."""
    COMMIT.more()
    before(version)
    removal = _remove_in_place(root, [version])
    problems = _forget(root, META_DIR, _absent(root, [v.version for v in removal.deleted]))
    return replace(removal, problems=(*removal.problems, *problems))


def _remove_in_place(root: Directory, versions: Iterable[Version]) -> Removal:
    """Delete versions that cannot be renamed, as on a lower layer of overlayfs: file by file, in the safe order.

    As on storage without rename, the first removal makes the version invalid for ElasticDL. A killed deletion leaves an
    incomplete version, which `prune --incomplete` removes.
    """
    deleted: list[Version] = []
    failed: list[tuple[Version, EdlCkptError]] = []
    for version in versions:
        name = os.path.basename(version.path)
        COMMIT.more()
        try:
            with COMMIT:
                first, rest = safe_order(version)
                folders = [] if version.is_file else _folders_in(root, name)
                for path in (*first, *rest):
                    relative = version.name_of(path)
                    with root.above(relative if version.is_file else f"{name}/{relative}") as (inside, last):
                        inside.unlink(last)
                if not version.is_file:
                    _remove_empty(root, name, folders)
        except EdlCkptError as error:
            failed.append((version, error))
        else:
            deleted.append(version)
    if deleted:
        root.flush()
    return Removal(tuple(deleted), tuple(failed), (), sum(v.own_bytes for v in deleted))


def _folders_in(root: Directory, name: str) -> list[str]:
    """Return the directories in that of a version, each before those in it."""
    with root.enter(name) as inside:
        return [path for path, entry in local_tree(inside).items() if entry.kind is Kind.DIRECTORY]


def _remove_empty(root: Directory, name: str, folders: Sequence[str]) -> None:
    """Remove the directory of a version, and those that were in it; each must be empty by now."""
    with root.enter(name) as inside:
        for folder in sorted(folders, reverse=True):
            with inside.above(folder) as (parent, last):
                parent.remove_empty(last)
    root.remove_empty(name)


def _copy_metadata(root: Directory, trash: Directory, numbers: Iterable[int]) -> None:
    """Copy the metadata files that exist into a directory of the trash; a seal that is no file stays where it is."""
    with root.find(META_DIR) as source:
        names = [name for number in numbers for name in metadata_names(number)]
        found = {n: source.read(n, SMALL_BYTES) for n in names if source.is_file(n) or not n.endswith(_SEAL)}
    present = {name: data for name, data in found.items() if data is not None}
    if present:
        with trash.enter(META, make=True) as target:
            for name, data in present.items():
                target.write_new(name, data)
            target.flush()


def _forget(directory: Directory, folder: str, numbers: Iterable[int]) -> list[EdlCkptError]:
    """Remove the metadata of versions in a folder of a directory; return why some could not be removed."""
    try:
        with directory.find(folder) as meta:
            for name in (name for number in numbers for name in metadata_names(number)):
                if meta.is_file(name):
                    meta.unlink(name)
    except EdlCkptError as error:  # the versions are gone: the next prune forgets the rest
        return [error]
    return []


def _restore(root: Directory, trash: Directory, entry: TrashEntry, location: Location) -> None:
    """Move the versions that a record names, and their metadata, out of the trash."""
    marks = recorded_marks(read_record(trash)[0])
    taken = [name for name in entry.recorded if name not in marks and root.stat(name) is not None]
    for name in marks.keys() & {*entry.recorded}:
        with trash.enter(name) as inside:  # an interrupted undo has put some of them back
            taken += [one for one in marks[name] if inside.stat(one) and root.stat(one)]
    if taken:
        raise RefusedError(
            f"{taken[0]} exists again; nothing was restored",
            path=location.url,
            hint=f"move it away and try again; the deleted version is in {entry.path}",
        )
    with COMMIT:
        for name in entry.recorded:
            if name in marks:
                move_back(trash, root, name, list(marks[name]))
            else:
                trash.rename_new(name, root, name)
        if entry.metadata:
            with trash.enter(META) as meta, root.enter(META_DIR, make=True) as target:
                for name in entry.metadata:
                    is_stale = name.endswith(_SEAL) and target.is_file(name)  # of files that are gone
                    if is_stale or target.stat(name) is None:
                        meta.rename(name, target, name)
                    else:
                        meta.unlink(name)
                target.flush()
        trash.flush()
        root.flush()


def _is_doomed(root: Directory, top: Directory, name: str) -> bool:
    """Say whether an entry of the trash is to be removed now; the rest of what was moved into it goes there first."""
    if not top.is_directory(name):
        return False
    if name.startswith(DROP):
        return True
    with top.enter(name) as inside:
        record, damage = read_record(inside)
        finish_moves(root, inside, record)
        return damage is None and (not record.get("keep", True) or not has_content(inside))


def _doomed(name: str) -> str:
    """Return the name of a directory of the trash while it is being removed."""
    return name if name.startswith(DROP) else DROP + name


def _drop(root: Directory, name: str) -> list[EdlCkptError]:
    """Remove a directory of the trash; return why files could not be removed."""
    problems: list[EdlCkptError] = []
    with root.find(TRASH_DIR) as top:
        if not top.names():
            return []
        if _doomed(name) != name:
            try:
                _move(top, name, top, _doomed(name))
            except EdlCkptError as error:
                return [error]
        _drop_each(top, _doomed(name))
        with COMMIT:
            top.remove(_doomed(name), problems.append)
    return problems


def _drop_each(top: Directory, name: str) -> None:
    """Remove versions that are on their way out, one by one: between two of them a signal ends the prune."""
    with suppress(EdlCkptError):  # the removal of the whole says why it cannot
        if top.is_directory(name):
            with top.enter(name) as inside:
                for each in inside.names():
                    COMMIT.more()
                    with COMMIT:
                        inside.remove(each)
