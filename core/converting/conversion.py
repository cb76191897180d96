"""A conversion: what goes out of an opened version into the files of a system, planned to the byte, then written.

The plan is arithmetic on headers and ids. Writing reads each value once and sums it as it goes out; the proof reads
the new files through their own format, and compares the sums.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.base.thread_memory import ThreadMemory
from edl_ckpt.core.base.words import escaped
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.converting.changes import Changes, LeftOut, Outgoing, OutTable, OutVariable, outgoing
from edl_ckpt.core.converting.described import stale_dtypes
from edl_ckpt.core.converting.destinations import DESTINATIONS
from edl_ckpt.core.converting.destinations.interface import Cut, Destination, Given
from edl_ckpt.core.converting.rows import CountedRows, RowWriter, Spread, count_pieces, id_places
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.shapes import check_dimensions
from edl_ckpt.core.model.tables import Encoding
from edl_ckpt.core.proof.duplicates import check_unique_ids
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.reading.blocks import IdPiece, read_piece
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.row_batches import row_batches
from edl_ckpt.core.reading.stored_sums import NO_SUMS, StoredSums, SumsCompared
from edl_ckpt.core.sorting.partition import PartitionedTable, Ranges, parts_needed
from edl_ckpt.core.sources.dcp.tables import is_table_name
from edl_ckpt.core.sources.steps import source as steps
from edl_ckpt.core.storage.interface import OnDisk, RangeReader, Sinks

_PIECE_BYTES: Final = 4 << 20
_MOST_NAME_BYTES: Final = 255
_ONE_BUCKET: Final = Spread(1, None)
_ANY_DIMENSIONS: Final = frozenset({"safetensors"})
"""Systems whose readers know no limit of dimensions."""
_WHOLE: Final = frozenset({"dcp", "safetensors"})
"""Systems whose tensors are written as they are, whatever they mean: row numbers stay, and so do ids beside them."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A planned conversion; the source must be open until it is written."""

    source: Checkpoint
    whole: Checkpoint | None
    """The same files as tensors alone, where those are written as they are."""
    destination: Destination
    counted: Mapping[str, CountedRows]
    """The tables with ids, by their new names."""
    changes: Changes

    @property
    def out(self) -> Outgoing:
        """Return what goes out."""
        return self.destination.out

    @property
    def rows(self) -> int:
        """Return the rows of all tables that go out, those of companions too."""
        if self.whole is not None:
            return sum(map(self._rows_of, self.source.table_names))
        return sum(self.counted[t.name].total if t.name in self.counted else t.rows for t in self.out.tables)

    def _rows_of(self, table: str) -> int:
        """Return the rows of a table that goes out as tensors; 0 where its tensor is left out."""
        assert self.whole is not None  # noqa: S101 - the caller has looked
        rows = sum(entry.rows for _, entry in self.source.entries(table))
        if table not in self.whole:
            return rows
        shapes = [v.shape for v in self.out.variables if v.source == table]
        kept = shapes == [self.whole.find_variable(table)[1].shape]
        return rows if kept else sum(shape[0] for shape in shapes)

    def opened(self, name: str) -> AbstractContextManager[RangeReader]:
        """Return a file of the source that goes along, open; on no way over a link where its contents are known."""
        contents = self.destination.given.contents
        if contents is not None and name in contents.tree:
            return contents.open(name)
        return nullcontext(self.source.files[self.source.version.path_of(name)])

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(self.destination.files.values())


