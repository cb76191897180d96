"""Carrying out a reshard: values stream once, each batch ordered by owner and written at its offsets."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

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
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import Written
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.errors import CorruptError, LockedError, UnsupportedError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.model import Extent
from edl_ckpt.core.format.names import Layout, writable_layout
from edl_ckpt.core.format.shard_layout import write_groups
from edl_ckpt.core.operations.reshard.plan import ReshardPlan, TargetShard, _Route
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.annotate import copy_metadata
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Sink


@dataclass(frozen=True, slots=True)
class ReshardResult:
    """What a reshard or an import wrote; `fingerprint` is that of what was read and of what was read back.

    `from_ps` is None where the source was no checkpoint.
    """

    ref: str
    output: str
    from_ps: int | None
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


def execute_reshard(
    plan: ReshardPlan,
    *,
    keep_old: bool = False,
    reporter: Reporter = SILENT,
    wait_seconds: float = LOCK_WAIT_SECONDS,
) -> ReshardResult:
    """Write what a plan says, prove it, publish it by one rename, and seal it; on remote storage as `output.py` says.

    The fingerprint of what was read must equal that of what is read back, else EdlCkptError and nothing is
    published. `keep_old` leaves the old shards of an in-place reshard in the trash. The lock of the output location is
    held for the whole time. Metrics, tags and the note go along to another location. Raises NoSpaceError before
    anything is written when there is no room, LockedError when the source changed since the plan or another command
    holds the lock.
    """
    begin = time.perf_counter()
    if keep_old and not open_store(plan.output).properties.trash:
        raise UnsupportedError("this storage has no rename, so no trash for the old shards", path=plan.output.url)
    layout = plan.source.layout if plan.in_place else _layout_named(plan.layout, plan.source.layout)
    _allow_open_files(plan.to_ps + plan.from_ps)
    with (
        location_lock(
            plan.output, "reshard", wait_seconds=wait_seconds, reporter=reporter, create=not plan.in_place
        ) as place,
        open_checkpoint(plan.source) as checkpoint,
        open_output(
            place,
            layout,
            plan.version,
            purpose="reshard",
            replaces=plan.source if plan.in_place else None,
            keep_old=keep_old,
            spool=plan.spool,
        ) as output,
    ):
        _check_unchanged(checkpoint)
        files = output.create([held.size_bytes for held in plan.layouts])
        for file, held in zip(files, plan.layouts, strict=True):
            for offset, data in held.between:
                file.write(offset, data)
        read = _stream(plan, checkpoint, files, reporter)
        if plan.source.fingerprint not in {"", read.text}:
            raise CorruptError(
                "what was read is not what was sealed; nothing was published",
                code="fingerprint-mismatch",
                path=plan.source.path,
                hint=f"try: edl-ckpt verify {plan.ref} --deep",
            )

        def prove(written: Written) -> Seal:
            seal = prove_version(
                written.version,
                read,
                staged=written.staged,
                workers=plan.workers,
                batch_bytes=plan.proof_batch_bytes,
                piece_bytes=min(plan.piece_bytes, PIECE_BYTES),
                reporter=reporter,
            )
            _check_unchanged(checkpoint)
            return seal

        output.publish(prove)
        written = sum(file.bytes_written for file in files)
        bytes_read = plan.bytes_read + checkpoint.bytes_read
        if not plan.in_place and plan.version == plan.source.version:
            copy_metadata(plan.source, plan.output)
    return ReshardResult(
        ref=plan.ref,
        output=plan.output.url,
        from_ps=plan.from_ps,
        to_ps=plan.to_ps,
        version=plan.version,
        size_bytes=plan.size_bytes,
        bytes_read=bytes_read,
        bytes_written=written,
        rows=plan.rows,
        seconds=time.perf_counter() - begin,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        fingerprint=read.text,
        shards=plan.targets,
    )


def _layout_named(name: str, own: Layout) -> Layout:
    return own if own.name == name else writable_layout(name)


def _check_unchanged(checkpoint: Checkpoint) -> None:
    """Raise LockedError when a source file is not the one that was planned from."""
    checkpoint.check_unchanged()
    for shard in checkpoint.shards:
        if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
            raise LockedError("the shard has changed since the plan was made", path=shard.file.path)


def _allow_open_files(count: int) -> None:
    """Raise the soft limit of open files towards the hard one when a plan needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 64 and soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count + 64, hard), hard))


