"""Writing a version again for another number of parameter servers.

Two passes, one read of the values. The plan reads headers and ids: from them it knows the size of every target file
and the place of every row in it, down to the byte. The execution streams values once, in batches, each batch ordered
by owner and written at its offsets; ids move as the varint bytes they are. Row order in a target is that of the
source's shards and rows, so the result does not depend on the number of workers or the size of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from edl_ckpt.core.checkpoint.catalog import list_versions
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, VALUE_BATCH_BYTES, IdPiece, id_pieces, number_rows, read_piece
from edl_ckpt.core.commit.remote import OUTPUT_MEMORY_BYTES, open_memory
from edl_ckpt.core.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.format.names import DESIGN, SINGLE_FILE, Layout, writable_layout
from edl_ckpt.core.format.shard_layout import (
    EMPTY_DTYPE,
    LARGE_SHARD_BYTES,
    PlacedTable,
    PlacedVariable,
    ShardLayout,
    lay_out_shard,
)
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.storage import LocationLike, Store, open_store
from edl_ckpt.core.storage.location import Location

_BYTES_PER_ID_BYTE: Final = 24
"""Memory for each byte of a piece of ids: the bytes, what they decode to, owners, lengths, and copies by owner."""
_MAX_PIECES: Final = 4096
REMOTE_BATCH_BYTES: Final = 8 << 20
"""Bytes of values of one request to remote storage: what a round trip costs is spread over them."""
_MAPPED_BATCH_BYTES: Final = 16 << 20
"""What the proof maps at a time: it is not copied, and each end of a mapping interrupts all cores."""


@dataclass(frozen=True, slots=True)
class TargetShard:
    """A shard to be written, or written."""

    ps_id: int
    path: str
    size_bytes: int
    variables: int
    rows: int


@dataclass(frozen=True, slots=True, eq=False)
class _Route:
    """Where the rows of a piece of ids go: int64 [to_ps] offsets into the target files, and how many bytes of ids."""

    piece: IdPiece
    rows: bulk.I64
    id_bytes: bulk.I64
    values_at: bulk.I64
    ids_at: bulk.I64


@dataclass(frozen=True, slots=True, eq=False)
class ReshardPlan:
    """What a reshard will write, and where; made from headers and ids alone."""

    ref: str
    source: Version
    output: Location
    in_place: bool
    from_ps: int
    to_ps: int
    version: int
    layout: str
    rows: int
    size_bytes: int
    targets: tuple[TargetShard, ...]
    warnings: tuple[str, ...]
    workers: int
    batch_bytes: int
    piece_bytes: int
    """Bytes of ids that are one task."""
    proof_batch_bytes: int
    """Bytes of what was written that the proof maps at a time."""
    bytes_read: int
    spool: bool
    """True when remote shards are written to the local disk first: their open parts would take too much memory."""
    layouts: tuple[ShardLayout, ...]
    routes: tuple[_Route, ...]

    @property
    def skew(self) -> float:
        """Return the size of the largest target shard over the mean: 1.0 is balanced."""
        return max(t.size_bytes for t in self.targets) * self.to_ps / max(self.size_bytes, 1)


def plan_reshard(
    version: Version,
    ps_num: int,
    *,
    output: LocationLike | None = None,
    layout: str | None = None,
    number: int | None = None,
    workers: int | None = None,
    max_memory_bytes: int | None = None,
    reporter: Reporter = SILENT,
) -> ReshardPlan:
    """Read headers and ids of a version and return what writing it for `ps_num` servers means; nothing is written.

    Without `output` (a checkpoint_dir) the version is replaced in place. `layout` is 'design' or 'elasticdl', the
    version's own when None; `number` is the version it becomes, its own when None. `max_memory_bytes` bounds the
    batches of all workers together. Raises what
    `open_checkpoint` raises, UsageError for bounds that cannot be met, RefusedError for a target that exists.
    """
    if not 1 <= ps_num <= placement.MAX_PS_NUM:
        raise UsageError(f"the number of parameter servers must be 1 to {placement.MAX_PS_NUM}, got {ps_num}")
    chosen = _target_layout(version, layout, output)
    where = version.location if output is None else Location.of(output)
    store = open_store(where)
    directory = _target_directory(version, chosen, where, number, in_place=output is None)
    with open_checkpoint(version) as checkpoint:
        far = open_store(version.location).properties.round_trips
        workers = default_workers(remote=far or store.properties.round_trips) if workers is None else workers
        in_memory = not store.properties.positional_write  # then half of the limit is for open parts
        for_batches = max_memory_bytes // 2 if in_memory and max_memory_bytes is not None else max_memory_bytes
        piece_bytes, batch_bytes, workers = _memory_shares(
            checkpoint, for_batches, workers, REMOTE_BATCH_BYTES if far else VALUE_BATCH_BYTES
        )
        pieces = list(id_pieces(checkpoint, piece_bytes))
        reporter.start("reading ids", sum(p.end - p.start for p in pieces))
        routes = _route(checkpoint, pieces, ps_num, workers, reporter)
        layouts, routes = _lay_out(checkpoint, routes, ps_num, number)
        bytes_read = checkpoint.bytes_read
        targets = _targets(layouts, routes, ps_num, chosen, directory)
        warnings = list(_warnings(checkpoint, targets, ps_num))
    workers, spool = _remote_workers(store, [t.size_bytes for t in targets], workers, max_memory_bytes)
    if spool:
        warnings.append(
            f"the open parts of {ps_num} uploads would take {spool} bytes of memory: the shards are spooled to the"
            " local disk first ($TMPDIR); a larger --max-memory avoids that"
        )
    return ReshardPlan(
        ref=version.ref,
        source=version,
        output=where,
        in_place=output is None,
        from_ps=version.ps_num or 0,
        to_ps=ps_num,
        version=version.version if number is None else number,
        layout=chosen.name,
        rows=sum(t.rows for t in targets),
        size_bytes=sum(t.size_bytes for t in targets),
        targets=targets,
        warnings=tuple(warnings),
        spool=bool(spool),
        workers=workers,
        batch_bytes=batch_bytes,
        piece_bytes=piece_bytes,
        proof_batch_bytes=(
            _MAPPED_BATCH_BYTES
            if max_memory_bytes is None
            else max(batch_bytes, min(_MAPPED_BATCH_BYTES, max_memory_bytes // (2 * workers)))
        ),
        bytes_read=bytes_read,
        layouts=layouts,
        routes=tuple(routes),
    )


def _target_layout(version: Version, layout: str | None, output: object | None) -> Layout:
    """Return the layout to write: the one asked for, else the version's own where it can hold shards."""
    if layout is not None:
        chosen = writable_layout(layout)
        if output is None and chosen != version.layout:
            raise UsageError(
                f"the version is in the {version.layout.name} layout; in place it keeps it",
                path=version.path,
                hint="try: --output LOCATION",
            )
        return chosen
    if version.layout is not SINGLE_FILE:
        return version.layout
    if output is None:
        raise RefusedError(
            "one file without shards cannot be resharded in place",
            path=version.path,
            hint="try: --output LOCATION",
        )
    return DESIGN


