"""The removal of versions file by file, where they cannot be renamed, so that no remainder looks whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.progress import Reporter
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.commit.deletion.records import TrashEntry
from edl_ckpt.core.commit.journal import Journal, deletions_bytes
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.sources.registry import completes, number_named, version_names
from edl_ckpt.core.state.holder import LostLockError
from edl_ckpt.core.state.index import Known, content_digest, marked_files
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.state.paths import JOURNAL, META_DIR, STAGE_DIR, metadata_owner, seal_file, version_file
from edl_ckpt.core.state.signature import describe
from edl_ckpt.core.storage import Location, ObjectStore
from edl_ckpt.core.storage.inside import is_inside
from edl_ckpt.core.storage.interface import lists_marks
from edl_ckpt.core.storage.tree import Tree

_TOGETHER: Final = 1000
"""Versions that are deleted together; if the process is stopped, the next one finishes the deletion of all of them."""
_SETTLED_TOGETHER: Final = 128
"""Versions that are looked at together before their deletion is finished: a look is older the more there are."""
Before: TypeAlias = Callable[[Version], None]
"""Called right before a version is deleted; an error that it raises ends the deletion."""
After: TypeAlias = Callable[[Version, Tree], None]
"""Called with what a directory has that was moved out of its place; an error that it raises moves it back."""
Check: TypeAlias = Callable[[TrashEntry], None]
"""Called before a deletion is put back; raises the error for what must stay in the trash."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a deletion: the versions that are gone, those that could not be deleted, and what they left.

    That of emptying the trash names no versions.
    """

    deleted: tuple[Version, ...] = ()
    failed: tuple[tuple[Version, EdlCkptError], ...] = ()
    problems: tuple[EdlCkptError, ...] = ()
    """Why files of deleted versions could not be removed."""
    freed_bytes: int = 0

    def joined(self, later: Removal) -> Removal:
        """Return what this deletion and a later one did together."""
        return Removal(
            (*self.deleted, *later.deleted),
            (*self.failed, *later.failed),
            (*self.problems, *later.problems),
            self.freed_bytes + later.freed_bytes,
        )


def safe_order(version: Version) -> tuple[list[str], list[str]]:
    """Return the files of a version as (first, rest): after the first no remainder passes for a whole version."""
    every = [file.path for file in version.files] + list(map(version.path_of, version.extra))
    firsts = {shard.ps_num: shard.path for shard in reversed(version.shards)}
    first = [path for path in every if not version.has_only_shards and completes(version.name_of(path))]
    first = first or list(firsts.values())
    return first, [path for path in every if path not in first]


@dataclass(slots=True)
class _Doomed:
    """A version on its way out: its files in their order, below the location, and what went wrong."""

    number: int
    directory: str
    first: Sequence[str]
    rest: Sequence[str]
    loose: bool = False
    folders: Sequence[str] = ()
    """Its empty directories."""
    error: EdlCkptError | None = None

    @property
    def intent(self) -> Journal:
        """Return what it deletes; one that is a file itself needs no names."""
        files = [path for path in (*self.first, *self.rest) if path != self.directory]
        names = tuple(path if self.loose else path.removeprefix(f"{self.directory}/") for path in files)
        names = tuple(filter(is_inside, names))  # keys may be any texts; with others the journal would be damaged
        return Journal(self.number, self.directory, deletes=names, loose=self.loose)


class NoTrash:
    """Deletes the versions of a location without rename, for good; the caller holds its lock.

    Files are removed one by one, and the first removal already makes a version invalid for ElasticDL.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def delete(
        self,
        versions: Sequence[Version],
        *,
        keep: bool = False,
        look: Before = lambda _: None,
        look_after: After = lambda _, __: None,  # noqa: ARG002 - nothing is moved
        known: Known | None = None,
    ) -> Removal:
        """Delete versions, a shard of each ps_num first; metadata in `known` is not read again.

        Many versions go together, since each request takes long, and the lock is proved once for them. A journal names
        the versions that are being deleted. If this process is stopped on the way, the next one that takes the lock
        finishes the deletion: a version that may lose its files at any moment is never kept, tagged or listed.

        `look` is called right before each version is deleted, and raises an error when it must stay. Raises
        UnsupportedError for `keep`, before anything changes.
        """
        if keep and versions:
            raise no_trash(self._store.location)
        done: list[_Doomed] = []
        for start in range(0, len(versions), _TOGETHER):
            COMMIT.more()
            together = versions[start : start + _TOGETHER]
            for version in together:
                look(version)
            batch = [_doom(self._store, version) for version in together]
            _remove_batch(self._store, batch, known or Known())
            done += batch
        pairs = list(zip(versions, done, strict=True))
        deleted = tuple(version for version, doomed in pairs if doomed.error is None)
        failed = tuple((version, doomed.error) for version, doomed in pairs if doomed.error is not None)
        return Removal(deleted, failed, (), sum(v.own_bytes for v in deleted))

    def remove_shard(self, version: Version, path: str | None) -> list[str]:
        """Remove a shard, and its directory where there are directories; return the paths that were removed."""
        if path is None:
            return []
        directory = base_name(version.path)
        self._store.remove(f"{directory}/{base_name(path)}")
        self._store.remove_directory(directory)
        return [path]

    def put_back(self, number: int | None, check: Check, reporter: Reporter) -> tuple[str, ...]:  # noqa: ARG002
        """Raise UnsupportedError: nothing is kept."""
        raise no_trash(self._store.location)

    def empty(self, *, now: float, older_than_seconds: float = 0.0) -> Removal:  # noqa: ARG002
        """Remove nothing: there is no trash."""
        return Removal()

    def sweep(self) -> tuple[EdlCkptError, ...]:
        """Do nothing: a deletion that was killed has a journal (`settle_deletions`)."""
        return ()

    def forget(self, gone: Mapping[str, int]) -> list[EdlCkptError]:
        """Remove files of metadata, given by their names."""
        for name in gone:
            prove_lock(self._store.location)
            self._store.remove(f"{META_DIR}/{name}")
        return []


