"""A task of a move in another process: it opens the files that it writes, and answers when they are safe again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

from edl_ckpt.core.base.parallel import Advance
from edl_ckpt.core.base.progress import SILENT, Counted, Reporter
from edl_ckpt.core.commit.interface import SharedTargets
from edl_ckpt.core.commit.sent_parts import Sending, SharedUploads, TargetPart
from edl_ckpt.core.converting.rows import Cut
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.kernel.routing import sketch_size
from edl_ckpt.core.moving.extents import ExtentSinks, spans_of
from edl_ckpt.core.moving.goal import Goal, cuts_in
from edl_ckpt.core.moving.input import Input, Stretch
from edl_ckpt.core.moving.move import Mover, MoveTerms
from edl_ckpt.core.moving.parts import DenseBytes, MoveTask, SummedBytes
from edl_ckpt.core.moving.sealed import SealedBytes
from edl_ckpt.core.moving.sums import SummedSinks
from edl_ckpt.core.proof.fingerprint import ContentSketch
from edl_ckpt.core.storage.interface import Sinks


class MoveDone(NamedTuple):
    """What a task answers: the sums of what it has counted, and the parts that it has sent."""

    sketch: ContentSketch
    tensors: ContentSketch
    """The sums of tensors that are neither variables nor matrices."""
    overflowed: int
    """Values that became infinite by a cast."""
    parts: Sequence[TargetPart]
    crcs: Mapping[tuple[int, int], Mapping[int, tuple[int, int]]]
    """The pieces of each value that has a checksum in the framing, by its file and offset."""


def move_task(
    opened: Sending[Input], task: MoveTask[Stretch], advance: Advance, *, terms: MoveTerms, targets: SharedTargets
) -> MoveDone:
    """Move what a task needs, in another process; what it reads again is neither summed nor reported."""
    goal, cuts = terms.goal, _cuts_of(task, terms.goal)
    numbers = {cut.file for cut in cuts} | _files_of(task, goal)
    sends_parts = isinstance(targets, SharedUploads)
    crcs, row_crcs = terms.sums.of_cuts(cuts), terms.sums.of_rows(numbers)
    if sends_parts:  # what is read is not what is sent: bytes are summed as they are sent
        crcs, row_crcs = {}, {(file, offset): Crc32(terms.sums.checksum) for file, offset, _ in task.summed}
    with targets.opened(numbers, task.extents, opened.memory) as files:
        sinks: Sinks = files
        waiting, whole = list[SealedBytes](), dict[tuple[int, int], Crc32]()
        if sends_parts:
            whole = {(file, offset): Crc32(terms.sums.checksum) for file, offset, _ in task.sealed}
            sinks = _sinks_of_parts(files, task, row_crcs, whole)
            waiting = [some for some in task.between if some.sums]
        elif row_crcs and task.reads:
            sinks = SummedSinks(files, row_crcs, terms.sums.rows)
        for extent in task.extents:
            files[extent.target].write_between(goal.between(extent))
        known = (some for some in task.between if not some.sums)
        for number, of_file in groupby(known, key=itemgetter(0)):
            files[number].write_between((some.offset, some.data) for some in of_file)
        first = move_reads(opened.source, task, sinks, terms, Counted(advance), crcs)
        for some in waiting:
            sinks[some.file].write(some.offset, some.filled({**row_crcs, **whole}))
    for crc in row_crcs.values():
        crc.join()
    done = {place: crc.pieces for place, crc in {**crcs, **row_crcs}.items() if crc.size_bytes}
    return MoveDone(first.sketch, first.tensors, first.overflowed, files.sent, done)


def move_reads(
    source: Input,
    task: MoveTask[Stretch],
    files: Sinks,
    terms: MoveTerms,
    reporter: Reporter,
    crcs: Mapping[tuple[int, int], Crc32] | None = None,
) -> Mover:
    """Read what a task needs, and write what the files take of it; return the mover with the sums of what counts."""
    first = Mover(terms, source, files, reporter, crcs)
    again = Mover(terms, source, files, SILENT, skips=True)
    for dense in task.dense:
        first.move_dense(dense)
    for dense in task.again:
        again.move_dense(dense)
    for rows, values, counts in task.reads:
        mover = first if counts else again
        if isinstance(rows, Stretch):
            mover.move_stretch(rows, values=values)
        else:
            mover.move_small(rows)
    return first


def _sinks_of_parts(
    files: Sinks,
    task: MoveTask[Stretch],
    crcs: Mapping[tuple[int, int], Crc32],
    whole: Mapping[tuple[int, int], Crc32],
) -> Sinks:
    """Return the files of a task that sends parts: they take only the bytes of these, and sum each of them once.

    `whole` are the checksums of values that are summed before bytes are dropped.
    """
    taken = ExtentSinks(SummedSinks(files, crcs, _sizes_of(task.summed)), spans_of(task.extents))
    return SummedSinks(taken, whole, _sizes_of(task.sealed)) if whole else taken


def _sizes_of(values: Iterable[SummedBytes]) -> dict[int, dict[int, int]]:
    """Return the bytes of values by their files and offsets."""
    sizes: dict[int, dict[int, int]] = {}
    for file, offset, size in values:
        sizes.setdefault(file, {})[offset] = size
    return sizes


def _cuts_of(task: MoveTask[Stretch], goal: Goal) -> list[Cut]:
    """Return where the variables of a task go, and the matrices that move as their bytes."""
    return [cut for dense in task.dense for cut in cuts_in(goal.cuts(dense.name), dense.start, dense.size)]


def _files_of(task: MoveTask[Stretch], goal: Goal) -> set[int]:
    """Return the numbers of the files that get rows of a task."""
    numbers = set[int]()
    for read in task.reads:
        if isinstance(read.rows, Stretch):
            numbers.update(goal.files(read.rows.table, read.rows.counts.targets))
        else:
            numbers.update(range(goal.rules.buckets))  # small tables have their framing in each shard
    return numbers


def with_sum_bytes(
    pieces: Iterable[tuple[DenseBytes, int]], terms: MoveTerms
) -> Iterator[tuple[DenseBytes, int, str, int]]:
    """Yield pieces of variables with their sizes, as `packed` takes them, and the bytes of their sums in a result."""
    for dense, size_bytes in pieces:
        total = terms.summed_bytes(dense.name)
        yield dense, size_bytes, "", total if total <= bulk.CHUNK_BYTES else 4 * sketch_size(total)