def _target_directory(
    version: Version,
    layout: Layout,
    output: Location,
    number: int | None,
    *,
    in_place: bool,
) -> str:
    """Return the directory the new shards will be in, having looked that nothing is in the way."""
    wanted = version.version if number is None else number
    directory = open_store(output).path(layout.version_dir(wanted))
    if in_place:
        if version.extra:
            raise RefusedError(
                f"the version's directory holds more than its shards ({version.extra[0]!r}): it would be lost",
                path=version.path,
                hint="move it away, or try: --output LOCATION",
            )
        return version.path
    check_free(output, wanted, directory)
    return directory


def check_free(location: Location, number: int, directory: str) -> None:
    """Raise RefusedError when a location has a version of this number already, or anything where it is to be."""
    path = location.local_path
    try:
        taken = any(v.version == number for v in list_versions(location).versions)
    except NotFoundError:
        if path is not None and os.path.lexists(path):
            raise NotFoundError("not a directory", path=location.url) from None
        taken = False
    if taken or (path is not None and os.path.lexists(directory)):
        raise RefusedError(f"version {number} exists there already", path=location.url, hint="nothing was changed")


def _remote_workers(store: Store, sizes: Sequence[int], workers: int, limit: int | None) -> tuple[int, int]:
    """Return (workers whose open parts keep within the limit, 0), or (workers, what parts would take) to be spooled."""
    if store.properties.positional_write:
        return workers, 0
    budget = OUTPUT_MEMORY_BYTES if limit is None else limit // 2
    fewest = next((n for n in range(workers, 0, -1) if open_memory(store, sizes, n) <= budget), 0)
    return (fewest, 0) if fewest else (workers, open_memory(store, sizes, 1))