def no_trash(location: Location) -> UnsupportedError:
    """Return the error for storage that can put nothing back."""
    return UnsupportedError("this storage has no rename, and so no trash", path=location.url)


def _doom(store: ObjectStore, version: Version) -> _Doomed:
    top = store.path("")

    def relative(paths: Iterable[str]) -> list[str]:
        return [path.removeprefix(top) for path in paths]

    first, rest = safe_order(version)
    folders = relative(map(version.path_of, version.empty_folders))
    directory = version.path.removeprefix(top)
    return _Doomed(version.version, directory, relative(first), relative(rest), version.is_file, folders)


def _remove_batch(store: ObjectStore, batch: Sequence[_Doomed], known: Known) -> None:
    """Delete versions; each gets the error that stopped its deletion. LostLockError without the lock."""
    has_begun = False
    journal = f"{STAGE_DIR}/{new_id()}/{JOURNAL}"
    try:
        prove_lock(store.location)
        _write_intent(store, journal, batch, known)
        prove_lock(store.location)
        has_begun = True
        with COMMIT:  # a version without its first file is none, so the others go too
            _remove_files(store, batch)
            store.remove(journal)
    except LostLockError:
        if not has_begun:  # else the holder of the lock finishes the deletion
            store.remove(journal)
        raise


def _remove_files(store: ObjectStore, batch: Sequence[_Doomed]) -> None:
    """Remove the files and the metadata of versions, step by step, as long as nothing has gone wrong with them.

    The lock is proved after each step.
    """
    first_files: dict[str, _Doomed] = {}
    other_files: dict[str, _Doomed] = {}
    metadata: dict[str, _Doomed] = {}
    for doomed in batch:
        first_files |= dict.fromkeys(doomed.first, doomed)
        other_files |= dict.fromkeys(doomed.rest, doomed)
        metadata |= dict.fromkeys((version_file(doomed.number), seal_file(doomed.number)), doomed)
    _remove_each(store, first_files, list(first_files))
    prove_lock(store.location)
    _remove_each(store, other_files, list(other_files))
    prove_lock(store.location)
    of_removed = [path for path, doomed in metadata.items() if doomed.error is None]
    _remove_each(store, metadata, _not_shared(store, batch, of_removed))
    folders = _empty_folders([doomed for doomed in batch if doomed.error is None])
    if folders:
        store.remove_directories(folders)
    prove_lock(store.location)


def _remove_each(store: ObjectStore, owners: Mapping[str, _Doomed], paths: Iterable[str]) -> None:
    """Remove files of versions with which nothing has gone wrong; a version keeps the first error of its files."""
    wanted = [path for path in paths if owners[path].error is None]
    for path, error in store.remove_each(wanted).items():
        owners[path].error = owners[path].error or error


def _empty_folders(removed: Iterable[_Doomed]) -> set[str]:
    """Return the directories of removed versions, and those that their files were in."""
    folders: set[str] = set()
    for doomed in removed:
        paths = [*doomed.rest, *(f"{folder}/-" for folder in doomed.folders)]
        for path in paths:
            folders.update(map(str, PurePosixPath(path).parents))
        if not doomed.loose:
            folders.add(doomed.directory)
    return folders - {"."}


