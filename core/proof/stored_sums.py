"""Checksums in a source's own files, compared with those of the bytes that went out: a difference ends an operation.

A seal is compared elsewhere (`trust`). These checksums are older: the job that saved the values wrote them. `force`
continues in spite of a difference, and the new seal records it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.base.job import FunctionWork, Job
from edl_ckpt.core.base.packing import together
from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.picklable import CheckpointValue
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import STEP_BYTES, StoredSums, SumPart, SumsCompared, stored_sum_now, sum_part

_MOST_PARTS: Final = 128
"""Parts of one task: what it answers stays small."""


def confirm_sums(sums: StoredSums, trust: Trust, job: Job, *, whole: bool = False) -> SumsCompared:
    """Compare the checksums of the files of an opened version with what was read of it since `Checkpoint.watch`.

    Of a value that was read in part, the rest is read now; with `whole`, and on a cluster, whose processes sum nothing,
    all values are. Raises CorruptError for a difference, with the first value, its file and its offset, unless `trust`
    is forced; UnavailableError where only one read of the bytes was damaged.
    """
    checkpoint, executor = sums.checkpoint, job.executor
    step = max(executor.task_bytes(sum(value.size_bytes for value in sums.values)), STEP_BYTES)
    parts = list(sums.rest(whole=whole or executor.is_cluster, step_bytes=step))
    tasks = together(((part, part.end - part.start) for part in parts), step, most=_MOST_PARTS)
    work = FunctionWork(CheckpointValue.of(checkpoint), _sum_parts)
    with job.silent().run(work, checkpoint, tasks) as results:
        sums.take(parts, chain.from_iterable(results))
    differing = list(sums.wrong())
    if differing:
        number, stored, found = differing[0]
        shard, first = checkpoint.shards[number], stored.extents[0]
        path, more = shard.path(first), f" (and {len(differing) - 1} more)" if differing[1:] else ""
        if stored_sum_now(checkpoint, number, shard.sums.index(stored)) == stored.value:
            message = f"{stored.subject!r} was damaged in one read, and is right in the next: nothing was published"
            raise UnavailableError(message, path=path, offset=first.start, hint="try again")
        message = f"{stored.subject!r} in shard {shard.file.ps_id}: the values have the {stored.kind} {found:08x}, and"
        trust.doubt(
            f"{message} the file says {stored.value:08x}{more}", "checksum-mismatch", path=path, offset=first.start
        )
    return sums.compared()


def _sum_parts(checkpoint: Checkpoint, parts: Sequence[SumPart], advance: Advance) -> list[int]:
    """Return the checksums of some parts of values, here or in another process."""
    del advance
    return [sum_part(checkpoint, part) for part in parts]
