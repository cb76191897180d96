"""The proof of a conversion: the new files are read by their own format, and have the sums of what was meant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.converting.changes import Changes
from edl_ckpt.core.converting.conversion import Conversion, Writing, as_tensors
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.model.versions import Seal, SealedShard, Version, now_text
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.proof.sealing import cut
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.proof.values import read_back
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint

_STEP_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Proved:
    """New files that were read back."""

    fingerprint: Fingerprint
    shards: tuple[ShardSummary, ...]
    sealed: tuple[SealedShard, ...]
    version: Version

    def seal(self, number: int) -> Seal:
        """Return the seal of the version."""
        return Seal(number, self.fingerprint.text, self.sealed, now_text())


def prove(writing: Writing, version: Version) -> Proved:
    """Read new files back; EdlCkptError where a table or a variable is not what was meant, or where one is missing."""
    job = writing.job
    with open_checkpoint(version, staged=True) as target:
        job.reporter.start("proving", value_bytes(target))
        files = [(shard, number) for shard in target.shards for number in range(len(shard.file.files))]
        chunks = [cut(shard, target.files[shard.file.files[number].path], number) for shard, number in files]
        sketch, sums = read_back(target, chunks, job)
        _compare(writing, target, sketch)
        names = [version.name_of(shard.file.files[number].path) for shard, number in files]
        sizes = [shard.file.files[number].size_bytes for shard, number in files]
        sealed = tuple(SealedShard(n, size, tuple(chunks)) for n, size, chunks in zip(names, sizes, sums, strict=True))
        return Proved(fingerprint_of(target, sketch), tuple(shard.summary for shard in target.shards), sealed, version)


def confirm_source(writing: Writing, trust: Trust) -> str:
    """Compare what was read with the seal of the source, where all of it went out as it was; return its fingerprint.

    Raises CorruptError as `Trust.confirm`; '' where something was changed, left out, or read as a plain tensor.
    """
    if is_changed(writing.plan):
        return ""
    text = fingerprint_of(writing.plan.source, writing.meant).text
    trust.confirm(text)
    return text


def is_changed(plan: Conversion) -> bool:
    """Say whether the sums of what goes out are not those of the source."""
    source = plan.source
    if plan.whole is not None:  # matrices are summed by their rows, tables with ids as plain tensors
        entries = [entry for shard in source.shards for entry in shard.tables]
        return plan.changes != Changes() or any(run.is_stored for entry in entries for run in entry.ids)
    return unchanged(plan) != {*source.table_names, *source.variable_names}


def unchanged(plan: Conversion) -> set[str]:
    """Return the names of the tables and variables, or tensors, that go out as they were."""
    opened = plan.whole or plan.source
    same = {v.name for v in plan.out.variables if v.name == v.source and v.is_as(opened.find_variable(v.source)[1])}
    return same | {t.name for t in plan.out.tables if t.is_as(plan.source.written_dtype(t.source))}


def _compare(writing: Writing, target: Checkpoint, sketch: ContentSketch) -> None:
    """Compare the sums of all tables and variables, and of the tensors that are neither."""
    plan, meant = writing.plan, writing.meant
    tables = [table.name for table in plan.out.tables] or sorted(meant.tables)
    dense = sorted(meant.variable_names())
    for name in tables:
        one, other = meant.tables.get(name), sketch.tables.get(name)
        if one is not other and (one is None or other is None or not np.array_equal(one, other)):
            raise _differs(name, target)
    missing = [name for name in dense if name not in target]
    if missing:
        raise _differs(missing[0], target)
    for (name, one), (_, other) in zip(meant.variable_sums(dense), sketch.variable_sums(dense), strict=True):
        if not np.array_equal(one, other):
            raise _differs(name, target)
    for name in (*_different_tensors(writing, target), *_different_files(plan, target)):
        raise _differs(name, target)


def _different_tensors(writing: Writing, target: Checkpoint) -> Iterator[str]:
    """Yield the tensors that are not what was meant."""
    names = sorted(writing.tensors.variable_names())
    if not names:
        return
    whole = as_tensors(target)
    lost = [name for name in names if name not in whole]
    yield from lost
    if lost:
        return
    sums = ContentSketch()
    for name in names:
        shard, entry = whole.find_variable(name)
        sums.add_dense(name, entry.size_bytes, 0, np.empty(0, np.uint8)) if not entry.size_bytes else None
        for start in range(0, entry.size_bytes, _STEP_BYTES):
            data = np.empty(min(_STEP_BYTES, entry.size_bytes - start), np.uint8)
            whole.reader(shard, entry.values).read_into(entry.values.start + start, data.data)
            sums.add_dense(name, entry.size_bytes, start, data)
    for (name, one), (_, other) in zip(writing.tensors.variable_sums(names), sums.variable_sums(names), strict=True):
        if not np.array_equal(one, other):
            yield name


def _different_files(plan: Conversion, target: Checkpoint) -> Iterator[str]:
    """Yield the files that went along, and are not what they were."""
    for name, size in plan.destination.carried.items():
        one, other = (opened.files.get(opened.version.path_of(name)) for opened in (plan.source, target))
        steps = range(0, size, _STEP_BYTES)
        pairs = ((start, min(_STEP_BYTES, size - start)) for start in steps)
        if one is None or other is None or any(one.read(*pair) != other.read(*pair) for pair in pairs):
            yield name


def _differs(name: str, target: Checkpoint) -> EdlCkptError:
    return EdlCkptError(
        f"{name!r} reads back differently; nothing was published",
        path=target.version.path,
        hint="suspect the memory or the disk of this machine, or a fault of edl-ckpt",
    )
