"""Writing a new version from arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.checkpoint.fingerprint import fingerprint_checkpoint
from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.checkpoint.sealing import make_seal
from edl_ckpt.core.checkpoint.target import free_target
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import Written, written_version
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.errors import UnsupportedError, UsageError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.model import DTYPES, DType, TableInfo, Version
from edl_ckpt.core.format.names import Layout, writable_layout
from edl_ckpt.core.format.shard_layout import PlacedTable, PlacedVariable, ShardLayout, lay_out_shard
from edl_ckpt.core.parallel import default_workers, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage import LocationLike, open_store
from edl_ckpt.core.storage.location import Location

if TYPE_CHECKING:
    from edl_ckpt.core.storage.interface import Sink


@dataclass(frozen=True, slots=True)
class Table:
    """A whole table in memory: int64 [n] ids, their [n, dim] vectors, and the initializer of ids yet unseen."""

    ids: npt.NDArray[np.int64]
    vectors: npt.NDArray[np.generic]
    initializer: str = "uniform"


def save_checkpoint(
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    variables: Mapping[str, npt.NDArray[np.generic]],
    tables: Mapping[str, Table],
    layout: str | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = SILENT,
) -> Version:
    """Write a new version from arrays, placed for `ps_num` servers, under the lock of the location, and return it.

    The version is written, read back, published and sealed as `commit` says: a crash leaves nothing or the whole
    version. It follows the layout at the location unless `layout` names one ('design' or 'elasticdl'). Raises
    RefusedError when the version exists or the location has several layouts, UsageError for arrays that are no table,
    UnsupportedError for a dtype that no checkpoint can hold, LockedError when another command holds the lock for
    `wait_seconds`.
    """
    if not 1 <= ps_num <= placement.MAX_PS_NUM:
        raise UsageError(f"ps_num must be 1 to {placement.MAX_PS_NUM}, got {ps_num}")
    if layout is not None:
        writable_layout(layout)
    dense = {name: np.asarray(value) for name, value in variables.items()}
    for name, table in tables.items():
        _check_table(name, table)
    parts = [_part_of(version, i, ps_num, dense, tables) for i in range(ps_num)]
    made: list[Seal] = []

    def prove(written: Written) -> Seal:
        with open_checkpoint(written.version, staged=written.staged) as checkpoint:
            made.append(make_seal(checkpoint, fingerprint_checkpoint(checkpoint).text, workers=1))
        return made[0]

    where = Location.of(location)
    sizes = [part.layout.size_bytes for part in parts]
    with location_lock(where, "save", wait_seconds=wait_seconds, reporter=reporter, create=True) as place:
        target = free_target(where, version, layout=layout)
        for warning in target.warnings:
            reporter.warn(warning)
        with open_output(place, target.layout, version, purpose="save") as output:
            for file, part in zip(output.create(sizes), parts, strict=True):
                part.write(file)
            output.publish(prove)
    return _as_listed(where, target.layout, version, sizes, made[0].fingerprint)


def _as_listed(location: Location, layout: Layout, number: int, sizes: Sequence[int], fingerprint: str) -> Version:
    """Return a version that was just written as a listing shows it, without listing the location."""
    store = open_store(location)
    directory = layout.version_dir(number)
    version = written_version(location, store.path(directory), layout, number, sizes)
    files = [f"{directory}/{layout.shard_file(i, len(sizes))}" for i in range(len(sizes))]
    times = run_parallel(store.modified, files, default_workers(remote=store.properties.round_trips))
    shards = tuple(replace(shard, modified=time) for shard, time in zip(version.shards, times, strict=True))
    latest = max((shard.modified for shard in shards), default=0.0)
    return replace(version, shards=shards, modified=latest, fingerprint=fingerprint)


def _check_table(name: str, table: Table) -> None:
    if table.ids.ndim != 1 or table.ids.dtype != np.int64 or table.vectors.shape[:1] != table.ids.shape:
        raise UsageError(f"table {name!r}: expected ids int64 [n] and vectors [n, dim]")
    if table.vectors.ndim != 2:
        raise UsageError(f"table {name!r}: expected vectors [n, dim], got shape {list(table.vectors.shape)}")


@dataclass(frozen=True, slots=True)
class _ShardPart:
    """What one server holds of the given variables and tables, and where it lies in the shard."""

    layout: ShardLayout
    dense: Mapping[str, npt.NDArray[np.generic]]
    rows: Mapping[str, tuple[bulk.U8, npt.NDArray[np.generic]]]
    """Of each table, the ids as varints and the vectors."""

    def write(self, file: Sink) -> None:
        for offset, data in self.layout.between:
            file.write(offset, data)
        for name, value in self.dense.items():
            file.write(self.layout.dense_at[name], little_endian(value))
        for name, (ids, vectors) in self.rows.items():
            file.write(self.layout.ids_at[name], ids.data)
            file.write(self.layout.values_at[name], little_endian(vectors))


def _part_of(
    version: int,
    ps_id: int,
    ps_num: int,
    variables: Mapping[str, npt.NDArray[np.generic]],
    tables: Mapping[str, Table],
) -> _ShardPart:
    """Return what one server holds of the given variables and tables."""
    mine = {n: v for n, v in sorted(variables.items()) if placement.variable_owner(n, ps_num) == ps_id}
    rows: dict[str, tuple[bulk.U8, npt.NDArray[np.generic]]] = {}
    infos, parts = [], []
    for name, table in sorted(tables.items()):
        own = placement.row_owners(table.ids, ps_num) == ps_id
        rows[name] = (bulk.encode_varints(table.ids[own]), table.vectors[own])
        infos.append(TableInfo(name, table.vectors.shape[1], table.initializer))
        dtype = _dtype_of(name, table.vectors)
        parts.append(PlacedTable(name, dtype, table.vectors.shape[1], int(own.sum()), len(rows[name][0])))
    dense = [PlacedVariable(n, _dtype_of(n, v), v.shape, v.nbytes) for n, v in mine.items()]
    return _ShardPart(lay_out_shard(version, infos, dense, parts), mine, rows)


def little_endian(values: npt.NDArray[np.generic]) -> bytes:
    """Return the values as a checkpoint holds them: C order, little-endian."""
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _dtype_of(name: str, values: npt.NDArray[np.generic]) -> DType:
    dtype = DTYPES.get(values.dtype.name)
    if dtype is None:
        raise UnsupportedError(f"{name!r}: no checkpoint can hold dtype {values.dtype.name}")
    return dtype