def plan_conversion(
    source: Checkpoint,
    system: str,
    ranks: int,
    changes: Changes,
    job: Job,
    *,
    number: int,
    most_file_bytes: int | None = None,
    contents: Contents | None = None,
) -> Conversion:
    """Return how a version is written in the files of a system, from headers and ids; nothing is written.

    `contents` are all entries of its directory: with them, hidden files go along too.
    Raises UnsupportedError for what the system cannot hold, UsageError and NotFoundError for changes that cannot be,
    RefusedError where a new file has the name of one that goes along.
    """
    if system not in DESTINATIONS:
        known = ", ".join(DESTINATIONS)
        raise UnsupportedError(f"nothing is written for {system}; it can be {known}", path=source.version.ref)
    is_whole = system in _WHOLE and source.version.layout.system == system
    whole = as_tensors(source) if is_whole else None
    out = outgoing(source, changes) if whole is None else _tensors(source, whole, changes)
    if whole is not None:
        _warn_of_lost_tables(source, out, job)
    destination = DESTINATIONS[system](Given(source, out, ranks, number, most_file_bytes, whole, contents))
    destination.out.check_names(source.version.ref)
    for variable in destination.out.variables if system not in _ANY_DIMENSIONS else ():
        check_dimensions(variable.name, variable.shape, source.version.ref)
    _check_files(source, destination)
    counted: dict[str, CountedRows] = {}
    gone: list[LeftOut] = []
    destination.out.check_some(source.version.ref)
    places = id_places(source, job) if destination.out.tables else {}
    if any(not table.by_number for table in destination.out.tables):
        check_unique_ids(source, job.silent())
    for table in destination.out.tables:
        spread = destination.spread(table)
        if spread is None and table.by_number:
            continue
        rows = count_pieces(
            source, table, places[table.source], spread or _ONE_BUCKET, job, varints=destination.varints
        )
        if table.leaves_out is not None:
            count = table.rows - rows.total
            gone.append(LeftOut(table.name, count, count * table.row_bytes, table.leaves_out.rows.text))
        if spread is None:
            _check_matrix(rows)
            continue
        _check_signs(source, rows)
        destination.check(rows)
        counted[table.name] = rows
    destination.out = replace(destination.out, left_out=(*destination.out.left_out, *gone))
    destination.lay_out(counted)
    _check_names(destination)
    _check_apart(source, destination)
    _warn_of_stale_dtypes(source, destination, changes, job)
    return Conversion(source, whole, destination, counted, changes)


def _warn_of_lost_tables(source: Checkpoint, out: Outgoing, job: Job) -> None:
    """Warn of tables that no loader finds under their new names; they go out as plain tensors."""
    is_dcp = source.version.layout.system == "dcp"
    for variable in out.variables if is_dcp else ():
        is_table = source.has_table(variable.source) and not source.infos[variable.source].companion_of
        if is_table and not is_table_name(variable.name):
            job.reporter.warn(
                f"{variable.name!r} is no name of a table, so {variable.source!r} becomes a plain tensor;"
                " the names of TorchRec end with embedding_bags.TABLE.weight"
            )


def _warn_of_stale_dtypes(source: Checkpoint, destination: Destination, changes: Changes, job: Job) -> None:
    if changes.cast:
        for sentence in stale_dtypes(source, destination.carried, destination.out.variables):
            job.reporter.warn(sentence)


def _check_names(destination: Destination) -> None:
    """Raise UnsupportedError for a file whose name no disk takes."""
    for path in destination.files:
        if max(len(os.fsencode(part)) for part in path.split("/")) > _MOST_NAME_BYTES:
            hint = "give a shorter name to its table: --rename OLD=NEW"
            raise UnsupportedError(f"the name of a file would have over {_MOST_NAME_BYTES} bytes: {path}", hint=hint)


def _check_apart(source: Checkpoint, destination: Destination) -> None:
    """Raise RefusedError where a new file would take the name of a file that the version has and nothing was read of.

    That may be of an earlier save, or of a bundle that is not the newest; only its owner knows.
    """
    contents = destination.given.contents
    others = {*destination.carried, *(contents.tree if contents else ())} - destination.own_names
    for name in destination.new_files:
        if name in others:
            raise RefusedError(
                f"the version does not use this file, and a new one needs its name ({escaped(name)})",
                path=source.version.path,
                hint="nothing was changed; move it away, or write another number of files",
            )


def _check_signs(source: Checkpoint, rows: CountedRows) -> None:
    """Raise UnsupportedError for unsigned ids that would be negative."""
    table = rows.table.source
    runs = [run for _, entry in source.entries(table) for run in entry.ids]
    if rows.low < 0 and any(run.encoding is Encoding.UINT64 for run in runs):
        raise UnsupportedError(f"table {table!r} has ids of uint64 from 2^63 on, and ids are int64")


