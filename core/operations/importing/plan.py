"""The plan of an import: that of a move, from arrays to a new version; and how it is carried out."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.words import counted, describe, escaped, size
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.moving.plan import MovePlan, lay_out_survey
from edl_ckpt.core.moving.settings import ReshardSettings, settings_for
from edl_ckpt.core.moving.survey import SourceSurvey, survey_source
from edl_ckpt.core.moving.version import WriteResult, write_version
from edl_ckpt.core.operations.importing.source import NamedArrays
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class ArraysPlan(MovePlan):
    """All that an import will write, and where; `arrays` are those that it reads, still open."""

    arrays: NamedArrays


@dataclass(frozen=True, slots=True)
class ImportResult(WriteResult):
    """The new version; the source and the version that was read back both have its `fingerprint`.

    `from_ps` is the number of shards of a source that is a checkpoint, None for arrays.
    """

    def __repr__(self) -> str:
        return describe(
            "ImportResult",
            escaped(self.ref),
            counted(self.to_ps, "shard"),
            counted(self.rows, "row"),
            size(self.size_bytes),
        )


def plan_import(survey: SourceSurvey, arrays: NamedArrays, target: Target) -> ArraysPlan:
    """Return the plan to write surveyed arrays to a target."""
    return ArraysPlan(target, *lay_out_survey(survey, target), arrays)


def prepare_import(
    arrays: NamedArrays,
    target: Target,
    ps_num: int,
    job: Job,
) -> tuple[ArraysPlan, ReshardSettings]:
    """Read the ids of arrays; return the plan to write them for `ps_num` servers, and its settings.

    Raises UsageError for a number of servers that cannot be, CorruptError for an id that a table has twice.
    """
    survey = survey_source(arrays, ps_num, number=target.number, job=job)
    plan = plan_import(survey, arrays, target)
    return plan, settings_for(plan, executor=job.executor)


def execute_import(
    plan: ArraysPlan,
    settings: ReshardSettings,
    job: Job,
    *,
    purpose: str = "import",
    wait_seconds: float = LOCK_WAIT_SECONDS,
) -> ImportResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    The source must still be open. `purpose` names the command to those that wait for the lock. Raises LockedError when
    another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything is written when there is
    no room, EdlCkptError when the proof fails.
    """
    return write_version(
        ImportResult,
        plan,
        settings,
        nullcontext(plan.arrays),
        job.limited(settings.workers),
        purpose=purpose,
        doing="importing",
        bytes_read=plan.survey.bytes_read - plan.arrays.bytes_read,
        wait_seconds=wait_seconds,
    )
