"""The survey of a version, from headers and ids, without a value; and the plan of a move from it to a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.parallel import Executor, Threads, default_workers
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.checkpoint import VersionSource
from edl_ckpt.core.moving.plan import MovePlan, lay_out_survey
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
    workers = default_workers(remote=checkpoint.is_far) if workers is None else workers
    job = Job(executor or Threads(workers), workers, max_memory_bytes, reporter)
    kept = checkpoint.keep_ids(job)
    counted_ids = survey_source(
        VersionSource(checkpoint),
        ps_num,
        number=checkpoint.shards[0].version if checkpoint.shards else 0,
        job=job,
        piece_bytes=piece_bytes,
    )
    facts = {fact.name: getattr(counted_ids, fact.name) for fact in fields(SourceSurvey)}
    return Survey(source=checkpoint.version, kept=kept, **facts)


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan(MovePlan):
    """All that a reshard will write, and where."""

    survey: Survey

    @property
    def ref(self) -> str:
        """Return the reference of the version that is read."""
        return self.survey.source.ref

    @property
    def from_ps(self) -> int:
        """Return the number of parameter servers of the source."""
        return self.survey.source.ps_num or 0

    def __repr__(self) -> str:
        return describe(
            "ReshardPlan",
            escaped(self.survey.source.ref),
            f"{self.from_ps} to {counted(self.to_ps, 'shard')}",
            counted(self.rows, "row"),
            f"to {escaped(self.target.directory)}",
        )

    def _repr_html_(self) -> str:
        facts = (f"{self.from_ps} to {counted(self.to_ps, 'shard')}", counted(self.rows, "row"), self.target.directory)
        rows = ((str(k), Bytes(shard.size_bytes), shard.rows) for k, shard in enumerate(self.shards))
        warnings = ((warning,) for warning in self.warnings)
        tables = (
            table(("shard", "size", "rows"), rows, len(self.shards), "shard"),
            table(("warning",), warnings, len(self.warnings), "warning"),
        )
        return card("ReshardPlan", self.ref, facts, tables)


def plan_reshard(survey: Survey, target: Target, *, renumber: bool = False) -> ReshardPlan:
    """Return the plan to write a surveyed version to a target; nothing is read and nothing is written.

    With `renumber` the shards contain the number of the target, else that of the source.
    """
    survey = replace(survey, number=target.number) if renumber else survey
    return ReshardPlan(target, *lay_out_survey(survey, target))