def _check_files(source: Checkpoint, destination: Destination) -> None:
    """Raise UnsupportedError for a table or a variable in a file that would go along: it is of a second system."""
    for shard in source.shards if destination.carried else ():
        values = [(entry.name, entry.values.file) for entry in shard.tables]
        values += [(entry.name, entry.values.file) for entry in shard.variables]
        for name, number in values:
            path = shard.file.files[number].path if number < len(shard.file.files) else ""
            if source.version.name_of(path) in destination.carried:
                message = f"{name!r} is in a file that {destination.system} does not read: nothing was written"
                raise UnsupportedError(message, path=path, hint="export each system's part: export --format FORMAT")


def as_tensors(source: Checkpoint) -> Checkpoint:
    """Return the same open files as tensors alone."""
    shards = steps.index(source.version, source.files, tables=False)
    return Checkpoint(source.version, shards, source.files, source.store)


def _tensors(source: Checkpoint, whole: Checkpoint, changes: Changes) -> Outgoing:
    """Return the tensors that go out; those that lie in several boxes are spread over ranks again."""
    if changes.rows:
        message = f"rows of {source.version.layout.system} have numbers: none can be left out"
        raise UnsupportedError(message, path=source.version.ref, hint="try: export --format tfra or dynamicemb")
    sizes = {source.table_name(name): rows for name, rows in changes.resize}
    for name in sizes:
        if owner := source.infos[name].companion_of:
            raise UsageError(f"{name!r} has the rows of {owner!r}: resize that table", path=source.version.ref)
        if any(run.is_stored for _, entry in source.entries(name) for run in entry.ids):
            message = f"table {name!r} has managed collision: nothing proves that another size keeps its raw ids"
            raise UnsupportedError(message, path=source.version.ref)
    plain = replace(
        changes, variables=(*changes.tables, *changes.variables), tables=(), drop_companions=False, resize=()
    )
    out = outgoing(whole, plain, meaning=source)
    kept, owners = {v.source for v in out.variables}, {n: i.companion_of for n, i in source.infos.items()}
    without = changes.drop_companions or changes.drop
    gone = {n for n, owner in owners.items() if owner and without and (changes.drop_companions or owner not in kept)}
    out = out.without(gone, "a companion of its table")
    new = sizes | {n: sizes[i.companion_of] for n, i in source.infos.items() if i.companion_of in sizes}
    return replace(out, variables=tuple(_in_slabs(whole, variable, new) for variable in out.variables))


def _in_slabs(whole: Checkpoint, variable: OutVariable, sizes: Mapping[str, int]) -> OutVariable:
    if variable.is_item:
        return variable
    shard, entry = whole.find_variable(variable.source)
    is_spread = entry.values.file >= len(shard.file.files)
    shape = (sizes.get(variable.source, variable.shape[0]), *variable.shape[1:]) if variable.shape else ()
    return replace(variable, in_slabs=is_spread, shape=shape)


def _check_matrix(rows: CountedRows) -> None:
    """Raise UnsupportedError unless the ids of a table are 0 to n - 1."""
    if rows.total and (rows.low, rows.high) != (0, rows.total - 1):
        raise UnsupportedError(
            f"table {rows.table.source!r} has {rows.total:,} rows with ids {rows.low:,} to {rows.high:,};"
            f" a matrix has ids 0 to {rows.total - 1:,}",
            hint="nothing was written; try: export as safetensors with --remap, then export that file with --map",
        )


