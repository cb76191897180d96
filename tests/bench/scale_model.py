"""A version of terabytes without a value, and an executor that does none of its tasks but counts all of them.

Shards are files of their full size that are nearly all holes: what stands between values is there, so the command opens
and lays out everything as ever. The executor answers each task as a worker would whose ids are spread evenly. So all
that the command itself does is real: the survey, the plan, every task as its bytes, the proof, the seal, the rename.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import gcd
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from edl_ckpt.core.checkpoint.duplicates import IdOrder
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.places import DenseAt, IdsAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.values import Values, ValuesWork, _owned
from edl_ckpt.core.cluster import worker
from edl_ckpt.core.cluster.executor import bytes_of_task
from edl_ckpt.core.commit.staging import Staging
from edl_ckpt.core.format import bulk
from edl_ckpt.core.format.model import DTYPES, TableInfo
from edl_ckpt.core.format.names import ELASTICDL
from edl_ckpt.core.format.placement import variable_owner
from edl_ckpt.core.format.shard_layout import PlacedTable, PlacedVariable, lay_out_shard
from edl_ckpt.core.progress import SILENT
from edl_ckpt.core.storage import files

F32 = DTYPES["float32"]


@dataclass(frozen=True)
class Scale:
    """A version: servers, tables as (rows, dim), bytes of an id, dense variables of a MiB."""

    ps_num: int
    tables: tuple[tuple[int, int], ...]
    id_bytes: int = 5
    variables: int = 100

    @property
    def size_bytes(self) -> int:
        """Return about the bytes of the version."""
        return sum(rows * (4 * dim + self.id_bytes) for rows, dim in self.tables) + (self.variables << 20)

    @property
    def rows(self) -> int:
        """Return the rows of all tables."""
        return sum(rows for rows, _ in self.tables)


def write_holes(location: Path, scale: Scale) -> None:
    """Write the shards of a version, whose values and ids are holes."""
    directory = location / ELASTICDL.version_dir(1)
    directory.mkdir(parents=True)
    infos = [TableInfo(f"table_{t:04}", dim, "uniform") for t, (_, dim) in enumerate(scale.tables)]
    names = [f"dense_{v}/kernel:0" for v in range(scale.variables)]
    for ps_id in range(scale.ps_num):
        parts = []
        for info, (rows, _) in zip(infos, scale.tables, strict=True):
            own = rows // scale.ps_num + (ps_id < rows % scale.ps_num)
            parts.append(PlacedTable(info.name, F32, info.dim, own, own * scale.id_bytes))
        mine = [PlacedVariable(n, F32, (1 << 18,), 1 << 20) for n in names if variable_owner(n, scale.ps_num) == ps_id]
        layout = lay_out_shard(1, infos, mine, parts)
        with (directory / ELASTICDL.shard_file(ps_id, scale.ps_num)).open("xb") as file:
            os.ftruncate(file.fileno(), layout.size_bytes)
            for offset, data in layout.between:
                os.pwrite(file.fileno(), data, offset)


@contextmanager
def holes_allowed() -> Iterator[None]:
    """Let staged files be holes: no disk of ours has room for them.

    They are not flushed either: ext4 sets 8 MiB aside around each piece of a file of holes until the file is closed. A
    flush of all of them at once finds the disk full.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(files, "allocate", os.ftruncate))
        stack.enter_context(patch.object(files.PreallocatedFile, "flush", lambda _: None))
        stack.enter_context(patch.object(Staging, "check_space", lambda *_: None))
        yield


