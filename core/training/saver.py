"""Saving the shard of one parameter server, as the checkpoint design of ElasticDL says: by steps, with no coordinator.

Each server writes its own shard into the directory of the version, and the version is complete when the last one has.
Asynchronous servers agree on no clock, so when to save is decided by the version alone, never by seconds. A job with
AllReduce has one shard, which any one worker saves (`ps_num=1`).

The version that a server's shard belongs to: where the shard goes, and the seal once all shards are there.

The last server to arrive seals the version, from the notes of all of them. Several servers may think that they are the
last. They take turns at the lock of the location, and the second finds the seal of the first. A server that cannot seal
has still saved its shard, so this raises nothing: the next server that seals a version also seals the ones before it
that were left.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Final, Self

from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NoSpaceError, UsageError
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.catalog.entries import look_at
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.catalog.target import choose_layout, chosen_layout, layouts_at
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.shard import SHARD_PURPOSE, SavedPlace, ShardPlace
from edl_ckpt.core.model.layouts import Layout
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.guards import IN_A_JOB
from edl_ckpt.core.operations.prune.own_shard import doomed_shards, remove_own_shard
from edl_ckpt.core.operations.prune.plan import read_policy
from edl_ckpt.core.operations.prune.retention import Policy
from edl_ckpt.core.proof.noted_seal import seal_from_notes
from edl_ckpt.core.sources.elasticdl.target import (
    VersionLayout,
    check_ps_num,
    check_version,
    restore_warnings,
    writable_layout,
)
from edl_ckpt.core.sources.registry import shard_named
from edl_ckpt.core.state.index import Known
from edl_ckpt.core.state.lock_proof import write_proved
from edl_ckpt.core.state.metadata import sealed_versions
from edl_ckpt.core.state.paths import META_DIR, seal_file
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.state.shard_note import (
    NoteName,
    ShardNote,
    note_names_now,
    noted_versions,
    remove_notes,
    sweep_notes,
)
from edl_ckpt.core.storage import Location, LocationLike, Store, open_store
from edl_ckpt.core.training.background import PendingSave, SavedShard
from edl_ckpt.core.training.content import Dense, ServerContent, SnapshotBuffers, Tables, check_content
from edl_ckpt.core.training.shard_writer import lay_out, write_shard


@dataclass(slots=True)
class ShardServer:
    """One server of a job, and where its shards go.

    The layout is chosen at the first save, as every server chooses it: the one `asked` for, else the one that is at the
    location, else 'design'. So servers that start together in an empty location agree, in whatever order.
    """

    location: Location
    asked: str | None
    ps_id: int
    ps_num: int
    wait_seconds: float
    reporter: Reporter
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.asked is not None:
            writable_layout(self.asked)

    def lock(self, purpose: str, *, create: bool = False) -> AbstractContextManager[object]:
        """Return the lock of the location, for which the server waits."""
        wait, reporter = self.wait_seconds, self.reporter
        return location_lock(self.location, purpose, create=create, wait_seconds=wait, reporter=reporter)

    def place(self, number: int) -> ShardPlace:
        """Return the place of the shard of a version.

        Raises RefusedError when the number is taken by another layout, or by a version of another number of servers
        that is complete or has a tag; the shards of such a version that is neither go to the trash.
        """
        store = open_location(self.location)
        names = list(store.names(""))
        if any(map(shard_named, names)):
            raise UsageError("is one version's directory", path=self.location.url, hint="name the directory it is in")
        if self.layout is None:
            layout, warnings = self._chosen(store)
            for warning in warnings:
                self.reporter.warn(warning)
            self.layout = layout
        place = ShardPlace(store, self.layout, number, self.ps_id, self.ps_num)
        place.check_number(names)
        if place.directory in names:
            self._check_directory(place)
        return place

    def _chosen(self, store: Store) -> tuple[Layout, tuple[str, ...]]:
        """Return the layout of new versions, and warnings: the one asked for, else stored or there."""
        beside = layouts_at(store)
        return choose_layout(self.location, beside, self.asked or chosen_layout(store, beside))

    def _check_directory(self, place: ShardPlace) -> None:
        """See to it that the version's directory has no shards of another number of servers."""
        if not place.other_shards():
            return
        with self.lock(SHARD_PURPOSE):
            others = place.other_shards()
            if not others:  # another server of this run was here
                return
            version = look_at(place.store, place.directory)
            unfinished = version is not None and version.state in {State.INCOMPLETE, State.WRITING}
            if version is None or not unfinished or version.extra or self._is_protected(place.version):
                raise place.refuse_directory(others[0])
            store = place.store
            removal = kind_of(store).trash.delete([version], keep=store.properties.trash)
            for _, error in removal.failed:
                raise error
            remove_notes(store, place.version)
            self.reporter.warn(
                f"{version.ref}: a run of {version.ps_num} servers had not finished it; it was removed"
                + (", and is in the trash" if store.properties.trash else "")
            )

    def _is_protected(self, number: int) -> bool:
        """Say whether a version has a tag, or metadata that cannot be read and may have one."""
        versions = list_versions(self.location, known=Known()).versions
        return any(v.version == number and bool(v.tags or v.metadata_fault) for v in versions)