def _memory_shares(checkpoint: Checkpoint, limit: int | None, workers: int, wanted_batch: int) -> tuple[int, int, int]:
    """Return (bytes of a piece of ids, of a batch of values, workers) that keep within a limit.

    A worker holds a piece of ids, decoded, and two batches: values as read and as ordered by owner. Fewer workers
    are better than none: they are given up before the limit is.
    """
    if workers < 1:
        raise UsageError(f"workers must be at least 1, got {workers}")
    total_ids = sum(run.end - run.start for s in checkpoint.shards for t in s.tables for run in t.ids)
    widest = max((t.row_bytes for s in checkpoint.shards for t in s.tables), default=0)
    piece, batch = max(PIECE_BYTES // 2, total_ids // _MAX_PIECES), max(wanted_batch, widest)
    if limit is None:
        return piece, batch, workers
    least_piece, least_batch = 4096, max(bulk.CHUNK_BYTES, widest)
    least = _BYTES_PER_ID_BYTE * least_piece + 2 * least_batch
    if limit < least:
        raise UsageError(
            f"--max-memory of {limit} bytes is too small: one row of {widest} bytes and its id take {least}"
        )
    workers = min(workers, limit // least)
    share = limit // workers
    batch = max(least_batch, min(batch, share // 4))
    piece = max(least_piece, min(piece, (share - 2 * batch) // _BYTES_PER_ID_BYTE))
    return piece, batch, workers


def _route(
    checkpoint: Checkpoint, pieces: list[IdPiece], ps_num: int, workers: int, reporter: Reporter
) -> list[_Route]:
    """Pass one: decode the ids of each piece and count what goes where."""

    def count(piece: IdPiece) -> tuple[int, bulk.I64, bulk.I64]:
        block = read_piece(checkpoint, piece)
        rows, id_bytes = bulk.tally(bulk.owners(block.ids, ps_num), block.lengths, ps_num)
        reporter.advance(piece.end - piece.start)
        return len(block.ids), rows, id_bytes

    counted = list(run_parallel(count, pieces, workers))
    numbered = number_rows(checkpoint, pieces, [rows for rows, _, _ in counted])
    nowhere = np.zeros(0, np.int64)
    return [
        _Route(piece, rows, id_bytes, nowhere, nowhere)
        for piece, (_, rows, id_bytes) in zip(numbered, counted, strict=True)
    ]


def _lay_out(
    checkpoint: Checkpoint, routes: Sequence[_Route], ps_num: int, number: int | None
) -> tuple[tuple[ShardLayout, ...], list[_Route]]:
    """Compute every target file from the counts, then the offsets of every piece in every target."""
    tables = checkpoint.table_names
    zero = np.zeros(ps_num, np.int64)
    rows = {name: zero.copy() for name in tables}
    id_bytes = {name: zero.copy() for name in tables}
    for route in routes:
        rows[route.piece.entry.name] += route.rows
        id_bytes[route.piece.entry.name] += route.id_bytes
    infos = [checkpoint.infos[name] for name in sorted(checkpoint.infos, key=str.encode)]
    held: list[list[PlacedVariable]] = [[] for _ in range(ps_num)]
    variables = {v.name: v for shard in checkpoint.shards for v in shard.variables}
    for name in sorted(variables, key=str.encode):
        entry = variables[name]
        part = PlacedVariable(name, entry.dtype, entry.shape, entry.size_bytes)
        held[placement.variable_owner(name, ps_num)].append(part)
    dtypes = {name: checkpoint.table_dtype(name) or EMPTY_DTYPE for name in tables}
    ordered = sorted(tables, key=str.encode)
    if number is None:
        number = checkpoint.shards[0].version if checkpoint.shards else 0
    layouts = tuple(
        lay_out_shard(
            number,
            infos,
            held[i],
            [PlacedTable(n, dtypes[n], checkpoint.infos[n].dim, int(rows[n][i]), int(id_bytes[n][i])) for n in ordered],
        )
        for i in range(ps_num)
    )
    values_at = {n: np.array([layout.values_at[n] for layout in layouts], np.int64) for n in tables}
    ids_at = {n: np.array([layout.ids_at[n] for layout in layouts], np.int64) for n in tables}
    placed: list[_Route] = []
    for route in routes:
        name = route.piece.entry.name
        placed.append(replace(route, values_at=values_at[name], ids_at=ids_at[name]))
        values_at[name] = values_at[name] + route.rows * route.piece.entry.row_bytes
        ids_at[name] = ids_at[name] + route.id_bytes
    return layouts, placed


def _targets(
    layouts: Sequence[ShardLayout],
    routes: Sequence[_Route],
    ps_num: int,
    layout: Layout,
    directory: str,
) -> tuple[TargetShard, ...]:
    rows = sum((route.rows for route in routes), np.zeros(ps_num, np.int64))
    return tuple(
        TargetShard(
            i,
            os.path.join(directory, layout.shard_file(i, ps_num)),
            held.size_bytes,
            len(held.dense_at),
            int(rows[i]),
        )
        for i, held in enumerate(layouts)
    )


def _warnings(checkpoint: Checkpoint, targets: Sequence[TargetShard], ps_num: int) -> Iterator[str]:
    large = [t.ps_id for t in targets if t.size_bytes > LARGE_SHARD_BYTES]
    if large:
        yield (
            f"{len(large)} of {ps_num} target shards pass 2 GiB (shard {large[0]} first): Python parameter servers"
            " and ElasticDL's exporter cannot read them"
        )
    usable = placement.crowded_shards(ps_num)
    if usable < ps_num and len(checkpoint.variable_names) > 1:
        yield f"with {ps_num} servers only {usable} can hold dense variables: the hash never gives the others"
    odd = {v.dtype.name for s in checkpoint.shards for v in s.variables if not v.dtype.elasticdl}
    if odd:
        yield f"today's ElasticDL cannot read dtype {', '.join(sorted(odd))}"
