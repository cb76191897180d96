"""The checksums that files of other systems have of their own values, compared with the bytes: no seal is needed.

At `deep` all of them are compared, and in a sample some, chosen at random. Where a version has a seal, a sample is of
the seal's chunks; where it has neither, of the values, in which it looks for NaN, infinite and huge ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex, TableEntry
from edl_ckpt.core.operations.verify.findings import Report, ValueSample
from edl_ckpt.core.operations.verify.ids import report_odd
from edl_ckpt.core.proof.sealing import Mismatch, comparable, rereads_correctly, tensors_of
from edl_ckpt.core.proof.values import odd_values
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import stored_sum_now
from edl_ckpt.core.storage.interface import RangeReader

_STEP_BYTES: Final = 1 << 20


class _Comparison(NamedTuple):
    """What is compared as one: its bytes, and a function that adds a finding if it is wrong."""

    size_bytes: int
    check: Callable[[Report], object]


def check_stored_sums(checkpoint: Checkpoint, report: Report, job: Job) -> int:
    """Compare every checksum that the files have of their values; return how many there are."""
    units = list(_stored(checkpoint))
    _run(units, report, job)
    return len(units)


def check_sample(
    checkpoint: Checkpoint, seal: Seal | None, readers: Mapping[str, RangeReader], report: Report, job: Job,
    sample: ValueSample,
) -> None:  # fmt: skip
    """Check a random part of a version, of the checksums of its seal, or else of its files, or else of its values."""
    units = list(_sealed(checkpoint, seal, readers)) if seal else list(_stored(checkpoint))
    units = units or list(_values(checkpoint))
    sizes = np.array([unit.size_bytes for unit in units], np.float64)
    order = np.random.default_rng(sample.seed).permutation(len(units))
    enough = np.searchsorted(np.cumsum(sizes[order]), sizes.sum() * sample.percent / 100)
    _run([units[number] for number in order[: enough + 1].tolist()], report, job)


def _run(units: Sequence[_Comparison], report: Report, job: Job) -> None:
    job.reporter.start("comparing checksums", sum(unit.size_bytes for unit in units))

    def run(unit: _Comparison) -> int:
        unit.check(report)
        return unit.size_bytes

    for done in run_parallel(run, units, job.workers):
        job.reporter.advance(done)


def _stored(checkpoint: Checkpoint) -> Iterator[_Comparison]:
    for at, shard in enumerate(checkpoint.shards):
        for number, stored in enumerate(shard.sums):
            size = sum(extent.size_bytes for extent in stored.extents)
            yield _Comparison(size, partial(_compare, checkpoint, at, number))


def _compare(checkpoint: Checkpoint, at: int, number: int, report: Report) -> None:
    shard, value = checkpoint.shards[at], stored_sum_now(checkpoint, at, number)
    stored = shard.sums[number]
    if value != stored.value:
        first = stored.extents[0]
        report.add(
            "checksum-mismatch",
            f"{stored.subject!r}: the values have the {stored.kind} {value:08x}, and the file says {stored.value:08x}",
            shard=shard.file,
            path=shard.path(first),
            subject=stored.subject,
            offset=first.start,
            hint="these bytes are damaged: restore the file from another copy",
        )


def _sealed(checkpoint: Checkpoint, seal: Seal, readers: Mapping[str, RangeReader]) -> Iterator[_Comparison]:
    def compare(wanted: Mismatch, report: Report) -> None:
        if not rereads_correctly(readers[wanted.shard], wanted.chunk):
            report_chunks(checkpoint, [wanted], report)

    for sealed in comparable(seal, readers):
        for chunk in sealed.chunks:
            yield _Comparison(chunk.end - chunk.start, partial(compare, Mismatch(sealed.name, chunk)))


def report_chunks(checkpoint: Checkpoint, wrong: Sequence[Mismatch], report: Report) -> None:
    """Report chunks that differ from the seal: the shard, the offset, and what they are of."""
    name_of = checkpoint.version.name_of
    files = {name_of(file.path): file for file in checkpoint.version.files}
    indexes = {name_of(file.path): shard for shard in checkpoint.shards for file in shard.file.files}
    for name, chunk in wrong:
        tensors, extent = tensors_of(chunk, indexes.get(name)), f"bytes {chunk.start} to {chunk.end}"
        message = f"chunk {chunk.number} of {tensors}, {extent}, differs from the seal"
        report.add("checksum-mismatch", message, shard=files[name], subject=chunk.name, offset=chunk.start)


def _values(checkpoint: Checkpoint) -> Iterator[_Comparison]:
    for shard in checkpoint.shards:
        entries: tuple[DenseEntry | TableEntry, ...] = (*shard.variables, *shard.tables)
        for entry in entries:
            extent = entry.values
            for start in range(extent.start, extent.end, _STEP_BYTES):
                piece = Extent(start, min(start + _STEP_BYTES, extent.end), file=extent.file)
                yield _Comparison(piece.size_bytes, partial(_look, checkpoint, shard, entry, piece))


def _look(
    checkpoint: Checkpoint, shard: ShardIndex, entry: DenseEntry | TableEntry, piece: Extent, report: Report
) -> None:
    data = np.frombuffer(checkpoint.reader(shard, piece).read(piece.start, piece.size_bytes), np.uint8)
    counts = odd_values(data, entry.dtype)
    report_odd(report, checkpoint, shard, entry, counts, piece, "values in a sampled part")