@dataclass(frozen=True, slots=True)
class Sealing:
    """Whether a version had all its shards after a save, and whether it is sealed."""

    complete: bool
    sealed: bool = False
    by_us: bool = False
    """True for the server that wrote the seal."""


def seal_if_whole(server: ShardServer, place: ShardPlace, own: tuple[NoteName, ShardNote]) -> Sealing:
    """Seal a version when all its shards are there; `own` is the note on the shard that was just saved."""
    try:
        names = place.store.names(place.directory)
        if set(names) != {place.layout.shard_file(i, place.ps_num) for i in range(place.ps_num)}:
            return Sealing(complete=False)
        with server.lock("seal"):
            return _seal_all(place, own)
    except EdlCkptError as error:
        server.reporter.warn(f"{place.store.location}@{place.version} is saved, but not sealed: {error}")
        return Sealing(complete=True)


def _seal_all(place: ShardPlace, own: tuple[NoteName, ShardNote]) -> Sealing:
    """Seal the version, those before it that were left, and remove old notes; the caller has the lock."""
    store = place.store
    sealed = sealed_versions(store.names(META_DIR))
    done = Sealing(complete=True, sealed=True)
    if place.version not in sealed:
        version = look_at(store, place.directory)
        if version is None or version.state is not State.COMPLETE:
            return Sealing(complete=False)
        _write_seal(store, version, own)
        done = Sealing(complete=True, sealed=True, by_us=True)
    for number in noted_versions(store):
        if number != place.version and number not in sealed:
            version = look_at(store, place.layout.version_dir(number))
            if version is not None and version.state is State.COMPLETE:
                with suppress(EdlCkptError):  # a mixture, say, of which `verify` tells
                    _write_seal(store, version)
    sweep_notes(store)
    return done


def _write_seal(store: Store, version: Version, own: tuple[NoteName, ShardNote] | None = None) -> None:
    write_proved(store, seal_file(version.version), seal_bytes(seal_from_notes(store, version, own=own)))
    remove_notes(store, version.version)


SAVE_WAIT_SECONDS: Final = 60.0
"""How long a server waits for the lock of the location, when it replaces a shard or seals the version."""


