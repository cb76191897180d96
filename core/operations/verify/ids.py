"""The faults that ids and values of a version show: placement, duplicates, counts; NaN, infinite and huge values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.blocks import check_row_count
from edl_ckpt.core.checkpoint.duplicates import (
    NO_IDS,
    SORTED_AT_ONCE,
    IdOrder,
    Search,
    count_repeated,
    order_of,
    repeated_across,
    repeated_of_turn,
)
from edl_ckpt.core.checkpoint.elsewhere import CheckpointValue
from edl_ckpt.core.checkpoint.fingerprint import fingerprint_of, value_bytes
from edl_ckpt.core.checkpoint.places import IdsAt, ids_at, in_tasks
from edl_ckpt.core.checkpoint.reader import Checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, cut_piece, read_piece
from edl_ckpt.core.checkpoint.summing import ChunkSums
from edl_ckpt.core.checkpoint.values import read_values
from edl_ckpt.core.errors import CorruptError, EdlCkptError, LockedError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.model import DenseEntry, ShardIndex, TableEntry, Version
from edl_ckpt.core.format.odd_values import HUGE_EXPONENT
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.parallel import (
    LOOK_SECONDS,
    Advance,
    Beside,
    Executor,
    Threads,
    awaited,
    default_workers,
    stop_requested,
)
from edl_ckpt.core.progress import Reporter
from edl_ckpt.core.words import counted

_NAMED: Final = 5
"""The number of ids that a finding names."""
_KEPT_ROWS: Final = 1 << 16
"""Parts of tables of at most so many rows keep their ids until they were searched: there may be thousands of them."""
_NONE: Final = np.zeros(0, np.int64)
_BESIDE_WORKERS: Final = 2
"""Threads that search for ids that occur twice while values are read."""


@dataclass(slots=True)
class _Ids:
    """The ids of one table in one shard, or of a piece of them: their order, and the odd ones, with the lowest."""

    order: IdOrder = NO_IDS
    misplaced: int = 0
    negative: int = 0
    examples: list[int] = field(default_factory=list)
    negative_examples: list[int] = field(default_factory=list)
    kept: list[bulk.I64] = field(default_factory=list)
    fault: CorruptError | None = None

    def add(self, behind: _Ids) -> None:
        """Add the piece that follows."""
        self.fault = self.fault or behind.fault
        self.order = self.order.followed_by(behind.order)
        self.misplaced += behind.misplaced
        self.negative += behind.negative
        self.examples = sorted(self.examples + behind.examples)[:_NAMED]
        self.negative_examples = sorted(self.negative_examples + behind.negative_examples)[:_NAMED]
        self.kept += behind.kept


@dataclass(frozen=True, slots=True)
class _IdsWork:
    """The pass over ids; a task is some pieces. With `keep`, small tables keep their ids, to be searched at once."""

    source: CheckpointValue
    keep: bool

    def open(self) -> Checkpoint:
        return self.source.open()

    def do(self, opened: Checkpoint, task: tuple[IdsAt, ...], advance: Advance) -> list[_Ids]:
        return [self._look(opened, place, advance) for place in task]

    def _look(self, checkpoint: Checkpoint, place: IdsAt, advance: Advance) -> _Ids:
        shard, entry = checkpoint.shards[place.shard], checkpoint.shards[place.shard].tables[place.table]
        found = _Ids()
        try:
            for piece in cut_piece(checkpoint, place.piece(checkpoint), PIECE_BYTES):
                ids = read_piece(checkpoint, piece).ids
                order, wrong, negative = order_of(ids), _NONE, _NONE
                ps_id, ps_num = shard.file.ps_id, shard.file.ps_num
                if ps_num > bulk.MAX_OWNERS or not bulk.have_owner(ids, ps_num, ps_id):
                    wrong = np.flatnonzero(placement.row_owners(ids, ps_num) != ps_id)
                if order.lowest < 0:
                    negative = np.flatnonzero(ids < 0)
                odd = (ids[wrong[:_NAMED]].tolist(), ids[negative[:_NAMED]].tolist())
                kept = [ids] if self.keep and entry.rows <= _KEPT_ROWS and len(ids) else []
                found.add(_Ids(order, len(wrong), len(negative), *odd, kept))
                advance(piece.end - piece.start)
        except CorruptError as error:
            found.fault = error
        return found


@dataclass(slots=True)
class _Table:
    """The ids of one table in all shards: their order, where they are, and how many are in a wrong shard."""

    order: IdOrder = NO_IDS
    misplaced: int = 0
    places: list[IdsAt] = field(default_factory=list)

    def add(self, found: _Ids, places: Sequence[IdsAt]) -> None:
        """Add those of the shard that follows."""
        self.order = self.order.followed_by(found.order)
        self.misplaced += found.misplaced
        self.places += places


@dataclass(frozen=True, slots=True)
class _TwiceWork:
    """The search for ids that occur twice in a table of one shard, or with `across` in several shards.

    A task is (their pieces, their rows, bits of a hash, turn).
    """

    source: CheckpointValue
    across: bool = False

    def open(self) -> Checkpoint:
        return self.source.open()

    def do(
        self,
        opened: Checkpoint,
        task: tuple[tuple[IdsAt, ...], int, int, int],
        advance: Advance,  # noqa: ARG002
    ) -> tuple[int, list[int]]:
        places, rows, bits, turn = task
        pieces = [cut for place in places for cut in cut_piece(opened, place.piece(opened), PIECE_BYTES)]
        return (repeated_across if self.across else repeated_of_turn)(opened, pieces, rows, bits, turn)


class ContentCheck:
    """The checks that read ids and values, over all shards."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        version: Version,
        report: Report,
        executor: Executor,
        reporter: Reporter,
        *,
        values: bool = False,
    ) -> None:
        self.checkpoint = checkpoint
        self.version = version
        self.report = report
        self.executor = executor
        self.reporter = reporter
        self._places: list[IdsAt] = []
        self._tables: dict[tuple[int, str], _Table] = {}
        """By the number of shards of the set, and the name."""
        self._unsure: list[tuple[ShardIndex, TableEntry, list[IdsAt], IdOrder]] = []
        self._beside = Beside(2)
        self._search: Future[list[tuple[int, tuple[int, list[int]]]]] | None = None
        self._pass: Future[None] | None = None
        self._passed: SimpleQueue[list[IdsAt]] = SimpleQueue()  # of each part of a table; an empty one is the end
        self._of_ids = report
        self._sound = True
        self._odd: Mapping[tuple[int, bool, str], npt.NDArray[np.int64]] = {}
        self._id_bytes = sum(run.end - run.start for s in checkpoint.shards for t in s.tables for run in t.ids)
        total = self._id_bytes + (value_bytes(checkpoint) if values else 0)
        self._task_bytes = executor.task_bytes(total)
        self._with_values = values

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
        checkpoint, executor = self.checkpoint, self.executor
        if not executor.elsewhere:
            checkpoint.keep_ids(executor.threads)
        is_far = any(checkpoint.reader(shard).block_bytes for shard in checkpoint.shards)
        if self._with_values and is_far and not executor.elsewhere:
            self._of_ids = Report()
            self.reporter.start("checking ids and values", self._id_bytes + value_bytes(checkpoint))
            # What takes no request takes a core: with more threads no table would be done before all of them are.
            near = Threads(default_workers()) if checkpoint.has_near_ids else executor
            self._pass = self._beside.begin(lambda: self._check_beside(near))
        else:
            self.reporter.start("checking ids", self._id_bytes)
            self._check_all(executor)

    def _check_beside(self, executor: Executor) -> None:
        try:
            with self._of_ids.checking("ids"):
                self._check_all(executor)
        finally:
            self._passed.put([])

    def _check_all(self, executor: Executor) -> None:
        """Check all ids; whoever reads values may begin with those of each part of a table that has passed."""
        checkpoint = self.checkpoint
        units: dict[tuple[int, int], tuple[_Ids, list[IdsAt]]] = {}
        places = list(ids_at(checkpoint, self._task_bytes, values=self._with_values))
        work = _IdsWork(CheckpointValue.of(checkpoint), keep=not executor.elsewhere)
        some = in_tasks(places, self._task_bytes)
        current: tuple[int, int] | None = None
        with closing(executor.run(work, checkpoint, some, self.reporter.advance)) as results:
            for place, found in zip(places, chain.from_iterable(results), strict=True):
                key = (place.shard, place.table)
                if current not in {None, key}:
                    self._sound &= self._finish_unit(*units[current])
                    if stop_requested():
                        raise LockedError("stopped")
                current = key
                unit, own = units.setdefault(key, (_Ids(), []))
                own.append(place._replace(first_row=unit.order.rows, rows=found.order.rows))
                unit.add(found)
        if current is not None:
            self._sound &= self._finish_unit(*units[current])
        for number, shard in enumerate(checkpoint.shards):
            for at, entry in enumerate(shard.tables):
                if (number, at) not in units:  # rows without ids, or neither
                    self._sound &= self._has_all_ids(shard, entry, 0)
        self._report_across()
        if self._unsure and self._with_values:
            workers = min(self.executor.threads, _BESIDE_WORKERS)
            self._search = self._beside.begin(lambda: self._search_large(workers, SORTED_AT_ONCE // 2))
        elif self._unsure:
            self._report_large(self._search_large(executor.threads, SORTED_AT_ONCE))

    def _search_large(self, workers: int, at_once: int) -> list[tuple[int, tuple[int, list[int]]]]:
        """Search large tables for ids that occur twice, with so many ids in memory at a time."""
        units = [([p.piece(self.checkpoint) for p in places], order) for _, _, places, order in self._unsure]
        return list(Search(self.checkpoint, max(at_once // workers, 1)).each(units, workers))

    def _report_large(self, found: list[tuple[int, tuple[int, list[int]]]]) -> None:
        for number, (count, some) in found:
            shard, entry, _, _ = self._unsure[number]
            self._report_duplicates(shard, entry, (count, some[:_NAMED]))

    def wait_for_ids(self) -> None:
        """Wait for what `check_ids` left to other threads, and report it; raises their errors."""
        if self._of_ids is not self.report:
            assert self._pass is not None  # noqa: S101 - they have findings of their own
            awaited(self._pass)
            self.report.take(self._of_ids)
            self._of_ids = self.report
        search, self._search = self._search, None
        if search is not None:
            self._report_large(awaited(search))

    def close(self) -> None:
        """Stop what still runs beside."""
        self._beside.close()

    def _finish_unit(self, found: _Ids, places: list[IdsAt]) -> bool:
        """Report what was found in one table of one shard; return whether it has as many ids as rows."""
        shard = self.checkpoint.shards[places[0].shard]
        entry = shard.tables[places[0].table]
        if found.fault is not None:
            self._report_fault(shard, entry, found.fault)
            return False
        self._report_counts(shard, entry, found)
        if not self._has_all_ids(shard, entry, found.order.rows):
            return False
        if not found.order.ascending:
            if found.kept:
                self._report_duplicates(shard, entry, count_repeated(found.kept))
            elif self.executor.elsewhere:
                self._report_duplicates(shard, entry, self._find_repeated(places, entry.rows))
            else:
                self._unsure.append((shard, entry, list(places), found.order))
        found.kept.clear()
        self._places += places
        self._tables.setdefault((shard.file.ps_num, entry.name), _Table()).add(found, places)
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
            check_row_count(self.checkpoint.reader(shard), entry, ids)
        except CorruptError as error:
            self._report_fault(shard, entry, error)
            return False
        return True

    def _report_fault(self, shard: ShardIndex, entry: TableEntry, error: CorruptError) -> None:
        self._of_ids.add(error.code, error.message, shard=shard.file, subject=entry.name, offset=error.offset)

    def _report_across(self) -> None:
        """Report ids that several shards have: only a table with a row in a wrong shard can have any."""
        workers = self.executor.threads
        for (_, name), table in self._tables.items():
            if not table.misplaced or len({place.shard for place in table.places}) < 2:
                continue
            if not self.executor.elsewhere:
                pieces = [place.piece(self.checkpoint) for place in table.places]
                search = Search(self.checkpoint, max(SORTED_AT_ONCE // workers, 1))
                if not search.repeated(pieces, table.order, workers)[0]:
                    continue
            count, named = self._find_repeated(table.places, table.order.rows, across=True)
            if count:
                ids = ", ".join(map(str, sorted(named)))
                several = f"{counted(count, 'id')} {'is' if count == 1 else 'are'} in several shards"
                message = f"{several}: {ids}; ElasticDL restores only one row per id"
                self._of_ids.add("duplicate-id", message, path=self.version.path, subject=name)

    def _find_repeated(self, places: Sequence[IdsAt], rows: int, *, across: bool = False) -> tuple[int, list[int]]:
        """Return (the number of ids that repeat another one, the lowest of them); each turn sorts those of one hash."""
        at_once = SORTED_AT_ONCE // self.executor.threads
        bits = (max(-(-rows // at_once), 1) - 1).bit_length()
        work = _TwiceWork(CheckpointValue.of(self.checkpoint), across)
        tasks = ((tuple(places), rows, bits, turn) for turn in range(1 << bits))
        with closing(self.executor.run(work, self.checkpoint, tasks, _ignore)) as results:
            found = list(results)
        return sum(count for count, _ in found), sorted(i for _, some in found for i in some)[:_NAMED]

    def _report_counts(self, shard: ShardIndex, entry: TableEntry, counts: _Ids) -> None:
        n = shard.file.ps_num
        if counts.misplaced:
            named = ", ".join(f"id {i} to shard {i % n}" for i in counts.examples)
            belong = "row belongs to another shard" if counts.misplaced == 1 else "rows belong to other shards"
            message = f"{counts.misplaced} {belong}: {named}"
            self._of_ids.add("misplaced-row", message, shard=shard.file, subject=entry.name, offset=entry.offset)
        if counts.negative:
            named = ", ".join(map(str, counts.negative_examples))
            message = f"the table has {counted(counts.negative, 'negative id')} in this shard: {named}"
            self._of_ids.add("negative-id", message, shard=shard.file, subject=entry.name, offset=entry.offset)

    def _report_duplicates(self, shard: ShardIndex, entry: TableEntry, found: tuple[int, list[int]]) -> None:
        count, named = found
        if count:
            repeat = "repeats" if count == 1 else "repeat"
            ids = ", ".join(map(str, named))
            message = f"{counted(count, 'row')} {repeat} an id: {ids}; ElasticDL restores only one row per id"
            self._of_ids.add("duplicate-id", message, shard=shard.file, subject=entry.name, offset=entry.offset)

    def check_values(self, *, certain: bool, sums: ChunkSums | None = None) -> str | None:
        """Read every value: find NaN, infinite and huge ones, and return the fingerprint when the content is `certain`.

        All bytes that are read are added to `sums`. A second call stands for the first: `report_odd` is for the end.
        Shards that contradict each other have no fingerprint: their rows, of one name and two sizes, do not add up.
        """
        checkpoint, is_first = self.checkpoint, self._of_ids is not self.report
        if not is_first:
            self.reporter.start("checking values", value_bytes(checkpoint))
        found = read_values(
            checkpoint,
            self._places_passed() if is_first else self._places,
            self.executor,
            self.reporter.advance,
            task_bytes=self._task_bytes,
            sketched=certain and self._sound,
            odd=True,
            sums=sums,
        )
        self._odd = found.odd
        if not certain or not self.sound:
            return None
        try:
            return fingerprint_of(checkpoint, found.sketch).text
        except (KeyError, EdlCkptError):
            return None

    def report_odd(self) -> None:
        """Report the NaN, infinite and huge values that were found."""
        for (number, is_dense, name), counts in sorted(self._odd.items()):
            shard, kind = self.checkpoint.shards[number], "variable" if is_dense else "table"
            entries: tuple[DenseEntry | TableEntry, ...] = shard.variables if is_dense else shard.tables
            entry = next(e for e in entries if e.name == name)
            for code, count in zip(("nan", "inf", "huge-value"), counts.tolist(), strict=True):
                if count:
                    fault = {"nan": "NaN", "inf": "infinite", "huge-value": f"2**{HUGE_EXPONENT} or more"}[code]
                    are = "is" if count == 1 else "are"
                    message = f"{count} of the {kind}'s values in this shard {are} {fault}"
                    self.report.add(code, message, shard=shard.file, subject=name, offset=entry.values.start)


def _ignore(size_bytes: int) -> None:
    """Do nothing: these bytes were counted when they were read first."""
