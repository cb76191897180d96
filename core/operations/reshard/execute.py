"""Carrying out a reshard: values stream once, each batch ordered by owner and written at its offsets.

Ids move as the varint bytes they are. The fingerprint of the values that were read must be that of the values that
are read back, or nothing becomes visible.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edl_ckpt.core.checkpoint.catalog import check_listed
from edl_ckpt.core.checkpoint.fingerprint import ContentSketch, Fingerprint, fingerprint_of
from edl_ckpt.core.checkpoint.proof import prove_version
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.checkpoint.scan import (
    PIECE_BYTES,
    DensePiece,
    IdPiece,
    dense_pieces,
    read_dense,
    read_piece,
    row_batches,
)
from edl_ckpt.core.checkpoint.target import TargetShard, check_beside
from edl_ckpt.core.checkpoint.trust import check_trust
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import LockedLocation, Written
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.errors import LockedError, UnsupportedError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.shard_layout import write_groups
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.operations.reshard.order import moved_together, piece_order
from edl_ckpt.core.operations.reshard.plan import ReshardPlan, Route
from edl_ckpt.core.operations.reshard.settings import ReshardSettings, settings_for
from edl_ckpt.core.operations.reshard.survey import PieceCounts
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.annotate import copy_metadata
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.words import counted, describe, escaped, size


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """The written version; the source and the version that was read back both have its `fingerprint`."""

    ref: str
    output: str
    from_ps: int
    to_ps: int
    version: int
    size_bytes: int
    bytes_read: int
    bytes_written: int
    rows: int
    seconds: float
    peak_memory_bytes: int
    fingerprint: str
    shards: tuple[TargetShard, ...]
    forced: str | None = None
    """Why the source did not match its seal, where `force` went on; None in every other case."""

    def __repr__(self) -> str:
        return describe(
            "ReshardResult",
            escaped(self.ref),
            f"{self.from_ps} to {counted(self.to_ps, 'shard')}",
            counted(self.rows, "row"),
            size(self.size_bytes),
            f"in {escaped(self.output)}",
        )


def execute_reshard(
    plan: ReshardPlan,
    settings: ReshardSettings | None = None,
    *,
    keep_old: bool = False,
    force: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
) -> ReshardResult:
    """Write a planned version, prove it, make it visible and seal it, with the lock of the target held.

    `settings` are those of `settings_for(plan)` by default. `keep_old` leaves the old shards of an in-place reshard in
    the trash. Elsewhere the version's metadata (metrics, tags, note) is copied with it. Raises LockedError when another
    command holds the lock for longer than `wait_seconds`, or when the source changed since it was surveyed;
    NoSpaceError, before anything is written, when there is no room; EdlCkptError when the proof fails; CorruptError
    when the source has a seal that it does not match. `force` goes on then, and the new seal records it.
    """
    if keep_old and not open_store(plan.target.location).properties.trash:
        raise UnsupportedError(
            "this storage has no rename, so no trash for the old shards", path=plan.target.location.url
        )
    lock = location_lock(plan.target.location, "reshard", create=True, wait_seconds=wait_seconds, reporter=reporter)
    with lock as place:
        chosen = settings or settings_for(plan)
        return write_reshard(plan, place, chosen, keep_old=keep_old, force=force, reporter=reporter)


def write_reshard(
    plan: ReshardPlan,
    place: LockedLocation,
    settings: ReshardSettings,
    *,
    keep_old: bool = False,
    force: bool = False,
    reporter: Reporter = SILENT,
) -> ReshardResult:
    """Do the work of `execute_reshard` for a caller that holds the lock of the target."""
    begin = time.perf_counter()
    target, source = plan.target, plan.survey.source
    if target.in_place:
        check_listed(source, "the version has changed since the plan was made; try again")
    trust = check_trust(source, force=force)
    trust.reporter = reporter
    if not target.in_place:
        check_beside(target.location, target.layout, target.beside)
    output = open_output(
        place,
        target.layout,
        target.number,
        purpose="reshard",
        replaces=target.replaces,
        keep_old=keep_old,
        memory_bytes=settings.part_memory_bytes,
        reporter=reporter,
    )
    _allow_open_files(plan.to_ps + plan.from_ps)
    with open_checkpoint(source) as checkpoint, output:
        _check_unchanged(checkpoint)
        checkpoint.take_ids(plan.survey.kept)
        files = output.create([layout.size_bytes for layout in plan.layouts])
        read = _Move(plan, settings, checkpoint, files, reporter).run()
        trust.confirm(read.text)

        def prove(written: Written) -> Seal:
            seal = prove_version(
                written.version,
                read,
                staged=written.staged,
                workers=settings.workers,
                batch_bytes=settings.proof_batch_bytes,
                piece_bytes=min(settings.piece_bytes, PIECE_BYTES),
                reporter=reporter,
            )
            _check_unchanged(checkpoint)
            return trust.sign(seal, "reshard")

        output.publish(prove)
        bytes_written = sum(file.bytes_written for file in files)
        bytes_read = plan.survey.bytes_read + checkpoint.bytes_read
    if not target.in_place and target.number == source.version:
        copy_metadata(source, target.location, reporter=reporter)
    return ReshardResult(
        ref=plan.ref,
        output=target.location.url,
        from_ps=plan.from_ps,
        to_ps=plan.to_ps,
        version=target.number,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=bytes_written,
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=peak_memory_bytes(),
        fingerprint=read.text,
        shards=plan.shards,
        forced=trust.forced,
    )


def _check_unchanged(checkpoint: Checkpoint) -> None:
    """Raise LockedError when a source file is not the one that was surveyed."""
    checkpoint.check_unchanged()
    for shard in checkpoint.shards:
        if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
            raise LockedError("the shard has changed since the plan was made", path=shard.file.path)


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard one when a plan needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 64 and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 64, hard), hard))


@dataclass(frozen=True, slots=True, eq=False)
class _PieceMove:
    """One piece of ids, and where its rows go."""

    piece: IdPiece
    counts: PieceCounts
    route: Route


class _Move:
    """The pass over the values: each is read once, ordered by owner, and written at its offset."""

    def __init__(
        self,
        plan: ReshardPlan,
        settings: ReshardSettings,
        checkpoint: Checkpoint,
        files: Sequence[Sink],
        reporter: Reporter,
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._checkpoint = checkpoint
        self._files = files
        self._reporter = reporter
        self._sketch = ContentSketch()

    def run(self) -> Fingerprint:
        """Write everything; return the fingerprint of the values that were read."""
        plan, survey = self._plan, self._plan.survey
        for file, layout in zip(self._files, plan.layouts, strict=True):
            file.write_between(layout.between)
        self._reporter.start("resharding", self._value_bytes())
        # Each target from front to back, and few targets at a time: then few parts of uploads are open.
        groups = moved_together(plan)
        dense = sorted(dense_pieces(self._checkpoint, self._settings.batch_bytes), key=self._place)
        pieces = [_PieceMove(survey.pieces[k], survey.counts[k], plan.routes[k]) for k in piece_order(plan)]
        tasks: list[DensePiece | _PieceMove] = [*dense, *pieces]
        tasks.sort(key=lambda task: self._owners(task) % groups)
        for _ in run_parallel(self._do, tasks, self._settings.workers):
            pass
        return fingerprint_of(self._checkpoint, self._sketch)

    def _value_bytes(self) -> int:
        shards = self._checkpoint.shards
        dense = sum(variable.size_bytes for shard in shards for variable in shard.variables)
        return dense + sum(table.values.size_bytes for shard in shards for table in shard.tables)

    def _place(self, piece: DensePiece) -> tuple[int, int]:
        """Return the target shard of a piece of a variable, and its offset there."""
        owner = placement.variable_owner(piece.entry.name, self._plan.to_ps)
        return owner, self._plan.layouts[owner].dense_at[piece.entry.name] + piece.start

    def _owners(self, task: DensePiece | _PieceMove) -> int:
        """Return a number whose remainder by the number of groups is that of the shards to which a task writes."""
        return self._place(task)[0] if isinstance(task, DensePiece) else task.piece.shard.file.ps_id

    def _do(self, task: DensePiece | _PieceMove) -> None:
        if isinstance(task, DensePiece):
            self._move_dense(task)
        else:
            self._move_rows(task)

    def _move_dense(self, piece: DensePiece) -> None:
        data = read_dense(self._checkpoint, piece)
        self._sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, data)
        owner, offset = self._place(piece)
        self._files[owner].write(offset, data.data)
        self._reporter.advance(piece.size)

    def _move_rows(self, task: _PieceMove) -> None:
        """Write the ids of a piece, then its rows in batches."""
        block = read_piece(self._checkpoint, task.piece)
        owner = bulk.owners(block.ids, self._plan.to_ps)
        counts = task.counts
        if len(block.ids) != int(counts.rows.sum()) or len(block.data) != int(counts.id_bytes.sum()):
            raise _changed_ids(task.piece)
        try:
            ids = bulk.group_varints(block.data, block.lengths, owner, counts.id_bytes)
        except ValueError:  # other owners than the survey counted
            raise _changed_ids(task.piece) from None
        write_groups(self._files, ids, counts.id_bytes, task.route.ids_at)
        table, row_bytes = task.piece.entry.name, task.piece.entry.row_bytes
        values_at = task.route.values_at.copy()
        grouped: bulk.U8 | None = None
        batches = row_batches(self._checkpoint, task.piece, len(block.ids), self._settings.batch_bytes)
        for some, values in batches:
            self._sketch.add_rows(table, block.ids[some], values)
            if row_bytes:
                rows, _ = bulk.tally(owner[some], block.lengths[some], self._plan.to_ps)
                ordered = values
                if rows.max() < len(values):  # else all go to one target, as they are: merging 8 into 4, say
                    grouped = np.empty_like(values) if grouped is None else grouped
                    ordered = grouped[: len(values)]
                    bulk.group_rows(values, owner[some], rows, ordered)
                write_groups(self._files, ordered.reshape(-1), rows * row_bytes, values_at)
                values_at += rows * row_bytes
            self._reporter.advance(values.nbytes)


def _changed_ids(piece: IdPiece) -> LockedError:
    return LockedError(
        f"table {piece.entry.name!r}: its ids have changed since they were counted",
        path=piece.shard.file.path,
        offset=piece.start,
        hint="another process is writing the shard, or the storage returns wrong bytes; try again",
    )