@dataclass(slots=True)
class Writing:
    """A conversion while it is written, into `sinks` with the numbers of its files."""

    plan: Conversion
    sinks: Sinks
    job: Job
    directory: str
    """Where temporary files of tables in disorder go."""
    sums: StoredSums
    """What is summed of the values that have checksums in the source's files."""
    rows: RowWriter = field(init=False)
    tensors: ContentSketch = field(default_factory=ContentSketch)
    """The sums of tensors that are neither variables nor matrices of the source."""
    compared: SumsCompared = NO_SUMS
    """The checksums of the source's files that what was read has been compared with."""
    _memory: ThreadMemory = field(default_factory=ThreadMemory)
    _crcs: dict[tuple[int, int], Crc32] = field(init=False)
    """The checksums of tensors that went by `_put`, by file and offset."""

    def __post_init__(self) -> None:
        self.rows = RowWriter(self.plan.source, self.sinks, self.job)
        destination = self.plan.destination
        summed = destination.summed if destination.checksum else ()
        self._crcs = {(file, offset): Crc32(destination.checksum) for _, file, offset, _ in summed}

    @property
    def meant(self) -> ContentSketch:
        """Return the sums of all variables and tables, by their new names."""
        return self.rows.meant

    def write(self) -> None:
        """Write everything: values, ids, and what stands around them."""
        destination = self.plan.destination
        self.sums.restart()
        expect(self.job.reporter, 2 * self.plan.size_bytes)  # all is read back
        self.job.reporter.start("writing", self.plan.size_bytes)
        self._variables()
        places = id_places(self.plan.source, self.job) if self.plan.out.tables else {}
        for table in self.plan.out.tables:
            if table.name in self.plan.counted:
                self.rows.write(self.plan.counted[table.name], destination.places(table.name))
            elif table.by_number:
                self._numbered(table, places[table.source])
            else:
                self._sorted(table, places[table.source])
        for name in destination.carried:
            self._carry(name)
        for file, offset, data in destination.computed:
            self.sinks[file].write(offset, data)
        for file, offset, data in destination.literals(self._sums()):
            self.sinks[file].write(offset, data)

    def _carry(self, name: str) -> None:
        """Copy a file that is none of the system's own."""
        sink = self.sinks[self.plan.destination.number(name)]
        with self.plan.opened(name) as reader:
            for start in range(0, reader.size_bytes, _PIECE_BYTES):
                sink.write(start, reader.read(start, min(_PIECE_BYTES, reader.size_bytes - start)))
            reader.check_unchanged()

    def _variables(self) -> None:
        opened = self.plan.whole or self.plan.source
        tasks = (task for variable in self.plan.out.variables for task in self._pieces(opened, variable))
        run_all(lambda task: self._copy(opened, *task), tasks, self.job.workers)

    def _pieces(
        self, opened: Checkpoint, variable: OutVariable
    ) -> Iterator[tuple[OutVariable, Sequence[Cut], int, int]]:
        """Yield pieces of a variable: bytes [start, end) of it in the source."""
        _, entry = opened.find_variable(variable.source)
        cuts = self.plan.destination.cuts(variable.name)
        unit = math.lcm(bulk.CHUNK_BYTES, entry.dtype.itemsize, self._row_bytes(variable) or 1)
        step = max(_PIECE_BYTES // unit, 1) * unit
        size = variable.size_bytes if variable.is_item else math.prod(variable.shape) * entry.dtype.itemsize
        for start in range(0, max(size, 1), step):
            yield variable, cuts, start, min(start + step, size)

    @property
    def _is_remade(self) -> bool:
        """Say whether a tensor may be another thing under new names: then all are compared as plain tensors."""
        return replace(self.plan.changes, cast=()) != Changes()

    def _row_bytes(self, variable: OutVariable) -> int:
        """Return the bytes of a row where a tensor is a matrix of the source, else 0."""
        source = self.plan.source
        if self.plan.whole is None or self._is_remade or not source.has_table(variable.source):
            return 0
        entries = [entry for _, entry in source.entries(variable.source)]
        is_matrix = all(not run.is_stored for entry in entries for run in entry.ids)
        return entries[0].row_bytes if entries and is_matrix else 0

    def _copy(self, opened: Checkpoint, variable: OutVariable, cuts: Sequence[Cut], start: int, end: int) -> None:
        """Copy bytes of a variable, those that the source lacks as zeros, cast where that is asked for."""
        shard, entry = opened.find_variable(variable.source)
        stored = max(min(end, entry.size_bytes) - start, 0)
        data = self._memory.take(end - start)
        if stored:
            opened.reader(shard, entry.values).read_into(entry.values.start + start, data.data[:stored])
        data[stored:] = 0  # rows that a larger matrix has
        out = self.rows.cast(data, entry.dtype, variable.dtype)
        offset = start // entry.dtype.itemsize * variable.dtype.itemsize
        row_bytes = self._row_bytes(variable) // entry.dtype.itemsize * variable.dtype.itemsize
        if row_bytes:
            ids = np.arange(offset // row_bytes, (offset + len(out)) // row_bytes, dtype=np.int64)
            self.meant.add_rows(variable.name, ids, out.reshape(-1, row_bytes))
        else:
            known = self.plan.whole is None or (self.plan.source.has_entry(variable.source) and not self._is_remade)
            (self.meant if known else self.tensors).add_dense(variable.name, variable.size_bytes, offset, out)
        self._put(cuts, offset, out)
        self.job.reporter.advance(len(out))

    def _put(self, cuts: Sequence[Cut], offset: int, data: bulk.U8) -> None:
        """Write bytes that begin at an offset of a tensor to where its cuts say."""
        number, end = max(bisect_right(cuts, offset, key=lambda cut: cut.start) - 1, 0), offset + len(data)
        for cut in cuts[number:]:
            low, high = max(cut.start, offset), min(cut.end, end)
            if cut.start >= end:
                return
            if low < high:
                piece = data[low - offset : high - offset].data
                self.sinks[cut.file].write(cut.offset + low - cut.start, piece)
                if (cut.file, cut.offset) in self._crcs:
                    self._crcs[cut.file, cut.offset].add(low - cut.start, piece)

    def _numbered(self, table: OutTable, pieces: Sequence[IdPiece]) -> None:
        """Write a matrix whose rows have numbers in the source too."""
        cuts, source, width = self.plan.destination.cuts(table.name), self.plan.source, table.row_bytes

        def move(piece: IdPiece) -> None:
            ids = read_piece(source, piece).ids
            for some, values in row_batches(source, piece, len(ids), _PIECE_BYTES):
                rows = self._rows(table, piece.entry.dtype, ids[some], values)
                self._put(cuts, int(ids[some.start]) * width, rows.reshape(-1))

        run_all(move, pieces, self.job.workers)

    def _rows(self, table: OutTable, dtype: DType | None, ids: bulk.I64, values: bulk.U8) -> bulk.U8:
        """Return rows as they go out, and add them to the sums."""
        rows = self.rows.cast(values, dtype, table.dtype)
        self.meant.add_rows(table.name, ids, rows)
        self.job.reporter.advance(rows.nbytes)
        return rows

    def _sorted(self, table: OutTable, pieces: Sequence[IdPiece]) -> None:
        """Write a matrix from rows with ids 0 to n - 1 in any order: they are sorted on the disk, in parts."""
        cuts, width = self.plan.destination.cuts(table.name), table.row_bytes
        parts = parts_needed(table.rows * (8 + width))
        ranges = Ranges(np.arange(1, parts, dtype=np.int64) * table.rows // parts)
        with PartitionedTable(
            self.plan.source, table.source, pieces, parts=parts, assign=ranges, directory=self.directory
        ) as cut:
            for part in cut.all_parts():
                if len(part.ids):
                    rows = self._rows(table, part.dtype, part.ids, part.values)
                    self._put(cuts, int(part.ids[0]) * width, rows.reshape(-1))

    def _sums(self) -> dict[tuple[str, int], int]:
        """Return the checksums of what the files have, where rows came in any order read back from them."""
        destination = self.plan.destination
        if not destination.checksum:
            return {}
        pieces: dict[tuple[str, int], Crc32] = {}

        def tasks() -> Iterator[tuple[tuple[str, int], int, int, int, int]]:
            for key, file, offset, size in destination.summed:
                pieces[key] = self._crcs[file, offset]
                if pieces[key].size_bytes == size:
                    continue
                pieces[key] = Crc32(destination.checksum)
                for start in range(0, size, _PIECE_BYTES):
                    yield key, file, offset, start, min(_PIECE_BYTES, size - start)

        def add(task: tuple[tuple[str, int], int, int, int, int]) -> None:
            key, file, offset, start, size = task
            data, sink = self._memory.take(size).data, self.sinks[file]
            assert isinstance(sink, OnDisk)  # noqa: S101 - foreign files are written to a disk
            sink.read_into(offset + start, data)
            pieces[key].add(start, data)

        run_all(add, tasks(), self.job.workers)
        return {key: sums.value() for key, sums in pieces.items()}
