"""Carrying out an import: values stream once to their places, and the written version is read back and proved."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

from edl_ckpt.core.moving.version import WriteResult, write_version
from edl_ckpt.core.operations.importing.plan import ImportPlan
from edl_ckpt.core.operations.importing.write import Write
from edl_ckpt.core.parallel import Executor
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.words import counted, describe, escaped, size


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


def execute_import(
    plan: ImportPlan,
    *,
    purpose: str = "import",
    executor: Executor | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> ImportResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    The source must still be open. `purpose` names the command to those that wait for the lock. Raises LockedError when
    another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything is written when there is
    no room, EdlCkptError when the proof fails.
    """
    return write_version(
        ImportResult,
        plan,
        nullcontext(Write(plan, plan.survey.arrays, reporter)),
        purpose=purpose,
        bytes_read=plan.survey.bytes_read,
        executor=executor,
        wait_seconds=wait_seconds,
        reporter=reporter,
    )