def _not_shared(store: ObjectStore, batch: Sequence[_Doomed], files: Sequence[str]) -> list[str]:
    """Return the files of metadata that no other directory with the same number needs, as `step_7` and `7`."""
    if all(doomed.directory in version_names(doomed.number) for doomed in batch):
        return list(files)
    numbers = set(map(number_named, store.names("")))
    return [path for path in files if metadata_owner(base_name(path)) not in numbers]


def _write_intent(store: ObjectStore, journal: str, batch: Sequence[_Doomed], known: Known) -> None:
    """Write the journal of a deletion; without it all versions that need it stay."""
    several = [doomed for doomed in batch if doomed.intent.deletes]  # one request deletes a single file
    if not several:
        return
    digests = _metadata_digests(store, [doomed.number for doomed in several], known)
    intents = [replace(doomed.intent, metadata=digests[doomed.number]) for doomed in several]
    try:
        store.write_small(journal, deletions_bytes(describe("prune"), intents))
    except EdlCkptError as error:
        for doomed in several:
            doomed.error = error


def _metadata_digests(store: ObjectStore, numbers: Iterable[int], known: Known) -> dict[int, str]:
    """Return the digest of the metadata of each version; what `known` has under the mark of now is not read again."""
    if lists_marks(store):
        marks = {name: entry.mark for name, entry in marked_files(store).items()}
    else:
        marks = dict.fromkeys(store.names(META_DIR), "")
    files = {number: base_name(version_file(number)) for number in numbers}
    found = {n: known.digest(file, marks[file]) if file in marks else content_digest(b"") for n, file in files.items()}
    unknown = [number for number, digest in found.items() if digest is None]
    workers = store.properties.at_a_time(REMOTE_WORKERS)
    read = run_parallel(lambda number: _metadata_digest(store, number), unknown, workers)
    return {n: digest for n, digest in found.items() if digest is not None} | dict(zip(unknown, read, strict=True))


def _metadata_digest(store: ObjectStore, version: int) -> str:
    return content_digest(store.read_small(version_file(version)) or b"")


def settle_deletions(store: ObjectStore, stage: str, journals: Sequence[Journal]) -> list[str]:
    """Finish a deletion that was stopped on the way; return what was done. The caller holds the lock.

    It is not finished for a version whose metadata changed since, or to which files were written: that stays as it is.
    """
    begun = store.ages(stage).get(JOURNAL, 0.0)
    done: list[str] = []
    for start in range(0, len(journals), _SETTLED_TOGETHER):
        done += _settle_some(store, journals[start : start + _SETTLED_TOGETHER], begun)
    prove_lock(store.location)
    store.remove(f"{stage}/{JOURNAL}")
    return done


def _settle_some(store: ObjectStore, journals: Sequence[Journal], begun: float) -> list[str]:
    """Finish the deletion of versions that are as they were when it began; `begun` is the age of the journal."""
    workers = store.properties.at_a_time(REMOTE_WORKERS)
    present = list(run_parallel(lambda journal: _doomed_files(store, journal, begun), journals, workers))
    going = [(each, names) for each, names in zip(journals, present, strict=True) if names is not None]
    files = [[each.path(name) for name in each.deletes if name in names] for each, names in going]
    batch = [_Doomed(j.version, j.directory, own[:1], own[1:]) for (j, _), own in zip(going, files, strict=True)]
    prove_lock(store.location)
    _remove_files(store, batch)
    for error in (doomed.error for doomed in batch if doomed.error is not None):
        raise error
    return [
        f"version {each.version} stays as it is: it changed after a prune began to delete it"
        if names is None
        else f"finished the deletion of version {each.version}"
        for each, names in zip(journals, present, strict=True)
    ]


def _ages(store: ObjectStore, journal: Journal) -> dict[str, float]:
    """Return the seconds since each file of a version was written, by its name in the version.

    What marks a directory is none of them.
    """
    start = len(journal.path(""))
    if not (journal.loose or any("/" in name for name in journal.deletes)):
        return {name: age for name, age in store.ages(journal.directory).items() if name and not name.endswith("/")}
    below = [path[start:] for path in store.tree(journal.directory)] if not journal.loose else []
    present = journal.deletes if journal.loose else [name for name in below if name and not name.endswith("/")]
    states = {name: store.stat(journal.path(name)) for name in present}
    return {name: state.age_seconds for name, state in states.items() if state is not None}


def _doomed_files(store: ObjectStore, journal: Journal, begun: float) -> set[str] | None:
    """Return the files that are left of a version; None when it changed since its deletion began."""
    ages = _ages(store, journal)
    is_same = set(ages) <= set(journal.deletes) and all(age >= begun for age in ages.values())
    # Its metadata goes last, so it may be gone already.
    if is_same and _metadata_digest(store, journal.version) in {journal.metadata, content_digest(b"")}:
        return set(ages)
    return None
