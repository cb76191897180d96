"""Carrying out an import by tasks that send the parts of uploads, as `commit/part_plan` has planned them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.part_plan import DenseBytes, PartsPlan, PartTask, part_tasks
from edl_ckpt.core.commit.part_tasks import Read, Sending, SendTask, Sent, send, send_elsewhere
from edl_ckpt.core.commit.uploads import SentFiles, SharedUploads
from edl_ckpt.core.format.shard_layout import VersionLayout
from edl_ckpt.core.operations.importing.names import Assignment
from edl_ckpt.core.operations.importing.plan import ImportPlan, moved_by
from edl_ckpt.core.operations.importing.spread import ArraysValue, Spread
from edl_ckpt.core.operations.importing.write import Stretch, Write, numbered_stretches
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import Reporter

_Task: TypeAlias = SendTask[DenseBytes, Stretch]


@dataclass(frozen=True, slots=True)
class SendWork:
    """The pass over the arrays as a work for other processes, whose tasks send parts."""

    arrays: ArraysValue
    layouts: VersionLayout
    uploads: SharedUploads
    memory_bytes: int

    def open(self) -> Sending[Assignment]:
        """Open the arrays in another process."""
        return Sending(self.arrays.open(), self.memory_bytes)

    def do(self, opened: Sending[Assignment], task: _Task, advance: Advance) -> Sent:
        """Read what a task needs, and send its parts."""

        def begin(files: SentFiles, reporter: Reporter) -> Write:
            return Write(self.layouts, opened.source, files, reporter)

        return send(self.uploads, opened.memory, task, self.layouts, begin, advance)


def send_parts(
    plan: ImportPlan,
    spread: Spread,
    parts: PartsPlan,
    output: VersionOutput,
    uploads: SharedUploads,
    executor: Executor,
    reporter: Reporter,
) -> ContentSketch:
    """Let other processes send all parts; return the sums of the values that were read."""
    arrays = plan.survey.arrays
    reporter.start("importing", arrays.size_bytes)
    work = SendWork(spread.arrays, plan.layouts, uploads, parts.memory_bytes)
    planned = part_tasks(moved_by(plan), parts.groups, parts.least_bytes, parts.task_bytes)
    tasks = _packed(plan.layouts, arrays, spread, planned)
    return send_elsewhere(work, arrays, tasks, output, executor, reporter)


def _packed(layouts: VersionLayout, arrays: Assignment, spread: Spread, tasks: Iterator[PartTask]) -> Iterator[_Task]:
    """Yield tasks with what they need of each stretch in place of its number."""
    stretches = list(numbered_stretches(layouts, arrays, spread))
    for task in tasks:
        reads = tuple(Read(stretches[each.number], each.values, each.counts) for each in task.stretches)
        yield SendTask(task.extents, task.dense, reads)
