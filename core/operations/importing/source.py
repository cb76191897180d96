"""Arrays as the source of a move: those that become dense variables, and the ids and vectors of tables.

Every process opens the files itself, those that the command has checked. The rows of a table stand in the order of the
source: a stretch is rows [start, end) of it. The plan of an import is that of a move, from arrays to a new version.

Arrays in files: each in one, or its rows in several that follow each other, as a cluster exports large tables.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate, groupby
from typing import Final, Self, TypeGuard

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.catalog.target import Target
from edl_ckpt.core.commit.interface import NewVersion
from edl_ckpt.core.converting.changes import LeftOut
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.moving.file_values import FileRows, FileValues, read_bytes
from edl_ckpt.core.moving.input import Input, InputFacts, SurveyedTable, generations_of
from edl_ckpt.core.moving.plan import ShardPlan, lay_out_survey
from edl_ckpt.core.moving.result import WriteResult
from edl_ckpt.core.moving.settings import ReshardSettings, settings_for
from edl_ckpt.core.moving.source_proof import SourceProof
from edl_ckpt.core.moving.survey import survey_source
from edl_ckpt.core.moving.write import ShardPlace, write_version
from edl_ckpt.core.proof.duplicates import check_reads
from edl_ckpt.core.proof.id_order import IdOrder
from edl_ckpt.core.reading.blocks import IdBlock
from edl_ckpt.core.reading.picklable import FileValue
from edl_ckpt.core.reading.pieces import IdsAt
from edl_ckpt.core.sources.elasticdl.target import PlacedVariable
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage.interface import RangeReader
from edl_ckpt.core.storage.location import Location


@dataclass(frozen=True, slots=True)
class ArrayData:
    """An array in a file: its bytes, C order, little-endian, begin at `offset`."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    reader: RangeReader
    offset: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    def checked(self, size_bytes: int) -> Self:
        """Return the array; CorruptError when so many bytes are there, and they are not those of its shape."""
        if self.size_bytes != size_bytes:
            message = f"{self.name!r} has {counted(size_bytes, 'byte')} (expected {self.size_bytes})"
            raise CorruptError(message, path=self.reader.path, offset=self.offset)
        return self

    def read(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        """Return bytes [start, start + size) of its elements: perhaps those of the source itself."""
        return read_bytes(self.reader, self.offset + start, np.empty(size, np.uint8))


class FileExtent(RangeReader):
    """Bytes of another file `base`, which begin at `begin`."""

    def __init__(self, base: RangeReader, begin: int, size_bytes: int) -> None:
        self.base, self.begin = base, begin
        self.path, self.size_bytes, self.bytes_read = base.path, size_bytes, 0

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        return self.base.read(self.begin + offset, size)


class RowNumbers(RangeReader):
    """The numbers from 0 on, as int64, which no file has."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.size_bytes, self.bytes_read = path, 8 * count, 0

    def read(self, offset: int, size: int) -> bytes:
        """Return whole numbers."""
        return np.arange(offset // 8, (offset + size) // 8, dtype="<i8").tobytes()


def row_numbers(vectors: ArrayData) -> ArrayData:
    """Return the numbers of the rows of an array, as an array."""
    count = vectors.shape[0] if vectors.shape else 0
    return ArrayData(f"{vectors.name} by row", DTYPES["int64"], (count,), RowNumbers(vectors.reader.path, count), 0)


class Joined(RangeReader):
    """Bytes of several files, one after the other, as those of one file."""

    def __init__(self, pieces: Sequence[FileExtent]) -> None:
        self.pieces = pieces
        self._starts = list(accumulate((piece.size_bytes for piece in pieces), initial=0))
        self.path, self.size_bytes = pieces[0].path, self._starts[-1]
        self.block_bytes, self.bytes_read = pieces[0].base.block_bytes, 0

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on."""
        number, done = bisect_right(self._starts, offset) - 1, 0
        while done < len(buffer):
            piece, within = self.pieces[number], offset + done - self._starts[number]
            count = min(piece.size_bytes - within, len(buffer) - done)
            piece.base.read_into(piece.begin + within, buffer[done : done + count])
            done, number = done + count, number + 1
        self.bytes_read += done

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        for piece in self.pieces:
            piece.base.check_unchanged()


def value_of(location: Location, reader: RangeReader) -> FileValue:
    """Return a file that was opened by its path, with the options of a location, as a value; the first of several."""
    return FileValue.of(location.with_url(reader.path).split()[0], reader)


def for_others(location: Location, reader: RangeReader) -> RangeReader:
    """Return a reader of the same files that can be pickled: another process opens them at its first read."""
    if isinstance(reader, RowNumbers):
        return reader
    if not isinstance(reader, Joined):
        return value_of(location, reader).open()
    return Joined([FileExtent(for_others(location, p.base), p.begin, p.size_bytes) for p in reader.pieces])


def joined(name: str, parts: Sequence[ArrayData | None], path: str) -> ArrayData:
    """Return arrays that follow each other as one; CorruptError for those that cannot be one."""
    known = [part for part in parts if part is not None]
    forms = {(part.dtype, part.shape[1:]) for part in known}
    if len(known) != len(parts) or len(forms) != 1 or not all(part.shape for part in known):
        raise CorruptError(f"the notes on the parts of {name!r} are damaged", path=path)
    if len(known) == 1:
        return replace(known[0], name=name)
    reader = Joined([FileExtent(part.reader, part.offset, part.size_bytes) for part in known])
    rows = sum(part.shape[0] for part in known)
    return ArrayData(name, known[0].dtype, (rows, *known[0].shape[1:]), reader, 0)


def naming(names: object) -> TypeGuard[list[str]]:
    """Say whether something from a document is a list of names."""
    return isinstance(names, list) and bool(names) and all(isinstance(name, str) for name in names)


IDS_AT_ONCE: Final = 1 << 16
"""Ids that are looked at together: 512 KiB."""
_ID_BYTES: Final = 8
"""Bytes of an id in memory, however narrow it is in the file."""


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """The arrays of a table: ids [n] and vectors [n, dim]; `initializer` is that of rows for new ids."""

    name: str
    ids: ArrayData
    vectors: ArrayData
    initializer: str

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.ids.shape[0]

    @property
    def form(self) -> SurveyedTable:
        """Return what a survey has of the table."""
        return SurveyedTable(TableInfo(self.name, self.vectors.shape[1], self.initializer), self.vectors.dtype)

    def read_ids(self, start: int, end: int) -> bulk.I64:
        """Return ids [start, end) as int64: perhaps those of the source itself, so do not change them."""
        size = self.ids.dtype.itemsize
        data = self.ids.read(start * size, (end - start) * size)
        return data.view(np.dtype(self.ids.dtype.name).newbyteorder("<")).astype(np.int64, copy=False)

    def check_unique(self, order: IdOrder) -> None:
        """Raise CorruptError when an id occurs twice; ids that ascend are not read again."""
        starts = range(0, self.rows, IDS_AT_ONCE)
        reads = [partial(self.read_ids, start, min(start + IDS_AT_ONCE, self.rows)) for start in starts]
        check_reads(self.name, reads, order, path=self.ids.reader.path)


class NamedArrays(Input):
    """All arrays of a source by what they become: dense variables by name, and tables.

    Without a `location` they are in memory, and only this process reads them.
    """

    def __init__(
        self, dense: Mapping[str, ArrayData], tables: Sequence[ImportedTable], location: Location | None = None
    ) -> None:
        self._dense = dense
        self._tables = tables
        self._location = location
        arrays = [*dense.values(), *(array for table in tables for array in (table.ids, table.vectors))]
        self._left_out: tuple[LeftOut, ...] = ()
        self.proof = SourceProof()
        self.size_bytes = sum(array.size_bytes for array in arrays)
        """The bytes of all elements."""
        self.readers = list({id(array.reader): array.reader for array in arrays}.values())
        """The opened files, each once."""

    @property
    def place(self) -> str:
        """Return the URL of the files; '' for arrays in memory."""
        return "" if self._location is None else self._location.url

    def leave_out(self, left_out: Sequence[LeftOut]) -> None:
        """Note what the source has and no shard contains."""
        self._left_out = tuple(left_out)

    @property
    def bytes_read(self) -> int:
        """Return how many bytes of the files were read so far."""
        return sum(reader.bytes_read for reader in self.readers)

    @property
    def facts(self) -> InputFacts:
        """Return what the arrays say of themselves; ids have their bytes in memory."""
        return InputFacts(
            variables=tuple(PlacedVariable(name, a.dtype, a.shape, a.size_bytes) for name, a in self._dense.items()),
            tables=tuple(table.form for table in self._tables),
            id_bytes=_ID_BYTES * sum(table.rows for table in self._tables),
            value_bytes=self.size_bytes - sum(table.ids.size_bytes for table in self._tables),
            round_trips=any(reader.block_bytes for reader in self.readers),
            left_out=self._left_out,
        )

    @property
    def identity(self) -> object:
        """Return the generations of the files, and where each array lies in them; '' for arrays in memory."""
        files = generations_of(self.readers)
        if not files:
            return ""
        dense = [(name, *_place(array)) for name, array in self._dense.items()]
        tables = [(t.name, t.initializer, _place(t.ids), _place(t.vectors)) for t in self._tables]
        return files, dense, tables

    def value(self) -> NamedArrays:
        """Return the arrays as a value, for other processes; those in memory stay in this one."""
        place = self._location
        readers = {id(file): file if place is None else for_others(place, file) for file in self.readers}

        def moved(array: ArrayData) -> ArrayData:
            return replace(array, reader=readers[id(array.reader)])

        tables = [replace(table, ids=moved(table.ids), vectors=moved(table.vectors)) for table in self._tables]
        return NamedArrays({name: moved(array) for name, array in self._dense.items()}, tables)

    def open(self) -> Self:
        """Return the arrays in another process; each file is opened by its first read."""
        return self

    def stretches(
        self,
        task_bytes: int,
        job: Job,  # noqa: ARG002 - all rows go out
        *,
        values: bool,
    ) -> Iterator[IdsAt]:
        """Yield the rows of all tables, in the order of the source."""
        for number, table in enumerate(self._tables):
            row_bytes = _ID_BYTES + values * table.form.row_bytes
            step = max(task_bytes // row_bytes // IDS_AT_ONCE, 1) * IDS_AT_ONCE
            for start in range(0, table.rows, step):
                yield IdsAt(0, number, 0, start, min(start + step, table.rows), first_row=start)

    def cut(self, ids: IdsAt, piece_bytes: int) -> Iterator[IdsAt]:
        """Cut a stretch into pieces of so many rows that their ids are `piece_bytes` in memory."""
        step = max(piece_bytes // _ID_BYTES, 1)
        for start in range(ids.start, ids.end, step):
            yield ids._replace(start=start, end=min(start + step, ids.end), first_row=start)

    def numbered(
        self,
        stretches: Sequence[IdsAt],
        orders: Sequence[IdOrder],
        job: Job,  # noqa: ARG002 - ids in disorder are read here, in less memory than any bound
    ) -> list[IdsAt]:
        """Return stretches with their rows; CorruptError when a table has an id twice."""
        for table, pairs in groupby(zip(stretches, orders, strict=True), key=lambda pair: pair[0].table):
            self._tables[table].check_unique(reduce(IdOrder.followed_by, (order for _, order in pairs)))
        return [ids._replace(rows=order.rows) for ids, order in zip(stretches, orders, strict=True)]

    def name_of(self, ids: IdsAt) -> str:
        """Return the name of the table that rows belong to."""
        return self._tables[ids.table].name

    def bytes_of(self, ids: IdsAt) -> int:
        """Return the bytes of ids in memory."""
        return _ID_BYTES * (ids.end - ids.start)

    def read_ids(self, ids: IdsAt) -> IdBlock:
        """Return the ids of some rows."""
        return IdBlock(self._tables[ids.table].read_ids(ids.start, ids.end))

    def rows_of(self, ids: IdsAt) -> FileRows:
        """Return where the vectors of a table are."""
        vectors = self._tables[ids.table].vectors
        end = vectors.offset + vectors.size_bytes
        return FileRows(vectors.reader, vectors.offset, end, self._tables[ids.table].form.row_bytes)

    def dense(self, name: str) -> FileValues:
        """Return where the values of a variable are."""
        return FileValues(self._dense[name].reader, self._dense[name].offset)

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""
        for reader in self.readers:
            reader.check_unchanged()

    def close(self) -> None:
        """Close all files."""
        for reader in self.readers:
            reader.close()


def _place(array: ArrayData) -> tuple[object, ...]:
    """Return where the elements of an array lie, and what they are."""
    return array.name, array.dtype.name, array.shape, array.reader.path, array.offset


@dataclass(frozen=True, slots=True, eq=False)
class ArraysPlan(ShardPlan):
    """All that an import will write, and where; `arrays` are those that it reads, still open."""

    arrays: NamedArrays

    @property
    def source_ref(self) -> str:
        """Return the file or the directory with the arrays."""
        return self.arrays.place


def prepare_import(arrays: NamedArrays, target: Target, ps_num: int, job: Job) -> tuple[ArraysPlan, ReshardSettings]:
    """Read the ids of arrays; return the plan to write them for `ps_num` servers, and its settings.

    Raises UsageError for a number of servers that cannot be, CorruptError for an id that a table has twice.
    """
    survey = survey_source(arrays, ps_num, number=target.number, job=job)
    plan = ArraysPlan(target, *lay_out_survey(survey, target), arrays)
    return plan, settings_for(plan, executor=job.executor)


def execute_import(
    plan: ArraysPlan,
    settings: ReshardSettings,
    job: Job,
    *,
    purpose: str = "import",
    wait_seconds: float = LOCK_WAIT_SECONDS,
) -> WriteResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    The source must still be open. `purpose` names the command to those that wait for the lock. Raises LockedError when
    another command holds the lock for longer than `wait_seconds`, NoSpaceError before anything is written when there is
    no room, EdlCkptError when the proof fails.
    """
    target = plan.target
    new = NewVersion(
        target.layout, target.number, purpose, memory_bytes=settings.part_memory_bytes, reporter=job.reporter
    )
    return write_version(
        plan,
        ShardPlace(target, new),
        settings,
        nullcontext(plan.arrays),
        job.limited(settings.workers),
        doing="importing",
        bytes_read=plan.survey.bytes_read - plan.arrays.bytes_read,
        wait_seconds=wait_seconds,
    )
