"""The seal of a version from the notes of the servers that saved its shards: headers are read, and no value.

The sums behind the fingerprint add up, and each server knows the checksums of its own shard. So the last server to
arrive needs none of the bytes that the others wrote. The seal says what they handed to the storage, not what a reader
finds there: a deep `verify` compares the two.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.words import base_name, command
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.seals import Seal, SealedShard, now_text
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.proof.fingerprint import ContentSketch, fingerprint_of
from edl_ckpt.core.reading.reader import (
    Checkpoint,
    open_checkpoint,
    problem_error,
)
from edl_ckpt.core.sources.registry import source_of
from edl_ckpt.core.state.shard_note import (
    NoteName,
    ShardNote,
    are_mixed,
    find_notes,
    named_shards,
    read_note,
)
from edl_ckpt.core.storage.interface import Store

_CONTRADICTIONS: Final = frozenset(
    {
        "version-mismatch",
        "duplicate-variable",
        "missing-table-info",
        "lost-info",
        "info-mismatch",
        "table-dtype-mismatch",
        "info-dtype-mismatch",
    }
)
"""What makes shards of several servers no checkpoint; what only ElasticDL cannot read is sealed."""


def seal_from_notes(store: Store, version: Version, *, own: tuple[NoteName, ShardNote] | None = None) -> Seal:
    """Return the seal of a complete version that servers of one run saved, each its own shard.

    `own` is the note on the shard of this process, which need not be read. The caller holds the lock of the location.
    Raises CorruptError when the shards are of several runs, contradict each other or have no notes that fit, and
    UnsupportedError when a note has no sums.
    """
    found = find_notes(store, version)
    if found.unknown:
        shards = named_shards(found.unknown, version.ps_num or 0)
        raise CorruptError(f"no note fits {shards}: saved by another program or run", path=version.path)
    if are_mixed(store, version, found):
        raise CorruptError("its shards are of several runs", code="mixed-runs", path=version.path)
    notes = {ps_id: _note(store, version, name, own) for ps_id, name in found.notes.items()}
    with open_checkpoint(version) as checkpoint:
        sketch = ContentSketch()
        for ps_id, note in sorted(notes.items()):
            _add(sketch, note, version, ps_id)
        tables = {table.name for shard in checkpoint.shards for table in shard.tables if table.rows}
        if set(checkpoint.variable_names) != sketch.variable_names() or tables != set(sketch.tables):
            raise CorruptError("the notes on its shards do not fit their content", path=version.path)
        _check_agreement(checkpoint)
        fingerprint = fingerprint_of(checkpoint, sketch).text
        checkpoint.check_unchanged()
    sealed = []
    for shard in version.shards:
        chunks = notes[shard.ps_id].chunks
        if (chunks[-1].end if chunks else 0) != shard.size_bytes:
            raise CorruptError("its note is about a file of another size", path=shard.path)
        sealed.append(SealedShard(base_name(shard.path), shard.size_bytes, chunks))
    return Seal(version.version, fingerprint, tuple(sealed), now_text(), run=next(iter(notes.values())).run)


def _note(store: Store, version: Version, name: NoteName, own: tuple[NoteName, ShardNote] | None) -> ShardNote:
    if name.mark.startswith("size_"):
        raise UnsupportedError("this storage does not tell one file from another of its size", path=version.path)
    if own is not None and own[0] == name:
        return own[1]
    note = read_note(store, version.version, name)
    if note is None:
        raise EdlCkptError("a note disappeared: another server replaces its shard", path=version.path)
    if not note.has_sums:
        raise UnsupportedError(
            f"the note on shard {name.ps_id} has no sums: they were too large, or an older edl-ckpt wrote it",
            path=version.path,
            hint=f"try: {command('verify', version.ref, '--seal')}",
        )
    return note


def _add(sketch: ContentSketch, note: ShardNote, version: Version, ps_id: int) -> None:
    """Add the sums of a note; CorruptError when they have another width than those of the other shards."""
    for sums, noted in ((sketch.variables, note.variables), (sketch.tables, note.tables)):
        for name, data in noted.items():
            columns, rest = divmod(len(data), 4 * bulk.LIMBS)
            if rest or (name in sums and sums[name].shape[1] != columns):
                raise CorruptError(f"the sums of {name!r} in shard {ps_id} do not fit the others", path=version.path)
            values: bulk.U32 = np.frombuffer(data, "<u4").astype(np.uint32, copy=False).reshape(bulk.LIMBS, columns)
            sums[name] = sums[name] + values if name in sums else values


def _check_agreement(checkpoint: Checkpoint) -> None:
    """Raise CorruptError when the shards contradict each other, so that ElasticDL would not restore them."""
    for shard, problem in source_of(checkpoint.version).check(checkpoint.version, checkpoint.shards):
        if problem.code in _CONTRADICTIONS:
            raise problem_error(checkpoint.version, shard, problem)