def _stream(plan: ReshardPlan, checkpoint: Checkpoint, files: Sequence[Sink], reporter: Reporter) -> Fingerprint:
    """Pass two: read every value once, order by owner, write at its offset; return the source's fingerprint."""
    sketch = ContentSketch()
    reporter.start("resharding", sum(v.size_bytes for v in _sources(checkpoint)))

    def move(task: _Route | DensePiece) -> None:
        if isinstance(task, DensePiece):
            _move_dense(plan, checkpoint, task, files, sketch)
            reporter.advance(task.size)
        else:
            _move_rows(plan, checkpoint, task, files, sketch, reporter)

    def place(piece: DensePiece) -> tuple[int, int]:  # each target from front to back: fewer of its parts are open
        owner = placement.variable_owner(piece.entry.name, plan.to_ps)
        return owner, plan.layouts[owner].dense_at[piece.entry.name] + piece.start

    dense = sorted(dense_pieces(checkpoint, plan.batch_bytes), key=place)
    tasks: list[_Route | DensePiece] = [*dense, *plan.routes]
    for _ in run_parallel(move, tasks, plan.workers):
        pass
    return fingerprint_of(checkpoint, sketch)


def _sources(checkpoint: Checkpoint) -> Iterator[Extent]:
    for shard in checkpoint.shards:
        yield from (v.values for v in shard.variables)
        yield from (t.values for t in shard.tables)


def _move_dense(
    plan: ReshardPlan,
    checkpoint: Checkpoint,
    piece: DensePiece,
    files: Sequence[Sink],
    sketch: ContentSketch,
) -> None:
    data = read_dense(checkpoint, piece)
    sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, data)
    owner = placement.variable_owner(piece.entry.name, plan.to_ps)
    files[owner].write(plan.layouts[owner].dense_at[piece.entry.name] + piece.start, data.data)


def _moved(piece: IdPiece) -> LockedError:
    return LockedError(
        f"table {piece.entry.name!r}: its ids are not what they were a moment ago",
        path=piece.shard.file.path,
        offset=piece.start,
        hint="somebody is writing it, or it is read wrongly; try again",
    )


def _move_rows(
    plan: ReshardPlan,
    checkpoint: Checkpoint,
    route: _Route,
    files: Sequence[Sink],
    sketch: ContentSketch,
    reporter: Reporter,
) -> None:
    """Move the rows and ids of one piece to their targets."""
    piece = route.piece
    block = read_piece(checkpoint, piece)
    owner = bulk.owners(block.ids, plan.to_ps)
    if len(block.ids) != int(route.rows.sum()) or len(block.data) != int(route.id_bytes.sum()):
        raise _moved(piece)
    try:
        ids = bulk.group_varints(block.data, block.lengths, owner, route.id_bytes)
    except ValueError:  # of other owners than the plan counted
        raise _moved(piece) from None
    write_groups(files, ids, route.id_bytes, route.ids_at)
    at = route.values_at.copy()
    grouped: bulk.U8 | None = None
    for some, values in row_batches(checkpoint, piece, len(block.ids), plan.batch_bytes):
        sketch.add_rows(piece.entry.name, block.ids[some], values)
        if piece.entry.row_bytes:
            rows, _ = bulk.tally(owner[some], block.lengths[some], plan.to_ps)
            sizes = rows * piece.entry.row_bytes
            if rows.max() == len(values):  # merging 8 into 4, say: all go to one target as they are
                write_groups(files, values.reshape(-1), sizes, at)
            else:
                if grouped is None:
                    grouped = np.empty_like(values)
                bulk.group_rows(values, owner[some], rows, grouped[: len(values)])
                write_groups(files, grouped.reshape(-1), sizes, at)
            at += sizes
        reporter.advance(values.nbytes)
