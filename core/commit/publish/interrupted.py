"""Moves that were interrupted on a disk: their staging directories wait, so that the same command can go on.

`interrupted.json` says what a move was about to write, and has a digest of its plan and of its source. It counts only
without a journal: a journal belongs to the commit at the end of the move.
"""

from __future__ import annotations

from collections.abc import Iterator

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.commit.interface import NewVersion
from edl_ckpt.core.commit.journal import Journal, parse_journal
from edl_ckpt.core.commit.publish.staging import remove_stage
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document
from edl_ckpt.core.state.interrupted import move_in
from edl_ckpt.core.state.paths import INTERRUPTED, JOURNAL, STAGE_DIR, is_damaged, is_resumable
from edl_ckpt.core.state.stage_owner import has_our_owner, if_abandoned, is_stage_name
from edl_ckpt.core.storage.beneath import Directory


def interrupted_move(stage: Directory) -> Journal | None:
    """Return what an interrupted move in a staging directory was about to write; None where none can go on."""
    try:
        data = stage.read(INTERRUPTED, MAX_SUMS_BYTES)
        found = parse_journal(data, stage.join(INTERRUPTED)) if data else None
        is_sound = data is not None and move_in(parse_document(data, INTERRUPTED, limit=MAX_SUMS_BYTES)) is not None
    except (EdlCkptError, ValueError):
        return None
    if found is None or not is_sound or not found.source or stage.stat(JOURNAL) is not None:
        return None
    return found if stage.is_directory(found.directory) else None


def taken_over(checkpoint_dir: str, new: NewVersion) -> str:
    """Return the name of the staging directory in which the same move was interrupted; '' for none.

    Those of other moves that were about to write the same version are removed. The caller holds the lock.
    """
    found = ""
    with Directory.open(checkpoint_dir) as root, root.find(STAGE_DIR) as stages:
        for name in stages.names():
            if _has_our_name(stages, name):
                with stages.enter(name) as stage, if_abandoned(stage) as dead:
                    move = interrupted_move(stage) if dead and has_our_owner(stage) else None
                    if move is None or (move.version, move.directory) != (new.number, new.name):
                        continue
                    if new.move_digest and move.source == new.move_digest and not found:
                        found = name
                    else:
                        remove_stage(root, stage)
    return found


def interrupted_moves(checkpoint_dir: str) -> Iterator[Journal]:
    """Yield the moves of a location whose processes are dead; the caller needs no lock."""
    with Directory.open(checkpoint_dir) as root, root.find(STAGE_DIR) as stages:
        for name in stages.names():
            if _has_our_name(stages, name):
                with stages.enter(name) as stage, if_abandoned(stage) as dead:
                    move = interrupted_move(stage) if dead and has_our_owner(stage) else None
                if move is not None:
                    yield move


def _has_our_name(stages: Directory, name: str) -> bool:
    is_ours = is_stage_name(name) and not is_damaged(name) and not is_resumable(name)
    return is_ours and stages.is_directory(name)
