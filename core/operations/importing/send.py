"""Carrying out an import by tasks that send the parts of uploads, as `commit/part_plan` has planned them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.part_plan import DenseBytes, PartsPlan, PartTask, literals_in, part_tasks
from edl_ckpt.core.commit.uploads import Extent, SharedUploads, TargetPart
from edl_ckpt.core.format.shard_layout import VersionLayout
from edl_ckpt.core.operations.importing.names import Assignment
from edl_ckpt.core.operations.importing.plan import ImportPlan, moved_by
from edl_ckpt.core.operations.importing.spread import ArraysValue, OpenedArrays, Spread
from edl_ckpt.core.operations.importing.write import Stretch, Write, numbered_stretches
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import SILENT, Counted, Reporter
from edl_ckpt.core.storage.parts import PartMemory


class _Pass(NamedTuple):
    """A stretch that a task reads: its ids, and with `values` its rows; one task `counts` it for the fingerprint."""

    stretch: Stretch
    values: bool
    counts: bool


class _Task(NamedTuple):
    """A `PartTask` for another process."""

    extents: tuple[Extent, ...]
    dense: tuple[DenseBytes, ...]
    stretches: tuple[_Pass, ...]


class _Sent(NamedTuple):
    """What a task answers: the sums of what it has counted, and the parts that it has sent."""

    sketch: ContentSketch
    parts: list[TargetPart]


class _Opened(OpenedArrays):
    """The arrays, opened, and the memory for the parts that a process fills and sends."""

    def __init__(self, arrays: Assignment, memory_bytes: int) -> None:
        super().__init__(arrays)
        self.memory = PartMemory(memory_bytes)

    def close(self) -> None:
        """Close the arrays, and stop what is still being sent."""
        self.memory.close()
        super().close()


@dataclass(frozen=True, slots=True)
class SendWork:
    """The pass over the arrays as a work for other processes, whose tasks send parts."""

    arrays: ArraysValue
    layouts: VersionLayout
    uploads: SharedUploads
    memory_bytes: int

    def open(self) -> _Opened:
        """Open the arrays in another process."""
        return _Opened(self.arrays.open().arrays, self.memory_bytes)

    def do(self, opened: _Opened, task: _Task, advance: Advance) -> _Sent:
        """Read what a task needs, and send its parts."""
        with self.uploads.opened(task.extents, opened.memory) as files:
            first = Write(self.layouts, opened.arrays, files, Counted(advance))
            again = Write(self.layouts, opened.arrays, files, SILENT)
            for extent in task.extents:
                files[extent.target].write_between(literals_in(self.layouts, extent))
            for part in task.dense:
                first.write_dense(part)
            for each in task.stretches:
                (first if each.counts else again).write_stretch(each.stretch, values=each.values)
        return _Sent(first.sketch, files.sent)


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
    work, sketch = SendWork(spread.arrays, plan.layouts, uploads, parts.memory_bytes), ContentSketch()
    planned = part_tasks(moved_by(plan), parts.groups, parts.least_bytes, parts.task_bytes)
    tasks = _packed(plan.layouts, arrays, spread, planned)
    with closing(executor.run(work, _Opened(arrays, 0), tasks, reporter.advance)) as results:
        for sent in results:
            sketch.add(sent.sketch)
            output.take(sent.parts)
    return sketch


def _packed(layouts: VersionLayout, arrays: Assignment, spread: Spread, tasks: Iterator[PartTask]) -> Iterator[_Task]:
    """Yield tasks with what they need of each stretch in place of its number."""
    stretches = list(numbered_stretches(layouts, arrays, spread))
    for task in tasks:
        passes = tuple(_Pass(stretches[each.number], each.values, each.counts) for each in task.stretches)
        yield _Task(task.extents, task.dense, passes)
