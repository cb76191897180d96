"""Recovery on object storage: journals, placeholder objects, and uploads that no listing shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.commit.deletion.removal import settle_deletions
from edl_ckpt.core.commit.journal import Journal, parse_journals
from edl_ckpt.core.commit.publish.objects import settle_remote
from edl_ckpt.core.commit.publish.single_file import sweep_work
from edl_ckpt.core.commit.repair.settled import LOOK, Settled, resumes, unsettled
from edl_ckpt.core.commit.repair.strays import sweep_strays, sweep_uploads
from edl_ckpt.core.state.holder import prove_lock, write_proved
from edl_ckpt.core.state.owner import is_me, is_presumed_dead
from edl_ckpt.core.state.paths import JOURNAL, KEPT_DIR, META_DIR, STAGE_DIR, damaged_name
from edl_ckpt.core.storage import ObjectStore
from edl_ckpt.core.storage.interface import SMALL_BYTES
from edl_ckpt.core.storage.meeting import TOKEN

_OLD_TOKEN_SECONDS: Final = 600.0


class ObjectRepair:
    """Finishes or rolls back what dead commands left at a location without rename; the caller holds its lock."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names at the location."""
        return list(self._store.names(""))

    def has_uploads(self) -> bool:
        """Say whether there are unfinished objects, which no listing shows."""
        return any(self._store.open_uploads())

    def is_interrupted(self) -> bool:
        """Return False: a version never has no name while it is replaced."""
        return False

    def settle(self, *, exclusive: bool, drop_copies: bool = False) -> Settled:
        """Settle the journals, finish deletions, and remove old tokens and copies of metadata."""
        store, settled = self._store, Settled()
        for relative in store.tree(STAGE_DIR):
            stage, _, name = relative.rpartition("/")
            settled.done += _put_back(store, relative, f"{META_DIR}/{name}") if stage == KEPT_DIR else ()
            if name.startswith(TOKEN):
                _sweep_token(store, relative)
            data = store.read_small(relative) if name == JOURNAL else None
            if data is not None:
                self._settle_journal(relative, data, settled, exclusive=exclusive, drop_copies=drop_copies)
        return settled

    def _settle_journal(
        self, relative: str, data: bytes, settled: Settled, *, exclusive: bool, drop_copies: bool
    ) -> None:
        store, stage = self._store, os.path.dirname(relative)
        try:
            journals = parse_journals(data, store.path(relative))
        except ValueError:
            settled.left.append(f"{relative} is damaged; the files that it lists stay as they are; {LOOK}")
            if exclusive and len(data) < SMALL_BYTES:  # it was read to its end
                new = f"{STAGE_DIR}/{damaged_name(f'{os.path.basename(stage)}-{JOURNAL}')}"
                store.write_small(new, data)
                store.remove(relative)
                settled.left[-1] += f"; it was set aside as {new}"
            return
        if not exclusive and not all(_is_dead(store, relative, journal) for journal in journals[:1]):
            return
        if journals and journals[0].source and not drop_copies:
            settled.kept.append(resumes(journals[0].version))
            return
        try:
            if all(journal.deletes for journal in journals):
                settled.done += settle_deletions(store, stage, journals)
            else:
                settled.done.append(settle_remote(store, stage, journals[0]))
        except RefusedError as error:
            settled.left.append(unsettled(error))

    def sweep(self, settled: Settled, *, exclusive: bool) -> None:
        """Remove what no journal lists: strays, the work of dead exports, abandoned uploads."""
        settled.done += sweep_strays(self._store) if exclusive else []
        settled.done += sweep_work(self._store)
        aborted, still_open = sweep_uploads(self._store)
        settled.done += aborted
        settled.kept += still_open


def _sweep_token(store: ObjectStore, relative: str) -> None:
    """Remove an old question to workers, which is asked without the lock."""
    found = store.stat(relative)
    if found is not None and found.age_seconds > _OLD_TOKEN_SECONDS:
        store.remove(relative)


def _put_back(store: ObjectStore, kept: str, relative: str) -> Iterator[str]:
    """Put back a file that a process which had lost the lock wrote over; drop a copy that is needed no more."""
    data = store.read_small(kept) if prove_lock(store.location) else None
    present = store.read_small(relative)
    if data is None or present is None:
        store.remove(kept)
    elif data != present:
        write_proved(store, relative, data)
        yield f"put back {relative}, which a command wrote that had lost the lock"


def _is_dead(store: ObjectStore, relative: str, journal: Journal) -> bool:
    """Say whether the owner of a journal is dead, on storage without locks; this process is not writing just now."""
    found = store.stat(relative)
    return found is not None and (is_me(journal.owner) or is_presumed_dead(journal.owner, found.age_seconds))
