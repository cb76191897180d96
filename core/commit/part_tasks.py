"""What processes share that send the parts of uploads: the tasks as they travel, what each answers, and what is open.

`part_plan` knows sources by their numbers. A task names what it reads by itself, because its process has no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from typing import Generic, NamedTuple, Protocol, TypeVar

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.commit.interface import VersionOutput
from edl_ckpt.core.commit.part_plan import literals_in
from edl_ckpt.core.commit.uploads import Extent, SentFiles, SharedUploads, TargetPart
from edl_ckpt.core.format.shard_layout import VersionLayout
from edl_ckpt.core.parallel import Advance, Executor, Resource, Work
from edl_ckpt.core.progress import SILENT, Counted, Reporter
from edl_ckpt.core.storage.parts import PartMemory

Dense = TypeVar("Dense")
Rows = TypeVar("Rows")
Source = TypeVar("Source", bound=Resource)
_Dense_contra = TypeVar("_Dense_contra", contravariant=True)
_Rows_contra = TypeVar("_Rows_contra", contravariant=True)


class Read(NamedTuple, Generic[Rows]):
    """Rows that a task reads: their ids, and with `values` the rows; one task `counts` them for the fingerprint."""

    rows: Rows
    values: bool
    counts: bool


class SendTask(NamedTuple, Generic[Dense, Rows]):
    """A `PartTask` with what it reads in place of numbers."""

    extents: tuple[Extent, ...]
    dense: tuple[Dense, ...]
    reads: tuple[Read[Rows], ...]


class Sent(NamedTuple):
    """What a task answers: the sums of what it has counted, and the parts that it has sent."""

    sketch: ContentSketch
    parts: list[TargetPart]


class Sending(Generic[Source]):
    """A source, opened, and the memory for the parts that a process fills and sends."""

    def __init__(self, source: Source, memory_bytes: int) -> None:
        self.source = source
        self.memory = PartMemory(memory_bytes)

    @property
    def bytes_read(self) -> int:
        """Return how many bytes of the source were read so far."""
        return self.source.bytes_read

    def close(self) -> None:
        """Stop what is still being sent, and close the source."""
        self.memory.close()
        self.source.close()


class Pass(Protocol[_Dense_contra, _Rows_contra]):
    """A pass over values, which writes what it reads; `sketch` has the sums of that."""

    sketch: ContentSketch

    def move_dense(self, dense: _Dense_contra, /) -> None:
        """Write bytes of a variable."""
        ...

    def move_rows(self, rows: _Rows_contra, /, *, values: bool) -> None:
        """Write the ids of some rows, and with `values` the rows."""
        ...


def send(
    uploads: SharedUploads,
    memory: PartMemory,
    task: SendTask[Dense, Rows],
    layouts: VersionLayout,
    begin: Callable[[SentFiles, Reporter], Pass[Dense, Rows]],
    advance: Advance,
    *,
    small: Collection[str] = (),
) -> Sent:
    """Read what a task needs, and send its parts; what it reads again is neither summed nor reported.

    The rows of `small` tables bring along what stands between them.
    """
    with uploads.opened(task.extents, memory) as files:
        first, again = begin(files, Counted(advance)), begin(files, SILENT)
        for extent in task.extents:
            files[extent.target].write_between(literals_in(layouts, extent, small))
        for dense in task.dense:
            first.move_dense(dense)
        for read in task.reads:
            (first if read.counts else again).move_rows(read.rows, values=read.values)
    return Sent(first.sketch, files.sent)


def send_elsewhere(
    work: Work[Sending[Source], SendTask[Dense, Rows], Sent],
    source: Source,
    tasks: Iterable[SendTask[Dense, Rows]],
    output: VersionOutput,
    executor: Executor,
    reporter: Reporter,
) -> ContentSketch:
    """Let other processes send the parts of an output; return the sums of the values that were read."""
    sketch = ContentSketch()
    with closing(executor.run(work, Sending(source, 0), tasks, reporter.advance)) as results:
        for sent in results:
            sketch.add(sent.sketch)
            output.take(sent.parts)
    return sketch
