"""The faults that ids and values of a version show: placement, duplicates, counts; NaN, infinite and huge values.

The rows behind a finding: their ids are read again, because a check only counts rows, and names the lowest ids.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from itertools import chain, groupby, islice
from queue import Empty, SimpleQueue
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, LockedError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import LOOK_SECONDS, RESULT_BYTES, Beside, awaited, stop_requested
from edl_ckpt.core.base.progress import expect
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import misplaced, owners
from edl_ckpt.core.model.tables import DenseEntry, Extent, ShardIndex, TableEntry
from edl_ckpt.core.operations.verify.findings import NAMED, Report
from edl_ckpt.core.proof.duplicates import SearchUnit, near_job, reads_of, search_units
from edl_ckpt.core.proof.fingerprint import Fingerprint, fingerprint_of, value_bytes
from edl_ckpt.core.proof.id_order import NO_IDS
from edl_ckpt.core.proof.id_pass import IdTally, ids_work
from edl_ckpt.core.proof.repeated_ids import SORTED_AT_ONCE, Repeated, Search
from edl_ckpt.core.proof.sealing import ChunkSums
from edl_ckpt.core.proof.values import HUGE_EXPONENT, Bundles, ValueOptions, odd_rows, read_values
from edl_ckpt.core.reading.blocks import VALUE_BATCH_BYTES, IdPiece, check_row_count, id_blocks
from edl_ckpt.core.reading.pieces import IdsAt, PieceAt, ids_at, in_tasks, total_id_bytes
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.row_batches import row_batches
from edl_ckpt.core.sources.systems import system_named

_WORDS: Final = {"nan": "NaN", "inf": "infinite", "huge-value": f"2**{HUGE_EXPONENT} or more"}
ODD: Final = tuple(_WORDS)
"""The codes of findings about values, in the order in which they are counted."""
_OPTIONS: Final = ValueOptions(odd=True)
_ALONE: Final = Bundles(_OPTIONS)
_BESIDE_WORKERS: Final = 2
"""Threads that search for ids that occur twice while values are read."""


def ids_of(
    checkpoint: Checkpoint, code: str, within: Sequence[tuple[ShardIndex, TableEntry]], extent: Extent | None = None
) -> Generator[bulk.I64]:
    """Yield the ids of all rows of a table with a fault, by the code of its findings, int64 [n], as they are read.

    Those that repeat come once for each time, in any order. With the `extent` of some values, only rows with bytes in
    it. Raises CorruptError for ids that cannot be read.
    """
    if code == "duplicate-id":
        groups = []
        for shard, entry in within:
            pieces = [IdPiece(shard, entry, run, run.start, run.end) for run in entry.ids]
            groups.append(reads_of(checkpoint, pieces))
        search = Search(SORTED_AT_ONCE)
        total_rows = sum(entry.rows for _, entry in within)
        if len(groups) == 1:
            yield from search.repeats(groups[0], total_rows)
        else:
            yield from search.shared_ids(groups, total_rows)
        return
    for shard, entry in within:
        part = extent or entry.values
        file = shard.file
        width = max(entry.row_bytes, 1)
        low, high = (part.start - entry.values.start) // width, -((entry.values.start - part.end) // width)
        for number, block in id_blocks(checkpoint, shard, entry):
            if code not in ODD:
                wrong = misplaced(checkpoint.placement(entry.name), block, file.ps_num, file.ps_id)
                yield block[block < 0 if code == "negative-id" else wrong]
                continue
            first, ids = max(number, low), block[max(low - number, 0) : max(high - number, 0)]
            piece = IdPiece(shard, entry, entry.ids[0], 0, 0, first, len(ids))
            for batch, rows in row_batches(checkpoint, piece, len(ids), VALUE_BATCH_BYTES):
                yield ids[batch][odd_rows(rows, entry.dtype, ODD.index(code))]


def report_odd(
    report: Report, checkpoint: Checkpoint, shard: ShardIndex, entry: DenseEntry | TableEntry, counts: bulk.I64,
    extent: Extent, whose: str,
) -> None:  # fmt: skip
    """Report the odd values in an extent of a variable or of a table, of which the first few ids are read."""
    for code, count in zip(ODD, counts.tolist(), strict=True):
        if count:
            message = f"{count} of the {whose} {'is' if count == 1 else 'are'} {_WORDS[code]}"
            ids: tuple[int, ...] = ()
            if isinstance(entry, TableEntry):
                with closing(ids_of(checkpoint, code, [(shard, entry)], extent)) as blocks:
                    ids = tuple(islice(chain.from_iterable(block.tolist() for block in blocks), NAMED))
                message += f"; first {'ids' if len(ids) > 1 else 'id'}: {', '.join(map(str, ids))}"
            report.add(code, message, shard=shard.file, subject=entry.name, offset=extent.start, ids=ids, count=count)


class ContentCheck:
    """The checks that read ids and values, over all shards."""

    def __init__(self, checkpoint: Checkpoint, report: Report, job: Job, *, values: bool = False) -> None:
        self.checkpoint = checkpoint
        self.version = checkpoint.version
        self.report = report
        self.job = job
        self._places: list[IdsAt] = []
        self._tables: dict[tuple[int, str], SearchUnit] = {}
        """By the number of shards of the set, and the name."""
        self._unsure: list[SearchUnit] = []
        self._beside = Beside(2)
        self._search: Future[list[tuple[int, Repeated]]] | None = None
        self._pass: Future[None] | None = None
        self._passed: SimpleQueue[list[IdsAt]] = SimpleQueue()  # of each part of a table; an empty one is the end
        self._of_ids = report
        self._sound = True
        self._odd: Mapping[tuple[int, bool, str], npt.NDArray[np.int64]] = {}
        self._id_bytes = total_id_bytes(checkpoint)
        total = self._id_bytes + (value_bytes(checkpoint) if values else 0)
        expect(job.reporter, total)
        self._task_bytes = job.executor.task_bytes(total)
        self._with_values = values
        self._is_concurrent = values and not job.executor.is_cluster
        """Threads of this process check ids while others read values."""
        self._system = system_named(self.version.layout.system)
        self._one_row = f"; {self._system.title} restores only one row per id" if self._system.restores_one_row else ""

    @property
    def sound(self) -> bool:
        """Say whether ids and rows match everywhere; waits for the check of ids."""
        if self._pass is not None:
            awaited(self._pass)
        return self._sound

    def check_ids(self) -> None:
        """Check placement, duplicates and counts of all ids.

        Where values are read too, large tables are searched for duplicates beside that, until `wait_for_ids`. Of far
        storage all ids are checked beside that: the network brings the values of one table, while another is checked.
        """
        checkpoint, job = self.checkpoint, self.job
        checkpoint.keep_ids(job)
        if self._is_concurrent and checkpoint.reads_blocks:
            self._of_ids = Report()
            job.reporter.start("checking ids and values", self._id_bytes + value_bytes(checkpoint))
            # What takes no request takes a core: with more threads no table would be done before all of them are.
            self._pass = self._beside.begin(lambda: self._check_beside(near_job(checkpoint, job)))
        else:
            job.reporter.start("checking ids", self._id_bytes)
            self._check_all(job)

    def _check_beside(self, job: Job) -> None:
        try:
            with self._of_ids.checking("ids"):
                self._check_all(job)
        finally:
            self._passed.put([])

    def _check_all(self, job: Job) -> None:
        """Check all ids; the values of each part of a table that has passed may be read meanwhile."""
        checkpoint = self.checkpoint
        seen = set[tuple[int, int]]()
        places = list(ids_at(checkpoint, self._task_bytes, values=self._with_values))
        work = ids_work(checkpoint, keep=job.executor.result_bytes > RESULT_BYTES)
        with job.run(work, checkpoint, in_tasks(places, self._task_bytes)) as results:
            read = zip(places, chain.from_iterable(results), strict=True)
            for key, pieces in groupby(read, key=lambda pair: (pair[0].shard, pair[0].table)):
                if seen and stop_requested():
                    raise LockedError("stopped")
                tally = IdTally()
                numbered: list[IdsAt] = []
                for place, of_place in pieces:
                    numbered.append(place._replace(first_row=tally.order.rows, rows=of_place.order.rows))
                    tally.add(of_place)
                self._sound &= self._finish_unit(tally, numbered)
                seen.add(key)
        for number, shard in enumerate(checkpoint.shards):
            for at, entry in enumerate(shard.tables):
                if (number, at) not in seen:  # rows without ids, or neither
                    self._sound &= self._has_all_ids(shard, entry, 0)
        self._report_across()
        if self._unsure and self._is_concurrent:
            beside = Job.here(min(job.executor.threads, _BESIDE_WORKERS))
            at_once = SORTED_AT_ONCE // (2 * beside.workers)
            self._search = self._beside.begin(lambda: self._search_units(beside, max(at_once, 1)))
        else:
            self._report_repeated(self._search_units(near_job(checkpoint, job)))

    def _search_units(self, job: Job, at_once: int | None = None) -> list[tuple[int, Repeated]]:
        return list(search_units(self.checkpoint, job, self._unsure, at_once=at_once))

    def _report_repeated(self, found: list[tuple[int, Repeated]]) -> None:
        for number, repeated in found:
            place = self._unsure[number].places[0]
            shard = self.checkpoint.shards[place.shard]
            self._report_duplicates(shard, shard.tables[place.table], repeated)

    def wait_for_ids(self) -> None:
        """Wait for what `check_ids` left to other threads, and report it; raises their errors."""
        if self._of_ids is not self.report:
            assert self._pass is not None  # noqa: S101 - they have findings of their own
            awaited(self._pass)
            self.report.take(self._of_ids)
            self._of_ids = self.report
        search, self._search = self._search, None
        if search is not None:
            self._report_repeated(awaited(search))

    def close(self) -> None:
        """Stop what still runs beside."""
        self._beside.close()

    def _finish_unit(self, found: IdTally, places: list[IdsAt]) -> bool:
        """Report what was found in one table of one shard; return whether it has as many ids as rows."""
        shard = self.checkpoint.shards[places[0].shard]
        entry = shard.tables[places[0].table]
        if found.fault is not None:
            self._report(shard, entry, found.fault.code, found.fault.message, found.fault.offset)
            return False
        self._report_counts(shard, entry, found)
        if not self._has_all_ids(shard, entry, found.order.rows):
            return False
        if not found.order.ascending:
            if found.kept:
                ids = np.concatenate(found.kept)
                self._report_duplicates(shard, entry, Search(len(ids)).repeated([lambda: ids], found.order))
            else:
                self._unsure.append(SearchUnit(list(places), found.order))
        found.kept.clear()
        self._places += places
        key = shard.file.ps_num, entry.name
        table = self._tables.get(key, SearchUnit([], NO_IDS))
        table.places.extend(places)
        self._tables[key] = table._replace(order=table.order.followed_by(found.order))
        self._passed.put(places)
        return True

    def _places_passed(self) -> Iterator[IdsAt]:
        """Yield the places of all ids that have passed, as soon as they have; raises the errors of the check."""
        assert self._pass is not None  # noqa: S101 - it was begun
        while True:
            try:
                places = self._passed.get(timeout=LOOK_SECONDS)
            except Empty:
                if stop_requested():
                    raise LockedError("stopped") from None
                continue
            if not places:  # the check is over
                awaited(self._pass)
                return
            yield from places

    def _has_all_ids(self, shard: ShardIndex, entry: TableEntry, ids: int) -> bool:
        try:
            check_row_count(shard, entry, ids)
        except CorruptError as error:
            self._report(shard, entry, error.code, error.message, error.offset)
            return False
        return True

    def _report(
        self, shard: ShardIndex, entry: TableEntry, code: str, message: str, offset: int | None = None, **rows: Any
    ) -> None:
        at = entry.offset if offset is None else offset
        self._of_ids.add(code, message, shard=shard.file, subject=entry.name, offset=at, **rows)

    def _report_across(self) -> None:
        """Report ids that several shards have: only a table whose rows are not all in their shards can have any."""
        several: dict[str, SearchUnit] = {}
        for (_, name), unit in self._tables.items():
            shards = {place.shard for place in unit.places}
            if not unit.order.placed and len(shards) > 1:
                several[name] = unit
        names, units = list(several), list(several.values())
        some = sorted(number for number, (count, _) in search_units(self.checkpoint, self.job, units) if count)
        for number, (count, named) in search_units(
            self.checkpoint, self.job, [units[n] for n in some], between_shards=True
        ):
            if count:
                ids = ", ".join(map(str, named))
                are = f"{counted(count, 'id')} {'is' if count == 1 else 'are'} in several shards"
                message = f"{are}: {ids}{self._one_row}"
                table = names[some[number]]
                self._of_ids.add("duplicate-id", message, path=self.version.path, subject=table, ids=named, count=count)

    def _report_counts(self, shard: ShardIndex, entry: TableEntry, counts: IdTally) -> None:
        if counts.misplaced:
            rule, count = self.checkpoint.placement(entry.name), shard.file.ps_num
            belong = owners(rule, np.array(counts.examples, np.int64), count)
            assert belong is not None  # noqa: S101 - else nothing is misplaced
            named = ", ".join(f"id {i} to shard {k}" for i, k in zip(counts.examples, belong.tolist(), strict=True))
            rows = "row belongs to another shard" if counts.misplaced == 1 else "rows belong to other shards"
            message = f"{counts.misplaced} {rows}: {named}"
            self._report(shard, entry, "misplaced-row", message, ids=counts.examples, count=counts.misplaced)
        if counts.negative and self._system.restores_one_row:
            named = ", ".join(map(str, counts.negative_examples))
            message = f"the table has {counted(counts.negative, 'negative id')} in this shard: {named}"
            ids = counts.negative_examples
            self._report(shard, entry, "negative-id", message, ids=ids, count=counts.negative)

    def _report_duplicates(self, shard: ShardIndex, entry: TableEntry, found: Repeated) -> None:
        count, named = found
        if count:
            repeat = "repeats" if count == 1 else "repeat"
            ids = ", ".join(map(str, named))
            message = f"{counted(count, 'row')} {repeat} an id: {ids}{self._one_row}"
            self._report(shard, entry, "duplicate-id", message, ids=named, count=count)

    def small_parts(self, *, certain: bool) -> Bundles:
        """Return the parts of tables that are read many at a time: only of content that is certain, and not far."""
        if not certain or self._of_ids is not self.report or not self.sound:
            return _ALONE
        return Bundles.of(self.checkpoint, self.job, _OPTIONS)

    def check_values(
        self, *, certain: bool, sums: ChunkSums | None = None, small: Bundles = _ALONE
    ) -> Fingerprint | None:
        """Read every value: find NaN, infinite and huge ones, and return the fingerprint when the content is `certain`.

        All bytes that are read are added to `sums`; `small` is what `small_parts` returned. A second call stands for
        the first: `report_odd` is for the end.
        Shards that contradict each other have no fingerprint: their rows, of one name and two sizes, do not add up.
        """
        checkpoint, is_first = self.checkpoint, self._of_ids is not self.report
        if not is_first:
            self.job.reporter.start("checking values", value_bytes(checkpoint))
        places = self._places_passed() if is_first else small.others(checkpoint, self._places)
        whole: Iterable[PieceAt] = chain(_OPTIONS.dense_at(checkpoint, self._task_bytes), places)
        options = replace(_OPTIONS, sketched=certain and self._sound)
        small = small._replace(options=options, task_bytes=self._task_bytes)
        try:
            found = read_values(checkpoint, whole, self.job, small, sums)
        except CorruptError as error:  # rows that their file does not have, in the order of a remap
            self.report.add(error.code, error.message, path=error.path or self.version.path, offset=error.offset)
            return None
        self._odd = found.odd
        if not certain or not self.sound:
            return None
        try:
            return fingerprint_of(checkpoint, found.sketch)
        except (KeyError, EdlCkptError):
            return None

    def report_odd(self) -> None:
        """Report the NaN, infinite and huge values that were found."""
        for (number, is_dense, name), counts in sorted(self._odd.items()):
            shard, kind = self.checkpoint.shards[number], "variable" if is_dense else "table"
            entries: tuple[DenseEntry | TableEntry, ...] = shard.variables if is_dense else shard.tables
            entry = next(e for e in entries if e.name == name)
            whose = f"{kind}'s values in this shard"
            report_odd(self.report, self.checkpoint, shard, entry, counts, entry.values, whose)
