"""Carrying out a reshard by tasks that send the parts of uploads, as `parts` has planned them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from edl_ckpt.core.checkpoint.elsewhere import CheckpointHolder, CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch, Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.checkpoint.places import DenseAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.part_plan import PartsPlan, PartTask, SmallTables, literals_in, part_tasks
from edl_ckpt.core.commit.uploads import Extent, SharedUploads, TargetPart
from edl_ckpt.core.operations.reshard.move import Move, Stretch, stretch_task
from edl_ckpt.core.operations.reshard.order import moved_by
from edl_ckpt.core.operations.reshard.plan import ReshardPlan
from edl_ckpt.core.operations.reshard.settings import ReshardSettings
from edl_ckpt.core.parallel import Advance, Executor
from edl_ckpt.core.progress import SILENT, Counted, Reporter
from edl_ckpt.core.storage.parts import PartMemory


class _Pass(NamedTuple):
    """A stretch that a task reads; as `StretchPass`."""

    stretch: Stretch
    values: bool
    counts: bool


class _Task(NamedTuple):
    """A `PartTask` for another process."""

    extents: tuple[Extent, ...]
    dense: tuple[DenseAt, ...]
    small: tuple[SmallTables, ...]
    stretches: tuple[_Pass, ...]


class _Sent(NamedTuple):
    """What a task answers: the sketch of what it has counted, and the parts that it has sent."""

    sketch: ContentSketch
    parts: list[TargetPart]


class _Opened(CheckpointHolder):
    """The source, opened, and the memory for the parts that a process fills and sends."""

    def __init__(self, checkpoint: Checkpoint, memory_bytes: int) -> None:
        super().__init__(checkpoint)
        self.memory = PartMemory(memory_bytes)

    def close(self) -> None:
        """Close the source, and stop what is still being sent."""
        self.memory.close()
        super().close()


@dataclass(frozen=True, slots=True)
class SendWork:
    """The pass over values as a work for other processes, whose tasks send parts."""

    source: CheckpointValue
    plan: ReshardPlan
    settings: ReshardSettings
    uploads: SharedUploads
    memory_bytes: int

    def open(self) -> _Opened:
        """Open the source in another process."""
        return _Opened(self.source.open(), self.memory_bytes)

    def do(self, opened: _Opened, task: _Task, advance: Advance) -> _Sent:
        """Read what a task needs, and send its parts."""
        checkpoint = opened.checkpoint
        with self.uploads.opened(task.extents, opened.memory) as files:
            first = Move(self.plan, self.settings, checkpoint, files, Counted(advance))
            again = Move(self.plan, self.settings, checkpoint, files, SILENT)
            small = {counts.table for counts in self.plan.survey.small}
            for extent in task.extents:
                files[extent.target].write_between(literals_in(self.plan.layouts, extent, small))
            for place in task.dense:
                first.move_dense(place.piece(checkpoint))
            for some in task.small:
                (first if some.counts else again).move_small(some.names)
            for each in task.stretches:
                (first if each.counts else again).move_stretch(each.stretch, values=each.values)
        return _Sent(first.sketch, files.sent)


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
    sketch = ContentSketch()
    opened = _Opened(checkpoint, 0)
    with closing(executor.run(work, opened, tasks, reporter.advance)) as results:
        for sent in results:
            sketch.add(sent.sketch)
            output.take(sent.parts)
    return fingerprint_of(checkpoint, sketch)


def _packed(plan: ReshardPlan, checkpoint: Checkpoint, tasks: Iterator[PartTask]) -> Iterator[_Task]:
    """Yield tasks with the places in the source in place of numbers and names."""
    variables: dict[str, tuple[int, int]] = {}
    for number, shard in enumerate(checkpoint.shards):
        variables |= {entry.name: (number, at) for at, entry in enumerate(shard.variables)}
    for task in tasks:
        dense = tuple(DenseAt(*variables[name], start, size) for name, start, size in task.dense)
        passes: Sequence[_Pass] = [
            _Pass(stretch_task(plan, checkpoint, each.number), each.values, each.counts) for each in task.stretches
        ]
        yield _Task(task.extents, dense, task.small, tuple(passes))