class CheckpointSaver:
    """Saves the shard of server `ps_id` of `ps_num` in a location; a context manager, and for one thread at a time.

    `checkpoint_steps` 0 saves never by itself; `keep_checkpoint_max` 0 keeps all. `run` is any text that all servers of
    a run share and that a restarted job changes: with it, a version whose shards are of two runs is always noticed.
    Without it, a shard is of an earlier run when it was there before the saver of another shard was made. `layout` is
    'design' or 'elasticdl'; without it, the layout at the location is followed, and an empty location gets 'design'.
    `wait_seconds` is how long the lock of the location is waited for; the reporter gets warnings, each once.

    When there is no room for a shard, `free_first` removes the own shard of the oldest version before the save, which
    would remove it afterwards. It takes a `keep_checkpoint_max` of at least 2.

    No lock is held while a shard is written. A shard that is there already, of an earlier run, is replaced: only the
    own one. The last server to arrive seals the version. A policy that is stored with the location replaces
    `keep_checkpoint_max`: then the server that seals a version prunes by it.

    >>> import numpy as np
    >>> with CheckpointSaver("job", checkpoint_steps=1000, keep_checkpoint_max=3) as saver:
    ...     saver.need_to_checkpoint(2000), saver.save(2000, {"bias": np.zeros(8)}, {}).complete
    (True, True)
    """

    def __init__(
        self,
        location: LocationLike,
        *,
        checkpoint_steps: int = 0,
        keep_checkpoint_max: int = 0,
        free_first: bool = False,
        ps_id: int = 0,
        ps_num: int = 1,
        layout: LayoutName | None = None,
        run: str = "",
        wait_seconds: float = SAVE_WAIT_SECONDS,
        reporter: Reporter = WARNINGS,
    ) -> None:
        self.location = Location.of(location).pinned()
        self.ps_id, self.ps_num = whole_number("ps_id", ps_id), whole_number("ps_num", ps_num)
        check_ps_num(self.ps_num)
        if not 0 <= self.ps_id < self.ps_num:
            raise UsageError(f"ps_id must be 0 to {self.ps_num - 1}, got {self.ps_id}")
        self.checkpoint_steps = whole_number("checkpoint_steps", checkpoint_steps, least=0)
        self.keep_checkpoint_max = whole_number("keep_checkpoint_max", keep_checkpoint_max, least=0)
        self._free_first = free_first
        if free_first and self.keep_checkpoint_max < 2:
            raise UsageError(
                f"free_first takes a keep_checkpoint_max of at least 2, got {self.keep_checkpoint_max}:"
                " the newest complete version never goes before the next one is whole"
            )
        if not isinstance(run, str):
            raise UsageError(f"run must be a text, got {run!r}")
        self.run = run
        self._reporter = _Once(reporter)
        self._server = ShardServer(self.location, layout, self.ps_id, self.ps_num, wait_seconds, self._reporter)
        self._own = self.location, self.ps_id, self.ps_num
        self._waiting: dict[str, Any] = {"wait_seconds": wait_seconds, "reporter": self._reporter}
        self._snapshots = SnapshotBuffers()
        self._pending: PendingSave | None = None
        self._last: tuple[ShardPlace, bool] | None = None
        """The place of the last save, and whether it completed the version."""
        self._closed = False
        self._older: dict[int, tuple[str, ...]] | None = {} if run or self.ps_num == 1 else None
        with suppress(EdlCkptError):  # the first save looks again, and may take more shards for older ones
            self._older_notes(open_store(self.location), 0)

    def __repr__(self) -> str:
        return f"<CheckpointSaver {self.location} server {self.ps_id} of {self.ps_num}>"

    def need_to_checkpoint(self, version: int) -> bool:
        """Say whether a version is to be saved: when `checkpoint_steps` divides it.

        By steps and never by seconds, because all servers must decide the same, and they agree on no clock. Source: the
        checkpoint design of ElasticDL.
        """
        return self.checkpoint_steps > 0 and whole_number("version", version) % self.checkpoint_steps == 0

    def save(self, version: int, dense: Dense, tables: Tables) -> SavedShard:
        """Save this server's shard of a version, and return when it is visible and safe on the storage.

        `dense` and `tables` are what this server owns; `partition` cuts a whole model. Tables are `Table`, (ids,
        vectors) or `TableBatches`; every server passes every table, if need be without rows. Beside the arrays it takes
        at most 64 MiB of memory, and copies of arrays that are not contiguous.

        Raises UsageError for numbers, names and arrays that cannot be, and for what belongs to another server;
        CorruptError for an id that a table has twice; UnsupportedError for a dtype that no checkpoint can contain;
        RefusedError where the version has shards of another number of servers, or the layout is not clear; LockedError
        when a shard must be replaced and the lock is not free in time; NoSpaceError when there is no room. In all these
        cases nothing has changed, but for what `free_first` removed. It waits for a save in the background first, and
        raises its error if it failed.
        """
        self._settle()
        begin = time.perf_counter()
        saved = self._save(_version(version), dense, tables)
        return replace(saved, blocked_seconds=time.perf_counter() - begin)

    def save_async(self, version: int, dense: Dense, tables: Tables, *, copy: bool = True) -> PendingSave:
        """Take a snapshot and save it in the background, as `save` does; return as soon as the snapshot is taken.

        At most one save is under way: this waits for the one before it. The snapshot is a copy, in memory that the next
        one uses again. With `copy=False` the caller hands the arrays over, and must not change them until the save is
        done; tables in batches can only be handed over. An error of the save is raised by the result, else by the next
        call and by `close`. When the interpreter ends, it waits for the save.
        """
        begin = time.perf_counter()
        self._settle()
        number = _version(version)
        if copy:
            dense, tables = self._snapshots.take(dense, tables)
        work = partial(self._save, number, dense, tables)
        self._pending = pending = PendingSave(work, f"saving {self.location}@{number}", begin)
        return pending

    def close(self) -> None:
        """Wait for the save under way and raise its error unless it was raised before; no save is possible afterwards.

        Then it applies `keep_checkpoint_max` once more: slower servers may have completed a version since the save.
        """
        self._closed = True
        self._snapshots = SnapshotBuffers()
        self._end_task()
        last, self._last = self._last, None
        if last is not None and self.keep_checkpoint_max:
            self._retain(last[0], leftovers=last[1], by_policy=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        try:
            self.close()
        except EdlCkptError as failed:
            if error is None:
                raise
            error.add_note(f"a save in the background failed too: {failed}")

    def _settle(self) -> None:
        """Wait for the save under way; raise its error unless it was raised before."""
        if self._closed:
            raise UsageError("the saver is closed", path=self.location.url)
        self._end_task()

    def _end_task(self) -> None:
        """Wait for the save under way, and forget it only then: a signal may interrupt the wait."""
        if self._pending is None:
            return
        self._pending.wait()
        pending, self._pending = self._pending, None
        if pending.unseen_error is not None:
            pending.result()

    def _save(self, number: int, dense: Dense, tables: Tables) -> SavedShard:
        begin = time.perf_counter()
        with ExitStack() as stack:
            content = check_content(dense, tables, self.ps_id, self.ps_num, stack)
            layout = lay_out(number, content)
            size_bytes = int(layout.size_bytes[0])
            self._warn(content, size_bytes)
            place = self._server.place(number)
            freed = tuple[str, ...]()
            while True:
                try:
                    published, note = self._write(place, content, layout)
                    break
                except NoSpaceError as error:
                    freed += self._make_room(error)
        sealing = seal_if_whole(self._server, place, (published.note, note))
        self._last = place, sealing.complete
        content_counts = len(content.variables), sum(table.rows for table in content.tables)
        facts = *content_counts, time.perf_counter() - begin, published.replaced, sealing.complete, sealing.sealed
        removed = freed + self._retain(place, leftovers=sealing.complete, by_policy=sealing.by_us)
        return SavedShard(number, place.path, size_bytes, *facts, removed)

    def _write(self, place: ShardPlace, content: ServerContent, layout: VersionLayout) -> tuple[SavedPlace, ShardNote]:
        """Write a shard and make it visible; return the note on it."""
        hold = partial(self._server.lock, SHARD_PURPOSE, create=True)
        with kind_of(place.store).shard(place, hold, self._reporter) as output:
            note = write_shard(content, layout, output, place, self.run, self._reporter)
            note = replace(note, older=self._older_notes(place.store, place.version))
            # The only server is the last one, and seals from what it has in memory.
            return output.publish(note if self.ps_num > 1 else ShardNote(self.run, has_sums=False)), note

    def _older_notes(self, store: Store, number: int) -> tuple[str, ...]:
        """Return the notes on a version that were there when the saver was made; none for a run with a name."""
        if self._older is None:
            self._older = note_names_now(store)
        return self._older.get(number, ())

    def _make_room(self, error: NoSpaceError) -> tuple[str, ...]:
        """Remove the own shard of the oldest version before the save that would remove it; else raise the error."""
        if self.keep_checkpoint_max < 2 or not read_policy(self.location).is_empty:
            raise error
        keep = self.keep_checkpoint_max - 1
        if self._free_first and (removed := remove_own_shard(*self._own, keep, **self._waiting)):
            return removed
        doomed = doomed_shards(list_versions(self.location).versions, self.ps_id, self.ps_num, keep)
        oldest = next((version.ref for version, path in doomed if path), None)
        if oldest is None:
            raise error
        message = f"{error.message}; {oldest} could go first"
        hint = "nothing was saved; CheckpointSaver(free_first=True) removes that version before the save"
        raise NoSpaceError(message, path=error.path, hint=hint) from None

    def _warn(self, content: ServerContent, size_bytes: int) -> None:
        """Warn of everything that ElasticDL cannot read or does not use; it is written all the same."""
        sizes = [0] * self.ps_num
        sizes[self.ps_id] = size_bytes
        dtypes = [*(v.placed.dtype for v in content.variables), *(table.dtype for table in content.tables)]
        infos = [table.info for table in content.tables]
        for warning in restore_warnings(sizes, len(content.variables), dtypes, infos):
            self._reporter.warn(warning)

    def _retain(self, place: ShardPlace, *, leftovers: bool, by_policy: bool) -> tuple[str, ...]:
        """Apply retention; the shard is saved, so an error is only a warning, and the next save tries again.

        The server that completed a version also removes the `leftovers` of those that were ahead.
        """
        try:
            policy = read_policy(self.location)
            if policy.is_empty:
                return remove_own_shard(*self._own, self.keep_checkpoint_max, leftovers=leftovers, **self._waiting)
            return self._prune(policy) if by_policy else ()
        except EdlCkptError as error:
            if not isinstance(error, LockedError):
                self._reporter.warn(f"{place.path} is saved, but retention failed: {error}")
            return ()

    def _prune(self, policy: Policy) -> tuple[str, ...]:
        if self.keep_checkpoint_max:
            self._reporter.warn(f"{self.location}: the stored policy replaces keep_checkpoint_max")
        done = prune([self.location], policy, guards=IN_A_JOB, **self._waiting)
        for text in (*done.plan.unknown, *(f"retention failed: {error}" for error in done.errors)):
            self._reporter.warn(f"{self.location}: {text}")
        return done.deleted


class _Once:
    """A reporter that gives each warning only once: a job saves a thousand times."""

    def __init__(self, reporter: Reporter) -> None:
        self.warn = cache(reporter.warn)
        self.start, self.advance = reporter.start, reporter.advance


def _version(number: int) -> int:
    version = whole_number("version", number)
    check_version(version)
    return version
