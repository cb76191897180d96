"""A pass over the values of a source: each is read once, summed, and written at its planned offset.

Threads of this process take pieces. Other processes do tasks, which write staged files or send the parts of uploads, as
`commit/part_plan` has planned them. A task names what it reads by itself, because its process has no plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch, Fingerprint
from edl_ckpt.core.checkpoint.places import RowMarks
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES
from edl_ckpt.core.checkpoint.trust import Trust
from edl_ckpt.core.commit.interface import SharedTargets, VersionOutput
from edl_ckpt.core.commit.part_plan import (
    DenseBytes,
    Moved,
    PartsPlan,
    literals_in,
    part_tasks,
    plan_parts,
)
from edl_ckpt.core.commit.uploads import Extent, Sending, SentFiles, SharedUploads, TargetPart
from edl_ckpt.core.format.shard_layout import VersionLayout
from edl_ckpt.core.moving.sparse import SparsePair
from edl_ckpt.core.parallel import Advance, Executor, Resource, default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Counted, Reporter
from edl_ckpt.core.storage.interface import Sink

Place = TypeVar("Place")
Piece = TypeVar("Piece")


class Source(Resource, Protocol):
    """What a pass reads, opened."""

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        ...


Opened = TypeVar("Opened", bound=Source)
_Opened_co = TypeVar("_Opened_co", bound=Source, covariant=True)


class SourceValue(Protocol[_Opened_co]):
    """A source as a picklable value, without credentials."""

    def open(self) -> _Opened_co:
        """Return the same source in this process."""
        ...


class Stretch(NamedTuple, Generic[Place]):
    """A stretch as a task names it: its rows in the source, what of them goes to each target, and where that begins.

    It names only the targets that it goes to, so it is small however many there are.
    """

    place: Place
    counts: SparsePair
    """Rows, and bytes of ids."""
    route: SparsePair
    """Offsets of rows and of ids."""


Rows: TypeAlias = Stretch[Place] | tuple[str, ...]
"""A stretch, or the names of small tables."""


class Read(NamedTuple, Generic[Place]):
    """Rows that a task reads: their ids, and with `values` the rows; one task `counts` them for the fingerprint."""

    rows: Rows[Place]
    values: bool = True
    counts: bool = True


class MoveTask(NamedTuple, Generic[Place]):
    """What a task reads, and the parts of uploads that it sends."""

    dense: tuple[DenseBytes, ...] = ()
    reads: tuple[Read[Place], ...] = ()
    extents: tuple[Extent, ...] = ()


class Done(NamedTuple):
    """What a task answers: the sums of what it has counted, and the parts that it has sent."""

    sketch: ContentSketch
    parts: Sequence[TargetPart]


class Pass(ABC, Generic[Opened, Piece, Place]):
    """A pass over an opened source into `files`; `sketch` has the sums of what it has read.

    In another process it has no plan, and does the parts of one task.
    """

    doing: ClassVar[str]
    workers: int | None = None
    """Threads that read here; None for one a core, and for the proof as many as its storage can use."""
    proof_batch_bytes = VALUE_BATCH_BYTES
    proof_piece_bytes = PIECE_BYTES
    small: Collection[str] = ()
    """Tables that are written together with what stands between them."""
    parts: PartsPlan | None = None
    """How other processes send parts, where that is planned already."""
    part_memory_bytes: int | None = None
    """Memory for the open parts of uploads by this process; None for the default."""
    trust: Trust | None = None
    """What is known of the seal of a source that is a version."""

    def __init__(self, layouts: VersionLayout, source: Opened, reporter: Reporter) -> None:
        self.layouts = layouts
        self.source = source
        self.reporter = reporter
        self.files: Sequence[Sink] = ()
        self.sketch = ContentSketch()

    @property
    @abstractmethod
    def value_bytes(self) -> int:
        """Return the bytes of all values."""

    @abstractmethod
    def value(self) -> tuple[SourceValue[Opened], Callable[[Opened, Reporter], Pass[Opened, Any, Place]]]:
        """Return the source as a value, and what begins a pass over it in another process; both are picklable."""

    @abstractmethod
    def moved(self) -> Moved:
        """Return what moves, for the plan of parts."""

    @abstractmethod
    def write_between(self) -> None:
        """Write what stands between values, but for that among small tables."""

    @abstractmethod
    def pieces(self) -> Iterator[Piece]:
        """Yield all pieces, which one thread asks for."""

    @abstractmethod
    def do(self, piece: Piece) -> None:
        """Move the values of a piece."""

    @abstractmethod
    def tasks(self, executor: Executor) -> Iterator[MoveTask[Place]]:
        """Yield all values in tasks with small results, for staged files."""

    @abstractmethod
    def stretch(self, number: int) -> Stretch[Place]:
        """Return a stretch by its number in the survey."""

    @abstractmethod
    def move_dense(self, dense: DenseBytes) -> None:
        """Write bytes of a variable."""

    @abstractmethod
    def move_rows(self, rows: Rows[Place], *, values: bool = True) -> None:
        """Write the ids of some rows, and with `values` the rows."""

    def content(self) -> Fingerprint | ContentSketch:
        """Return what the values that were read must be proved to be."""
        return self.sketch

    def marks(self) -> Mapping[str, RowMarks] | None:
        """Return rows whose places are planned, for a proof by other processes."""
        return None

    def targets(self, task: MoveTask[Place]) -> set[int]:
        """Return the numbers of the targets that a task writes."""
        numbers = {self.layouts.dense_at(dense.name)[0] for dense in task.dense}
        for read in task.reads:
            stretch = read.rows if isinstance(read.rows, Stretch) else None
            numbers.update(range(len(self.layouts)) if stretch is None else stretch.counts.targets.tolist())
        return numbers

    def run(self) -> None:
        """Move everything by threads."""
        self.write_between()
        for _ in run_parallel(self.do, self.pieces(), self.workers or default_workers()):
            pass

    def hand_out(self, executor: Executor, output: VersionOutput) -> None:
        """Let other processes move everything."""
        targets, tasks, memory_bytes = output.share(), self.tasks(executor), 0
        if isinstance(targets, SharedUploads):
            moved = self.moved()
            parts = self.parts or plan_parts(moved, executor, targets.part_bytes)
            tasks, memory_bytes = self._send_tasks(moved, parts), parts.memory_bytes
        else:
            executor.share(targets.place)
            self.write_between()
        work = MoveWork(*self.value(), targets, memory_bytes)
        with closing(executor.run(work, Sending(self.source, 0), tasks, self.reporter.advance)) as results:
            for done in results:
                self.sketch.add(done.sketch)
                output.take(done.parts)

    def _send_tasks(self, moved: Moved, parts: PartsPlan) -> Iterator[MoveTask[Place]]:
        """Yield planned tasks with the places of stretches in place of their numbers."""
        for task in part_tasks(moved, parts.groups, parts.least_bytes, parts.task_bytes):
            reads: list[Read[Place]] = [Read(small.names, counts=small.counts) for small in task.small]
            reads += (Read(self.stretch(number), values, counts) for number, values, counts in task.stretches)
            yield MoveTask(task.dense, tuple(reads), task.extents)


@dataclass(frozen=True, slots=True)
class MoveWork(Generic[Opened, Place]):
    """A pass as a work for other processes.

    A task opens the files that it writes, and answers when they are safe and closed again.
    """

    source: SourceValue[Opened]
    begin: Callable[[Opened, Reporter], Pass[Opened, Any, Place]]
    targets: SharedTargets
    memory_bytes: int

    def open(self) -> Sending[Opened]:
        """Open the source in another process."""
        return Sending(self.source.open(), self.memory_bytes)

    def do(self, opened: Sending[Opened], task: MoveTask[Place], advance: Advance) -> Done:
        """Move what a task needs; what it reads again is neither summed nor reported."""
        first, again = self.begin(opened.source, Counted(advance)), self.begin(opened.source, SILENT)
        if isinstance(self.targets, SharedUploads):
            opens: AbstractContextManager[Sequence[Sink]] = self.targets.opened(task.extents, opened.memory)
        else:
            opens = self.targets.opened(first.targets(task))
        with opens as files:
            first.files = again.files = files
            for extent in task.extents:
                files[extent.target].write_between(literals_in(first.layouts, extent, first.small))
            for dense in task.dense:
                first.move_dense(dense)
            for rows, values, counts in task.reads:
                (first if counts else again).move_rows(rows, values=values)
        return Done(first.sketch, files.sent if isinstance(files, SentFiles) else ())
