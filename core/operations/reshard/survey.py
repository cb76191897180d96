"""The survey of a version: everything that the plan of a reshard needs, from headers and ids, without a value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import Executor, Threads, default_workers
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.checkpoint import VersionSource
from edl_ckpt.core.moving.survey import SourceSurvey, survey_source
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.interface import RangeReader


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Survey(SourceSurvey):
    """A version, counted for `to_ps` parameter servers. A plan needs nothing else of it."""

    source: Version
    kept: Mapping[str, RangeReader] = field(default_factory=dict)
    """Readers that have the ids of far shards on the local disk: the execution takes them over."""

    def __repr__(self) -> str:
        return describe(
            "Survey",
            escaped(self.source.ref),
            f"for {counted(self.to_ps, 'server')}",
            counted(len(self.variables), "variable"),
            counted(len(self.tables), "table"),
        )


def survey_ids(
    checkpoint: Checkpoint,
    ps_num: int,
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    piece_bytes: int | None = None,
    max_memory_bytes: int | None = None,
    reporter: Reporter = WARNINGS,
) -> Survey:
    """Read all ids of a checkpoint and count those of each of `ps_num` servers; no value is read.

    `piece_bytes` is how many bytes of ids are one task, here and when the rows are moved. `max_memory_bytes` bounds the
    ids that are sorted to find duplicates. Raises UsageError for a
    number of servers that cannot be, CorruptError for ids that cannot be decoded, are not as many as rows, or that a
    table has twice.
    """
    version = checkpoint.version
    if workers is None:
        workers = default_workers(remote=checkpoint.is_far)
    job = Job(executor or Threads(workers), workers, max_memory_bytes, reporter)
    kept = checkpoint.keep_ids(job)
    counted_ids = survey_source(
        VersionSource(checkpoint),
        ps_num,
        number=checkpoint.shards[0].version if checkpoint.shards else 0,
        job=job,
        piece_bytes=piece_bytes,
    )
    facts = {each.name: getattr(counted_ids, each.name) for each in fields(SourceSurvey)}
    return Survey(source=version, kept=kept, **facts)
