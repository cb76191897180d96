"""Recovery on a disk: staging directories and the trash, by their journals and owners."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import AuthError, EdlCkptError, RefusedError
from edl_ckpt.core.catalog.files import check_is_no_file
from edl_ckpt.core.commit.deletion.records import RECORD, damaged_records
from edl_ckpt.core.commit.interface import LOOK, Settled
from edl_ckpt.core.commit.publish.disk import read_journal, settle_stage
from edl_ckpt.core.commit.publish.interrupted import interrupted_move
from edl_ckpt.core.commit.publish.staging import remove_empty_state, remove_stage
from edl_ckpt.core.state.aside import make_way, set_aside
from edl_ckpt.core.state.owner import OWNER_FILE, is_presumed_dead, owner_in
from edl_ckpt.core.state.paths import (
    JOURNAL,
    META_DIR,
    STAGE_DIR,
    STATE_DIR,
    TRASH_DIR,
    is_damaged,
    is_resumable,
)
from edl_ckpt.core.state.stage_owner import has_our_owner, if_abandoned, is_abandoned, is_stage_name
from edl_ckpt.core.storage import LocalStore
from edl_ckpt.core.storage.beneath import Directory, kind_of
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.files import NEW

_MOVE: Final = "edl-ckpt did not make it, so it is left alone; inspect it, and move it away"


class DiskRepair:
    """Finishes or rolls back what dead commands left at a location on a disk; the caller holds its lock.

    While it settles, `_root` and `_state` are the open directories.
    """

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names at the location; NotFoundError when it is no directory."""
        check_is_no_file(self._store.location)
        with storage_errors(self._store.root):
            return os.listdir(self._store.root)

    def has_uploads(self) -> bool:
        """Return False: what is being written is in staging directories."""
        return False

    def is_interrupted(self) -> bool:
        """Say whether a dead command left the journal of a replacement; the caller needs no lock."""
        try:
            names = self._store.names(STAGE_DIR)
        except RefusedError:  # it is none of ours, and a command that takes the lock sets it aside
            return False
        stages = [f"{STAGE_DIR}/{name}" for name in names if not is_resumable(name)]
        root = self._store.root
        return any(_has_journal(root, stage) and is_abandoned(root, stage) for stage in stages)

    def settle(self, settled: Settled) -> None:
        """Finish, roll back or keep what dead commands left; finish deletions."""
        with Directory.open(self._store.root) as root, root.find(STATE_DIR) as state:
            self._root, self._state, self._settled = root, state, settled
            self._settle_state()
            with root.find(TRASH_DIR) as trash:
                is_empty = not trash.names()
        if is_empty:
            return
        from edl_ckpt.core.commit.deletion.trash import Trash  # few locations have some

        settled.done += map(str, Trash(self._store).sweep())

    def sweep(self, settled: Settled) -> None:
        """Do nothing: on a disk everything that a dead command left is in our state."""

    def _settle_state(self) -> None:
        """Settle the staging directories and the trash; see to it that both can be used."""
        if self._settled.exclusive:
            for path in (STAGE_DIR, TRASH_DIR):
                self._settled.done += filter(None, [make_way(self._state, os.path.basename(path))])
        with self._root.find(STAGE_DIR) as stages:
            for name in stages.names():
                if not is_damaged(name):
                    self._settle_entry(stages, name)
        remove_empty_state(self._root)
        with self._root.find(TRASH_DIR) as trash:
            self._settled.left += [_strange(trash, name) for name in trash.names() if not trash.is_directory(name)]
            for name, why in list(damaged_records(trash)) if self._settled.exclusive else ():
                with trash.enter(name) as entry:
                    self._settled.done.append(set_aside(self._state, entry, RECORD, f"cannot be used ({why})"))
        _sweep_replacements(self._root)

    def _settle_entry(self, stages: Directory, name: str) -> None:
        """Settle an entry of the staging directories. What we did not make is left alone."""
        if not stages.is_directory(name):
            if not self._freed(stages, name, "is no directory"):
                self._settled.left.append(_strange(stages, name))
        elif not is_stage_name(name):
            if not stages.rmdir(name):  # if it was empty, no process was at work in it
                self._settled.left.append(f"{stages.join(name)}: {_MOVE}")
        else:
            with stages.enter(name) as stage, if_abandoned(stage) as dead:
                self._settle_ours(stages, stage, name, dead=dead)

    def _settle_ours(self, stages: Directory, stage: Directory, name: str, *, dead: bool) -> None:
        """Settle a directory that has a name as we give them; without an owner's file of ours it may be another's."""
        if has_our_owner(stage):
            if dead:
                self._settle_abandoned(stages, stage, name)
        elif not stage.names():
            if dead or not owner_in(name):
                stages.rmdir(name)
        elif not self._freed(stages, name, f"has no {OWNER_FILE} of ours"):
            self._settled.left.append(f"{stage.path} has no {OWNER_FILE} of edl-ckpt: {_MOVE}")

    def _freed(self, stages: Directory, name: str, why: str) -> bool:
        """Set something aside if we need its name; say whether that was done."""
        if not is_resumable(name) or not self._settled.exclusive:
            return False
        self._settled.done.append(set_aside(self._state, stages, name, why))
        return True

    def _settle_abandoned(self, stages: Directory, stage: Directory, name: str) -> None:
        """Settle one abandoned staging directory of ours."""
        settled = self._settled
        try:
            journal = read_journal(stage)
        except (RefusedError, ValueError) as error:
            aside = set_aside(self._state, stages, name, f"has a {JOURNAL} that cannot be used ({error})")
            settled.left.append(f"{aside}; {LOOK}")
            return
        left = journal or interrupted_move(stage)
        if left is not None and settled.keeps(left):
            return
        done: list[str] = []
        if left is None:
            done = [f"removed the abandoned staging directory {name}"]
        elif left.source:
            done = [f"discarded {left.in_words('the')}"]
        else:
            try:
                done = list(filter(None, [settle_stage(self._root, stage)]))
            except RefusedError as error:
                settled.leave(error)
                return
            except AuthError:
                if stage.stat(JOURNAL) is not None:
                    raise
        stays = remove_stage(self._root, stage)
        if stays is None:
            settled.done += done
        else:
            settled.leave(stays)


def _has_journal(root: str, stage: str) -> bool:
    with suppress(EdlCkptError), Directory.beneath(root, stage) as directory:
        return directory.is_file(JOURNAL)
    return False


def _strange(directory: Directory, name: str) -> str:
    found = directory.stat(name)
    kind = kind_of(found.st_mode if found else 0)
    return f"{directory.join(name)} is {kind}: {_MOVE}"


def _sweep_replacements(root: Directory) -> None:
    """Remove the temporary small files of dead processes: each was about to replace another (`Directory.replace`)."""
    with suppress(EdlCkptError), root.find(META_DIR) as folder:
        for name in folder.names():
            owner = owner_in(name) if name.startswith(".") and name.endswith(NEW) else {}
            found = folder.stat(name) if owner else None
            if found is not None and is_presumed_dead(owner, time.time() - found.st_mtime):
                folder.unlink(name)