@dataclass
class Pass:
    """What was counted of one pass of tasks."""

    work: str
    tasks: int = 0
    task_bytes: int = 0
    """Bytes of all tasks, as they are sent."""
    largest_task: int = 0
    result_bytes: int = 0
    largest_result: int = 0
    work_bytes: int = 0
    """Bytes of what all tasks share, as each worker gets it."""
    read: list[int] = field(default_factory=list)
    """Of each task, the bytes that a worker reads for it."""
    written: list[int] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    """Of each task, the files that it opens for writing."""
    seconds: float = 0.0
    """CPU of the command from its first task to its last, without what the executor stands for."""

    def add(self, other: Pass) -> None:
        """Add another part of the same pass."""
        for name in ("tasks", "task_bytes", "result_bytes", "work_bytes", "read", "written", "opened", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.largest_task = max(self.largest_task, other.largest_task)
        self.largest_result = max(self.largest_result, other.largest_result)


class Counting:
    """An executor that says what a cluster of so many threads would be given, and answers for its workers."""

    elsewhere = True

    def __init__(self, workers: int, threads: int) -> None:
        self.threads, self._all = threads, workers * threads
        self.passes: list[Pass] = []
        self.own_seconds = 0.0
        """CPU of this executor itself, which a command on a cluster does not have."""

    def task_bytes(self, total_bytes: int) -> int:
        """Return what a cluster of these threads says."""
        return bytes_of_task(total_bytes, self._all)

    def share(self, place: Any, size_bytes: int = 0) -> None:
        """Do nothing."""

    def check_temporary(self, size_bytes: int, tasks: int) -> None:
        """Do nothing."""

    def bytes_read(self) -> int:
        """Return 0."""
        return 0

    def run(self, work: Any, opened: Any, tasks: Iterable[Any], advance: Any) -> Generator[Any, None, None]:
        """Yield an answer to each task."""
        found = Pass(type(work).__name__.strip("_"))
        self.passes.append(found)
        found.work_bytes = len(worker.Published.of(work).data)
        checkpoint = getattr(opened, "checkpoint", getattr(opened, "source", opened))
        begin, own = time.process_time(), self.own_seconds
        for task in tasks:
            data = worker.packed(task)
            mine = time.process_time()
            answer, read, written, targets = _answer(work, checkpoint, task)
            result = pickle.dumps(worker.Done(answer, 0, 0.1, "a worker", read))
            self.own_seconds += time.process_time() - mine
            found.tasks += 1
            found.task_bytes += len(data)
            found.largest_task = max(found.largest_task, len(data))
            found.result_bytes += len(result)
            found.largest_result = max(found.largest_result, len(result))
            found.read.append(read)
            found.written.append(written)
            found.opened.append(targets)
            advance(read)
            yield pickle.loads(result).result
        found.seconds = time.process_time() - begin - (self.own_seconds - own)


def _answer(work: Any, checkpoint: Checkpoint, task: Any) -> tuple[Any, int, int, int]:
    """Return (the result of a task, the bytes that it reads, those that it writes, the files that it writes)."""
    from edl_ckpt.core.checkpoint import unique
    from edl_ckpt.core.moving.passes import Done, MoveWork
    from edl_ckpt.core.operations.reshard import survey  # the works of a reshard

    match work:
        case survey._StretchWork():
            done = [_counted(checkpoint, place, work.ps_num) for place in task]
            return done, sum(place.end - place.start for place in task), 0, 0
        case unique._UniqueWork():
            return None, sum(place.end - place.start for places, _ in task for place in places), 0, 0
        case MoveWork():
            sketch, size = ContentSketch(), 0
            for dense in task.dense:
                sketch.variables[dense.name] = bulk.new_sketch(checkpoint.find_variable(dense.name)[1].size_bytes)
                size += dense.size
            for read in task.reads:
                ids = read.rows.place
                entry = ids.piece(checkpoint).entry
                sketch.tables[entry.name] = bulk.new_sketch(entry.row_bytes)
                size += ids.end - ids.start + ids.rows * entry.row_bytes
            return Done(sketch, ()), size, size, len(work.begin(checkpoint, SILENT).targets(task))
        case ValuesWork():
            return _values(work, checkpoint, task)
        case _:
            if type(work).__name__ != "_CountWork":
                raise TypeError(f"{type(work).__name__} is not simulated")
            rows = [_rows(place.piece(checkpoint).entry, place, place.end) for place in task]
            rows = [n - _rows(p.piece(checkpoint).entry, p, p.start) for n, p in zip(rows, task, strict=True)]
            return rows, sum(place.end - place.start for place in task), 0, 0


def _rows(entry: Any, place: IdsAt, at: int) -> int:
    """Return how many rows a table has before an offset in its ids."""
    run = entry.ids[place.run]
    return int(entry.rows * (at - run.start) // (run.end - run.start))


def _counted(checkpoint: Checkpoint, place: IdsAt, to_ps: int) -> Any:
    """Return the counts of a stretch whose ids are spread evenly over the targets of its shard's remainder."""
    from edl_ckpt.core.moving.sparse import SparsePair
    from edl_ckpt.core.operations.reshard.survey import _Counted

    piece = place.piece(checkpoint)
    total = _rows(piece.entry, place, place.end) - _rows(piece.entry, place, place.start)
    groups = gcd(piece.shard.file.ps_num, to_ps)
    targets = np.arange(piece.shard.file.ps_id % groups, to_ps, groups)
    parts = np.arange(len(targets) + 1)
    rows, id_bytes = np.zeros(to_ps, np.int64), np.zeros(to_ps, np.int64)
    rows[targets] = np.diff(total * parts // len(targets))
    id_bytes[targets] = np.diff((piece.end - piece.start) * parts // len(targets))
    order = IdOrder(total, 0, 1 << 34, 0, 1 << 34, ascending=False, placed=True)
    return _Counted(SparsePair.of(rows, id_bytes, targets), order)


def _values(work: ValuesWork, checkpoint: Checkpoint, task: Any) -> tuple[Values, int, int, int]:
    found, read = Values(), 0
    for place in task:
        piece = place.piece(checkpoint)
        if isinstance(place, DenseAt):
            found.sketch.variables[piece.entry.name] = bulk.new_sketch(piece.entry.size_bytes)
            read += place.size
        else:
            found.sketch.tables[piece.entry.name] = bulk.new_sketch(piece.entry.row_bytes)
            read += place.end - place.start + place.rows * piece.entry.row_bytes
    summed = 0
    for shard, numbers in _owned(checkpoint, task, work.bounds).items():
        found.sums[shard] = {number: f"{number:032x}" for number in numbers}
        bounds = work.bounds[shard][numbers]
        summed += int((bounds[:, 1] - bounds[:, 0]).sum())
    return found, max(read, summed), 0, 0
