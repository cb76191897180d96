"""A conversion: what goes out of an opened version into the files of a system, planned to the byte, then written.

The plan is arithmetic on headers and ids. Writing reads each value once and sums it as it goes out; the proof reads
the new files through their own format, and compares the sums.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import RefusedError, UnsupportedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.words import command, escaped
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.converting.changes import Changes, LeftOut, Outgoing, OutTable, outgoing
from edl_ckpt.core.converting.described import stale_dtypes
from edl_ckpt.core.converting.destinations.interface import Destination, Given
from edl_ckpt.core.converting.destinations.table import ANEW, DESTINATIONS
from edl_ckpt.core.converting.items import ItemCounts, items_out
from edl_ckpt.core.converting.rows import CountedRows, Spread
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.shapes import check_dimensions
from edl_ckpt.core.model.tables import ShardSummary
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.moving.file_framing import FileFraming
from edl_ckpt.core.moving.file_values import cast_to
from edl_ckpt.core.moving.goal import FileGoal, Rule, TableRules
from edl_ckpt.core.moving.input import Input
from edl_ckpt.core.moving.meaning import Meaning
from edl_ckpt.core.moving.move import Mover
from edl_ckpt.core.moving.plan import MovePlan, StretchRoute, routes_of
from edl_ckpt.core.moving.run import Moved
from edl_ckpt.core.moving.sealed import SealedBytes, sealed_framing
from edl_ckpt.core.moving.settings import ReshardSettings
from edl_ckpt.core.moving.sorted_rows import move_sorted
from edl_ckpt.core.moving.source_proof import VersionProof
from edl_ckpt.core.moving.staged_files import StagedFiles
from edl_ckpt.core.moving.sums import SummedValues
from edl_ckpt.core.moving.survey import SourceSurvey, survey_source
from edl_ckpt.core.moving.tensors import as_tensors, tensors_out, warn_of_lost_tables
from edl_ckpt.core.moving.version_input import VersionInput
from edl_ckpt.core.proof.fingerprint import ContentSketch, Fingerprint
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import StoredSums
from edl_ckpt.core.sources.safetensors.sets import ENDING
from edl_ckpt.core.storage.interface import RangeReader, Sink

_MOST_NAME_BYTES: Final = 255
_ONE_BUCKET: Final = Spread(1, None)
_ANY_DIMENSIONS: Final = frozenset({"safetensors"})
"""Systems whose readers know no limit of dimensions."""
_WHOLE: Final = frozenset({"dcp", "safetensors", "torch"})
"""Systems whose tensors are written as they are, whatever they mean: row numbers stay, and so do ids beside them."""


@dataclass(frozen=True, slots=True)
class Conversion(MovePlan):
    """A planned conversion; the source must be open until it is written."""

    source: Checkpoint
    whole: Checkpoint | None
    """The same files as tensors alone, where those are written as they are."""
    destination: Destination
    counted: Mapping[str, CountedRows]
    """The tables with ids, by their new names."""
    changes: Changes
    survey: SourceSurvey
    """The ids of all tables, counted for each bucket."""
    goal: FileGoal
    routes: Sequence[StretchRoute]
    """Where each stretch of the survey begins in each bucket."""

    def input(self, trust: Trust, sums: StoredSums) -> VersionInput:
        """Return what goes out as the input of a move.

        `sums` is what is summed of the values that have checksums in the source's files.
        """
        proof = VersionProof(self.source, self.out, trust, sums, whole=self.whole, changes=self.changes)
        return VersionInput(self.whole or self.source, self.out, proof, bundled=False)

    @property
    def out(self) -> Outgoing:
        """Return what goes out."""
        return self.destination.out

    @property
    def source_ref(self) -> str:
        """Return the reference of the version that is read."""
        return self.source.version.ref

    @property
    def from_ps(self) -> int:
        """Return the number of ranks that the version has."""
        return self.source.version.ps_num or 0

    @property
    def to_ps(self) -> int:
        """Return the number of ranks that the files have; those of safetensors have none, and are counted."""
        files = sum(name.endswith(ENDING) for name in self.destination.new_files)
        return files or self.destination.written_ranks

    @property
    def items(self) -> ItemCounts:
        """Return what becomes of the items of the source."""
        return items_out(self.out, is_written=True)

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what the system has no place for, too."""
        return self.out.left_out

    @property
    def shards(self) -> tuple[ShardSummary, ...]:
        """Return none: they are known once the files were read back."""
        return ()

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

    @property
    def sizes(self) -> list[int]:
        """Return the bytes of each file."""
        return list(self.destination.files.values())

    def confirmed(self, source: Input, sketch: ContentSketch, job: Job) -> ContentSketch:
        """Return the sums of what moved."""
        assert isinstance(source, VersionInput)  # noqa: S101 - `input` has made it
        source.check_unchanged()
        self.confirm_source(source.proof, sketch, job)
        return sketch

    def staged(
        self, written: Version, content: Fingerprint | ContentSketch, moved: Moved, settings: ReshardSettings
    ) -> StagedFiles:
        """Return the files, opened by themselves wherever they are staged."""
        del content, settings
        return StagedFiles(self, moved, alone_at(written.location.with_url(written.path)))

    def framing(self, files: Sequence[Sink], job: Job) -> FileFraming:
        """Return what writes all but values and ids into these files, which are in the order of the destination."""
        return FileFraming(self.destination, self.opened, files, job)

    def confirm_source(self, proof: VersionProof, sketch: ContentSketch, job: Job) -> Fingerprint | None:
        """Compare what was read with the checksums in the source's files, and with its seal; return its fingerprint.

        `sketch` has the sums of what moved. The seal is compared where all went out as it was; else None is returned.
        Raises CorruptError for a difference, unless `force` goes on.
        """
        proof.compare_sums(job)
        proof.compare_items()
        for name in self.destination.carried:
            with self.opened(name) as reader:
                proof.compare_zip(reader, name)
        return proof.confirm_seal(sketch)

    @property
    def disordered(self) -> list[OutTable]:
        """Return the tables that become matrices, and whose rows have no numbers: they are sorted before they move."""
        return [table for table in self.out.tables if table.name not in self.counted and not table.by_number]

    def move_sorted(self, mover: Mover, job: Job, directory: str) -> None:
        """Move the tables that are sorted, one after the other."""
        for table in self.disordered:
            move_sorted(mover, self.source, table, job, directory)

    @property
    def order(self) -> list[int]:
        """Return the numbers of the survey's stretches, but for tables that are sorted."""
        names = {table.name for table in self.disordered}
        return [number for number, counts in enumerate(self.survey.counts) if counts.table not in names]

    @property
    def summed(self) -> SummedValues:
        """Return which values have checksums; those of variables and of matrices are known by their cuts."""
        destination, found = self.destination, dict[int, dict[int, int]]()
        if not destination.checksum:
            return SummedValues()
        cuts = {(cut.file, cut.offset) for pieces in self.goal.pieces.values() for cut in pieces}
        for _, file, offset, size_bytes in destination.summed:
            if size_bytes and (file, offset) not in cuts:
                found.setdefault(file, {})[offset] = size_bytes
        return SummedValues(destination.checksum, found)

    @property
    def fixed_framing(self) -> Iterator[SealedBytes]:
        """Yield values that are computed, too."""
        yield from starmap(SealedBytes, self.destination.computed)
        yield from sealed_framing(self.destination)

    @property
    def checked_values(self) -> Iterator[tuple[int, int, int]]:
        """Yield all but what is computed."""
        destination = self.destination
        computed = {(file, offset) for file, offset, _ in destination.computed}
        for _, file, offset, size_bytes in destination.summed if destination.checksum else ():
            if size_bytes and (file, offset) not in computed:
                yield file, offset, size_bytes

    def row_numbers(self, number: int) -> tuple[int, int]:
        """Return the numbers that the ids of the stretch are."""
        piece = self.survey.stretches[number].piece(self.source)
        size = piece.run.encoding.itemsize
        first, end = (piece.run.first + (at - piece.run.start) // size for at in (piece.start, piece.end))
        return first, end

    @property
    def meaning(self) -> Meaning:
        """Return what the proof takes tensors for, which are read as tables where the source is read so."""
        source = self.source
        if self.whole is None:
            return Meaning()
        is_remade = self.changes != Changes(cast=self.changes.cast)
        """Under a new name a tensor may be another thing: then all are compared as plain tensors."""
        row_bytes, plain = {}, set()
        for variable in self.out.variables:
            if is_remade or not source.has_entry(variable.source):
                plain.add(variable.name)
            if is_remade or not source.has_table(variable.source):
                continue
            entries = [entry for _, entry in source.entries(variable.source)]
            if entries and not any(run.is_stored for entry in entries for run in entry.ids):
                cast = cast_to(self.whole.find_variable(variable.source)[1].dtype, variable.dtype)
                width = entries[0].row_bytes
                row_bytes[variable.name] = width if cast is None else cast.size_of(width)
        return Meaning(row_bytes, plain)


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
        hint = f"write it for another system: {command('export', source.version.ref, 'OUTPUT', '--format', 'dcp')}"
        message = f"nothing is written for {system}; it can be {known}"
        raise UnsupportedError(message, path=source.version.ref, hint=hint)
    is_own = source.version.layout.system == system
    is_anew = is_own and contents is not None and system in ANEW
    is_whole = is_own and (system in _WHOLE or is_anew)
    whole = as_tensors(source) if is_whole else None
    out = outgoing(source, changes) if whole is None else tensors_out(source, whole, changes)
    if whole is not None:
        warn_of_lost_tables(source, out, job)
    kind = ANEW[system] if is_anew else DESTINATIONS[system]
    destination = kind(Given(source, out, ranks, number, most_file_bytes, whole, contents))
    destination.out.check_names(source.version.ref)
    for variable in destination.out.variables if system not in _ANY_DIMENSIONS else ():
        check_dimensions(variable.name, variable.shape, source.version.ref)
    _check_files(source, destination)
    counted: dict[str, CountedRows] = {}
    destination.out.check_some(source.version.ref)
    rules = TableRules({table.name: _rule(destination, table) for table in destination.out.tables})
    moved = VersionInput(whole or source, destination.out, bundled=False)
    survey = survey_source(moved, rules.buckets, number=number, job=job.silent(), rules=rules)
    for table in destination.out.tables:
        rows = _counted(survey, table, rules.of(table.name).spread.buckets)
        if rules.of(table.name).by_number:
            continue
        if destination.spread(table) is None:
            _check_matrix(rows)
            continue
        destination.check(rows)
        counted[table.name] = rows
    destination.out = replace(destination.out, left_out=survey.left_out)
    destination.lay_out(counted)
    _check_names(destination)
    _check_apart(source, destination)
    _warn_of_stale_dtypes(source, destination, changes, job)
    goal = _goal(destination, rules, counted)
    return Conversion(source, whole, destination, counted, changes, survey, goal, routes_of(survey, _begins(goal)))


def _rule(destination: Destination, table: OutTable) -> Rule:
    """Return which bucket the rows of a table belong to."""
    spread = destination.spread(table)
    return Rule(spread or _ONE_BUCKET, as_varints=False, by_number=spread is None and table.by_number)


def _counted(survey: SourceSurvey, table: OutTable, buckets: int) -> CountedRows:
    """Return the rows of a table that go to each of so many buckets."""
    rows, id_bytes = (np.zeros(survey.to_ps, np.int64) for _ in range(2))
    for stretch in survey.counts:
        if stretch.table == table.name:
            rows += stretch.rows
            id_bytes += stretch.id_bytes
    low, high = survey.bounds.get(table.name, (0, -1))
    return CountedRows(table, rows[:buckets], id_bytes[:buckets], low, high)


def _goal(destination: Destination, rules: TableRules, counted: Mapping[str, CountedRows]) -> FileGoal:
    """Return where everything goes in files that are laid out."""
    out = destination.out
    whole = [table.name for table in out.tables if table.name not in counted]
    names = [*(variable.name for variable in out.variables), *whole]
    places = {name: destination.places(name) for name in counted}
    return FileGoal(rules, places, {name: destination.cuts(name) for name in names})


def _begins(goal: FileGoal) -> Callable[[str], tuple[bulk.I64, bulk.I64]]:
    """Return what says where the rows and the ids of a table begin in each bucket."""

    def begins(table: str) -> tuple[bulk.I64, bulk.I64]:
        starts = np.zeros((2, goal.rules.buckets), np.int64)
        places = goal.places.get(table)
        if places is not None:
            starts[0, : len(places.rows[1])] = places.rows[1]
            if places.ids is not None:
                starts[1, : len(places.ids[1])] = places.ids[1]
        return starts[0], starts[1]

    return begins


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


def _check_files(source: Checkpoint, destination: Destination) -> None:
    """Raise UnsupportedError for a table or a variable in a carried file that belongs to another system."""
    for shard in source.shards if destination.carried else ():
        values = [(entry.name, entry.values.file) for entry in shard.tables]
        values += [(entry.name, entry.values.file) for entry in shard.variables]
        for name, number in values:
            path = shard.file.files[number].path if number < len(shard.file.files) else ""
            if source.version.name_of(path) in destination.carried:
                message = f"{name!r} is in a file that {destination.system} does not read: nothing was written"
                raise UnsupportedError(message, path=path, hint="export each system's part: export --format FORMAT")


def _check_matrix(rows: CountedRows) -> None:
    """Raise UnsupportedError unless the ids of a table are 0 to n - 1."""
    if rows.total and (rows.low, rows.high) != (0, rows.total - 1):
        raise UnsupportedError(
            f"table {rows.table.source!r} has {rows.total:,} rows with ids {rows.low:,} to {rows.high:,};"
            f" a matrix has ids 0 to {rows.total - 1:,}",
            hint="nothing was written; try: export as safetensors with --remap, then export that file with --map",
        )
