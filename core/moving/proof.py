"""The proof of a conversion: the new files are read by their own format, and have the sums of what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.model.versions import Seal, SealedShard, Version, now_text
from edl_ckpt.core.moving.conversion import Conversion, as_tensors
from edl_ckpt.core.moving.run import Moved
from edl_ckpt.core.moving.source_proof import VersionProof
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.proof.sealing import cut
from edl_ckpt.core.proof.values import read_back
from edl_ckpt.core.reading.pieces import dense_at, read_dense
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.systems import title_of

_STEP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Proved:
    """New files that were read back."""

    fingerprint: Fingerprint
    shards: tuple[ShardSummary, ...]
    sealed: tuple[SealedShard, ...]
    version: Version

    def seal(self, key: int | str) -> Seal:
        """Return the seal of the version with a key."""
        return Seal(key, self.fingerprint.text, self.sealed, now_text())


def prove(plan: Conversion, moved: Moved, job: Job, version: Version) -> Proved:
    """Read new files back; EdlCkptError where a table or a variable is not what was meant, or where one is missing."""
    with open_checkpoint(version, staged=True) as target:
        job.reporter.start("proving", value_bytes(target))
        files = [(shard, number) for shard in target.shards for number in range(len(shard.file.files))]
        chunks = [cut(shard, target.files[shard.file.files[number].path], number) for shard, number in files]
        _check_names(plan, moved, target)
        sketch, sums = read_back(target, chunks, job)
        for name in _different(plan, moved, target, sketch):
            message = f"{name!r} reads back differently; nothing was published"
            hint = "this should not happen: please report it, and check this machine's memory and disk"
            raise EdlCkptError(message, path=version.path, hint=hint)
        names = [version.name_of(shard.file.files[number].path) for shard, number in files]
        sizes = [shard.file.files[number].size_bytes for shard, number in files]
        sealed = tuple(SealedShard(n, size, tuple(chunks)) for n, size, chunks in zip(names, sizes, sums, strict=True))
        return Proved(fingerprint_of(target, sketch), tuple(shard.summary for shard in target.shards), sealed, version)


def confirm_source(plan: Conversion, proof: VersionProof, moved: Moved, job: Job) -> Fingerprint | None:
    """Compare what was read with the checksums in the source's files, and with its seal; return its fingerprint.

    The seal is compared where all went out as it was; else None is returned. Raises CorruptError for a difference,
    unless `force` goes on.
    """
    proof.compare_sums(job)
    proof.compare_items()
    for name in plan.destination.carried:
        with plan.opened(name) as reader:
            proof.compare_zip(reader, name)
    return proof.confirm_seal(moved.sketch)


def _check_names(plan: Conversion, moved: Moved, target: Checkpoint) -> None:
    """Raise UnsupportedError for a variable that the files have and that is none there: its name says another thing."""
    names = [name for name in sorted(moved.sketch.variable_names()) if not target.has_entry(name)]
    if names:
        system = title_of(target.version.layout.system)
        message = f"{names[0]!r} is no name of a variable in files of {system}: it would be read as part of a table"
        hint = f"nothing was written; give it another name: --rename '{names[0]}=NEW'"
        raise UnsupportedError(message, path=plan.source.version.ref, hint=hint)


def _different(plan: Conversion, moved: Moved, target: Checkpoint, sketch: ContentSketch) -> Iterator[str]:
    """Yield what is not as it was meant: tables and variables, tensors that are neither, and files that went along."""
    meant = moved.sketch
    for name in [table.name for table in plan.out.tables] or sorted(meant.tables):
        one, other = meant.tables.get(name), sketch.tables.get(name)
        if one is not other and (one is None or other is None or not np.array_equal(one, other)):
            yield name
    yield from _different_dense(meant, sketch, target)
    if names := set(moved.tensors.variable_names()):
        whole, sums = as_tensors(target), ContentSketch()
        for place in dense_at(whole, 0):
            entry = place.entry(whole)
            if entry.name in names:
                sums.add_dense(entry.name, entry.size_bytes, place.start, read_dense(whole, place))
        yield from _different_dense(moved.tensors, sums, whole)
    for name, size in plan.destination.carried.items():
        pairs = ((start, min(_STEP_BYTES, size - start)) for start in range(0, size, _STEP_BYTES))
        with plan.opened(name) as read, target.store.open(target.version.path_of(name)) as written:
            if written.size_bytes != size or any(read.read(*pair) != written.read(*pair) for pair in pairs):
                yield name


def _different_dense(meant: ContentSketch, found: ContentSketch, opened: Checkpoint) -> Iterator[str]:
    """Yield the names of what a version lacks, and then of what has other sums than were meant."""
    names = sorted(meant.variable_names())
    yield from (name for name in names if not opened.has_entry(name))
    for (name, one), (_, other) in zip(meant.variable_sums(names), found.variable_sums(names), strict=True):
        if not np.array_equal(one, other):
            yield name
