"""The runs of large tables on object storage: one object for each table, in which each run is some parts of an upload.

The command begins the upload and completes it when all runs are there, so a late task changes nothing of it. Each run
has its ids, and behind them its rows. The index is an object of its own: what belongs to a range is one stretch of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast

import numpy as np

from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.places import IdsAt
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.commit.uploads import Extent, Sending, SharedUploads, TargetPart
from edl_ckpt.core.format import bulk
from edl_ckpt.core.operations.export.runs import Found, Runs, RunsReader, in_order, sorted_run
from edl_ckpt.core.parallel import Advance, run_parallel
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.location import Location

OPEN_PARTS_BYTES: Final = 48 << 20
"""What the open parts of a worker may take: a task fills one after the other."""
_READERS: Final = 8
"""Threads of a task that read pieces of runs: each is a wait, and few bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class SentRuns(Runs):
    """The runs of a table as a value; `path` and `index` are the names of two objects at a location."""

    location: Location = field(kw_only=True)
    index: str = field(kw_only=True)

    @property
    def bases(self) -> bulk.I64:
        """Return where each run begins, and where the last one ends: int64 [count + 1]."""
        offsets: bulk.I64 = self.firsts * (8 + self.form.width)
        return offsets

    @property
    def run_ids_at(self) -> bulk.I64:
        """Return where the ids of each run begin: int64 [count]."""
        return self.bases[:-1]

    @property
    def run_rows_at(self) -> bulk.I64:
        """Return where the rows of each run begin: int64 [count]."""
        offsets: bulk.I64 = self.bases[:-1] + 8 * np.diff(self.firsts)
        return offsets

    @property
    def size_bytes(self) -> int:
        """Return the bytes of the object."""
        return int(self.bases[-1])

    def opened(self) -> RunsReader:
        """Return a reader of the rows in order."""
        return _SentRunsReader(self)


class _SentRunsReader(RunsReader):
    """The runs of a table, opened on object storage; several pieces are read at a time."""

    def __init__(self, runs: SentRuns) -> None:
        self._runs = runs
        store = open_store(runs.location)
        self._object: RangeReader = store.open(store.path(runs.path))
        self._places: RangeReader = store.open(store.path(runs.index))

    def __exit__(self, *_: object) -> None:
        self._object.close()
        self._places.close()

    def _begins(self, first: int, last: int) -> bulk.I64:
        found = np.empty((last + 1 - first, self._runs.count), np.int64)
        self._places.read_into(8 * first * self._runs.count, found.reshape(-1).view(np.uint8).data)
        return cast("bulk.I64", found.T)

    def _read_all(self, wanted: Sequence[tuple[int, memoryview]]) -> None:
        for _ in run_parallel(lambda each: self._object.read_into(*each), wanted, min(_READERS, len(wanted))):
            pass


class SentRunTask(NamedTuple):
    """A run to be sent: the numbers of the table and of the run, the pieces that it is made of, and its parts."""

    table: int
    run: int
    places: tuple[IdsAt, ...]
    extent: Extent


class SentRun(NamedTuple):
    """What a task answers: the sums of what was read, the index of the run, int64 [ranges + 1], and its parts."""

    found: Found
    begins: bulk.I64
    parts: list[TargetPart]


@dataclass(frozen=True, slots=True)
class SendRunsWork:
    """The pass over large tables; a task is a run."""

    source: CheckpointValue
    runs: Mapping[int, SentRuns]
    uploads: SharedUploads

    def open(self) -> Sending[Checkpoint]:
        """Open the checkpoint in another process."""
        return Sending(self.source.open(), OPEN_PARTS_BYTES)

    def do(self, opened: Sending[Checkpoint], task: SentRunTask, advance: Advance) -> SentRun:
        """Read some pieces, and send their run."""
        runs, found = self.runs[task.table], Found()
        ids, rows, order, begins = sorted_run(opened.source, runs, task.run, task.places, found, advance)
        width, base = runs.form.width, task.extent.edges[0]
        with self.uploads.opened([task.extent], opened.memory) as files:
            file = files[task.table]
            file.write(base, ids.view(np.uint8).data)
            for start, some in in_order(rows, order):
                file.write(base + ids.nbytes + start * width, some.reshape(-1).data)
        return SentRun(found, begins, files.sent)
