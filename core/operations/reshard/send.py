"""Carrying out a reshard by tasks that send the parts of uploads, as `parts` has planned them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.checkpoint.places import DenseAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.part_plan import PartsPlan, PartTask, part_tasks
from edl_ckpt.core.commit.part_tasks import Read, Sending, SendTask, Sent, send, send_elsewhere
from edl_ckpt.core.commit.uploads import SentFiles, SharedUploads
from edl_ckpt.core.operations.reshard.move import Move, Stretch, stretch_task
from edl_ckpt.core.operations.reshard.order import moved_by
from edl_ckpt.core.operations.reshard.plan import ReshardPlan
from edl_ckpt.core.operations.reshard.settings import ReshardSettings
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import Reporter

_Rows: TypeAlias = Stretch | tuple[str, ...]
_Task: TypeAlias = SendTask[DenseAt, _Rows]


@dataclass(frozen=True, slots=True)
class SendWork:
    """The pass over values as a work for other processes, whose tasks send parts."""

    source: CheckpointValue
    plan: ReshardPlan
    settings: ReshardSettings
    uploads: SharedUploads
    memory_bytes: int

    def open(self) -> Sending[Checkpoint]:
        """Open the source in another process."""
        return Sending(self.source.open(), self.memory_bytes)

    def do(self, opened: Sending[Checkpoint], task: _Task, advance: Advance) -> Sent:
        """Read what a task needs, and send its parts."""
        small = {counts.table for counts in self.plan.survey.small}

        def begin(files: SentFiles, reporter: Reporter) -> Move:
            return Move(self.plan, self.settings, opened.source, files, reporter)

        return send(self.uploads, opened.memory, task, self.plan.layouts, begin, advance, small=small)


def send_parts(
    plan: ReshardPlan,
    settings: ReshardSettings,
    parts: PartsPlan,
    checkpoint: Checkpoint,
    output: VersionOutput,
    uploads: SharedUploads,
    executor: Executor,
    reporter: Reporter,
) -> Fingerprint:
    """Let other processes send all parts; return the fingerprint of the values that were read."""
    reporter.start("resharding", value_bytes(checkpoint))
    light = replace(plan, survey=replace(plan.survey, counts=(), pieces=(), kept={}), routes=())
    own = replace(settings, parts=None)
    work = SendWork(CheckpointValue.of(checkpoint), light, own, uploads, parts.memory_bytes)
    tasks = _packed(plan, checkpoint, part_tasks(moved_by(plan), parts.groups, parts.least_bytes, parts.task_bytes))
    return fingerprint_of(checkpoint, send_elsewhere(work, checkpoint, tasks, output, executor, reporter))


def _packed(plan: ReshardPlan, checkpoint: Checkpoint, tasks: Iterator[PartTask]) -> Iterator[_Task]:
    """Yield tasks with the places in the source in place of numbers and names."""
    variables: dict[str, tuple[int, int]] = {}
    for number, shard in enumerate(checkpoint.shards):
        variables |= {entry.name: (number, at) for at, entry in enumerate(shard.variables)}
    for task in tasks:
        dense = tuple(DenseAt(*variables[name], start, size) for name, start, size in task.dense)
        reads: list[Read[_Rows]] = [Read(each.names, values=True, counts=each.counts) for each in task.small]
        reads += (
            Read(stretch_task(plan, checkpoint, each.number), each.values, each.counts) for each in task.stretches
        )
        yield SendTask(task.extents, dense, tuple(reads))
