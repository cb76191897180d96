"""The removal of versions file by file, where they cannot be renamed, so that no remainder looks whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from edl_ckpt.core.commit.journal import Journal
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import SINGLE_FILE
from edl_ckpt.core.ids import new_id
from edl_ckpt.core.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.state.holder import LostLockError, prove_lock
from edl_ckpt.core.state.owner import describe
from edl_ckpt.core.state.paths import JOURNAL, META_DIR, STAGE_DIR, seal_file, version_file
from edl_ckpt.core.state.seal import base_name
from edl_ckpt.core.storage.interface import ObjectStore

_TOGETHER: Final = 256
"""Versions that are deleted together; if the process is stopped, the next one finishes the deletion of all of them."""
Before: TypeAlias = Callable[[Version], None]
"""Called right before a version is deleted; an error that it raises ends the deletion."""


@dataclass(frozen=True, slots=True)
class Removal:
    """The result of a deletion: the versions that are gone, those that could not be deleted, and what they left."""

    deleted: tuple[Version, ...]
    failed: tuple[tuple[Version, EdlCkptError], ...] = ()
    problems: tuple[EdlCkptError, ...] = ()
    """Why files of deleted versions could not be removed."""
    freed_bytes: int = 0


def safe_order(version: Version) -> tuple[list[str], list[str]]:
    """Return the files of a version as (first, rest): after the first no remainder passes for a whole version."""
    firsts = {shard.ps_num: shard for shard in reversed(version.shards)}
    first = [shard.path for shard in firsts.values()]
    rest = [shard.path for shard in version.shards if shard.path not in first]
    return first, rest + [f"{version.path}/{name}" for name in version.extra]


@dataclass(slots=True)
class _Doomed:
    """A version on its way out: its files in their order, the place of its journal or '', and what went wrong."""

    version: Version
    first: list[str]
    rest: list[str]
    stage: str
    error: EdlCkptError | None = None


def remove_in_order(store: ObjectStore, versions: Sequence[Version], before: Before) -> Removal:
    """Delete files; a shard of each ps_num goes first. Many versions go together, since each request takes long.

    A journal names each version that is being deleted. If this process is stopped on the way, the next one that takes
    the lock finishes the deletion: a version that may lose its files at any moment is never kept, tagged or listed.
    """
    done: list[_Doomed] = []
    for start in range(0, len(versions), _TOGETHER):
        batch = [_doom(store, version) for version in versions[start : start + _TOGETHER]]
        for doomed in batch:
            before(doomed.version)
        _remove_batch(store, batch)
        done += batch
    deleted = tuple(doomed.version for doomed in done if doomed.error is None)
    failed = tuple((doomed.version, doomed.error) for doomed in done if doomed.error is not None)
    return Removal(deleted, failed, (), sum(v.size_bytes for v in deleted))


def _doom(store: ObjectStore, version: Version) -> _Doomed:
    first, rest = ([path.removeprefix(store.path("")) for path in paths] for paths in safe_order(version))
    return _Doomed(version, first, rest, "" if version.layout is SINGLE_FILE else f"{STAGE_DIR}/{new_id()}")


def _remove_batch(store: ObjectStore, batch: Sequence[_Doomed]) -> None:
    """Delete versions; each gets the error that stopped its deletion. LostLockError without the lock."""
    has_begun = False
    try:
        prove_lock(store.location)
        _write_intents(store, batch)
        prove_lock(store.location)
        has_begun = True
        _remove_step(store, {path: doomed for doomed in batch for path in doomed.first})
        prove_lock(store.location)
        _remove_step(store, {path: doomed for doomed in batch for path in doomed.rest})
        prove_lock(store.location)
        named = {doomed.version.version: doomed for doomed in batch}
        _remove_step(store, {file(number): d for number, d in named.items() for file in (version_file, seal_file)})
        for doomed in batch:
            store.remove_directory(doomed.version.path.removeprefix(store.path("")))
        prove_lock(store.location)
    except LostLockError:
        if not has_begun:  # else whoever has the lock now finishes the deletion
            _remove_journals(store, batch)
        raise
    _remove_journals(store, batch)


def _remove_step(store: ObjectStore, files: Mapping[str, _Doomed]) -> None:
    """Remove the files of the versions that nothing has gone wrong with."""
    wanted = [path for path, doomed in files.items() if doomed.error is None]
    for path, error in store.remove_each(wanted).items():
        files[path].error = files[path].error or error


def _remove_journals(store: ObjectStore, batch: Sequence[_Doomed]) -> None:
    store.remove_many([f"{doomed.stage}/{JOURNAL}" for doomed in batch if doomed.stage])


def _write_intents(store: ObjectStore, batch: Sequence[_Doomed]) -> None:
    """Write the journal of each deletion; a version whose journal cannot be written stays."""
    has_metadata = set(store.names(META_DIR))
    workers = REMOTE_WORKERS if store.properties.round_trips else 1

    def write(doomed: _Doomed) -> None:
        if not doomed.stage:
            return
        version = doomed.version
        is_there = base_name(version_file(version.version)) in has_metadata
        journal = Journal(
            version.version,
            base_name(version.path),
            owner=owner,
            deletes=tuple(map(base_name, [*doomed.first, *doomed.rest])),
            metadata=_metadata_digest(store, version.version) if is_there else _digest(b""),
        )
        try:
            store.write_small(f"{doomed.stage}/{JOURNAL}", journal.to_bytes())
        except EdlCkptError as error:
            doomed.error = error

    owner = describe("prune")
    for _ in run_parallel(write, batch, workers):
        pass


def _metadata_digest(store: ObjectStore, version: int) -> str:
    return _digest(store.read_small(version_file(version)) or b"")


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def settle_deletion(store: ObjectStore, stage: str, journal: Journal) -> str:
    """Finish a deletion that was stopped on the way; return what was done. The caller holds the lock.

    It is not finished, and the version stays as it is, when its metadata changed since, or when files were written.
    """
    ages = store.ages(journal.directory)
    begun = store.ages(stage).get(JOURNAL, 0.0)
    is_same = set(ages) <= set(journal.deletes) and all(age >= begun for age in ages.values())
    is_same = is_same and _metadata_digest(store, journal.version) == journal.metadata
    if is_same:
        prove_lock(store.location)
        store.remove_many([f"{journal.directory}/{name}" for name in journal.deletes if name in ages])
        store.remove_many([version_file(journal.version), seal_file(journal.version)])
        store.remove_directory(journal.directory)
    prove_lock(store.location)
    store.remove(f"{stage}/{JOURNAL}")
    if is_same:
        return f"finished the deletion of version {journal.version}"
    return f"version {journal.version} stays as it is: it changed after a prune began to delete it"
