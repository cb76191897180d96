"""Writing a new version from arrays in memory: an import without files as its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Array, as_array, as_bytes, as_ids, dtype_name
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.numbers import whole_number
from edl_ckpt.core.base.parallel import default_workers, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import describe, escaped
from edl_ckpt.core.catalog.target import Target, free_target
from edl_ckpt.core.commit.interface import written_version
from edl_ckpt.core.kernel.bulk import I64
from edl_ckpt.core.model.dtypes import dtype_named
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.importing.source import (
    ArrayData,
    ImportedTable,
    NamedArrays,
    execute_import,
    prepare_import,
)
from edl_ckpt.core.sources.elasticdl.target import check_ps_num
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.storage import Location, LocationLike
from edl_ckpt.core.storage.interface import RangeReader


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Table:
    """A whole table in memory: int64 [n] ids, their [n, dim] vectors, and the initializer of ids yet unseen.

    Arrays are those of any library: anything with `__array__` or DLPack.
    """

    ids: Array
    vectors: Array
    initializer: str = "uniform"

    def __repr__(self) -> str:
        return describe("Table", "", _shape(self.vectors), escaped(str(self.initializer)))


def _shape(vectors: Array) -> str:
    """Return the shape and dtype of an array of any library, as far as it has them, without making it numpy's."""
    shape = " x ".join(map(str, getattr(vectors, "shape", ())))
    return f"{shape or type(vectors).__name__} {getattr(vectors, 'dtype', '')}".strip()


def save_checkpoint(
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    variables: Mapping[str, Array] = MappingProxyType({}),
    tables: Mapping[str, Table | tuple[Array, Array]] = MappingProxyType({}),
    layout: LayoutName | None = None,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    reporter: Reporter = WARNINGS,
) -> Version:
    """Write a new version from arrays, placed for `ps_num` servers, under the lock of the location, and return it.

    A table is a `Table`, or (ids, vectors), as `to_numpy` returns them, with the initializer 'uniform'. The version is
    written, read back, proved, published and sealed as `commit` says: a crash leaves nothing or the whole version. It
    follows the layout at the location unless `layout` names one ('design' or 'elasticdl'). Memory is a few batches
    beside the arrays, and at most about 80 MiB where ids that do not ascend are looked through for repeated ones;
    arrays that are not contiguous are copied. Raises RefusedError when the version exists or the location has several
    layouts, UsageError for arrays that are no table and for numbers and names that cannot be, CorruptError for an id
    that a table has twice, UnsupportedError for a dtype that no checkpoint can contain, LockedError when another
    command holds the lock for `wait_seconds`.

    >>> tables = {"user": Table(np.arange(6), np.ones((6, 4), np.float32))}
    >>> save_checkpoint("new", 100, ps_num=2, variables={"bias": np.zeros(8)}, tables=tables).ref
    'new@100'
    """
    number, count = whole_number("version", version), whole_number("ps_num", ps_num)
    check_ps_num(count)
    for what, given in (("variables", variables), ("tables", tables)):
        if not isinstance(given, Mapping):
            raise UsageError(f"{what} must be a mapping of names to values, got a {type(given).__name__}")
    arrays = NamedArrays(
        {name: _array(name, as_array(value, f"variable {name!r}")) for name, value in variables.items()},
        tuple(_table(name, table) for name, table in tables.items()),
    )
    target = free_target(Location.of(location), number, layout=layout)
    job = Job.here(reporter=reporter)
    plan, settings = prepare_import(arrays, target, count, job)
    for warning in plan.warnings:
        reporter.warn(warning)
    done = execute_import(plan, settings, job, purpose="save", wait_seconds=wait_seconds)
    return _as_listed(target, [shard.size_bytes for shard in done.shards], done.fingerprint)


def _as_listed(target: Target, sizes: Sequence[int], fingerprint: str) -> Version:
    """Return a version that was just written as a listing shows it, without listing the location."""
    store, layout, number = target.store, target.layout, target.number
    directory = layout.version_dir(number)
    version = written_version(target.location, store.path(directory), layout, number, sizes)
    files = [f"{directory}/{layout.shard_file(i, len(sizes))}" for i in range(len(sizes))]
    states = run_parallel(store.stat, files, default_workers(remote=store.properties.round_trips))
    times = [state.modified if state else 0.0 for state in states]
    shards = tuple(replace(shard, modified=time) for shard, time in zip(version.shards, times, strict=True))
    latest = max((shard.modified for shard in shards), default=0.0)
    return replace(version, shards=shards, modified=latest, fingerprint=fingerprint)


def _table(name: str, table: Table | tuple[Array, Array]) -> ImportedTable:
    if isinstance(table, tuple) and len(table) == 2:
        table = Table(*table)
    if not isinstance(table, Table):
        raise UsageError(f"table {name!r}: expected a Table or (ids, vectors), got a {type(table).__qualname__}")
    ids, vectors = rows_of(name, table)
    return ImportedTable(name, _array(name, ids), _array(name, vectors), table.initializer)


def rows_of(name: str, table: Table) -> tuple[I64, npt.NDArray[Any]]:
    """Return the ids, int64 [n], and the vectors, [n, dim], of a table; UsageError for arrays that are no table."""
    ids = as_ids(table.ids, f"ids of table {name!r}")
    return ids, vectors_of(name, table.vectors, len(ids), None)


def vectors_of(name: str, value: Array, rows: int, dim: int | None) -> npt.NDArray[Any]:
    """Return the vectors of so many rows of a table, of any `dim` when None; UsageError for other arrays."""
    vectors = as_array(value, f"vectors of table {name!r}")
    if vectors.ndim != 2 or len(vectors) != rows or dim not in {None, vectors.shape[1]}:
        expected = "dim" if dim is None else dim
        raise UsageError(f"table {name!r}: expected vectors [{rows}, {expected}], got shape {list(vectors.shape)}")
    return vectors


def _array(name: str, values: npt.NDArray[Any]) -> ArrayData:
    return ArrayData(name, dtype_named(name, dtype_name(values)), values.shape, _MemoryReader(values), 0)


class _MemoryReader(RangeReader):
    """The bytes of an array, C order, little-endian, as those of a file; no copy is made where they are so already."""

    path = ""

    def __init__(self, values: npt.NDArray[np.generic]) -> None:
        self._data = as_bytes(values).data
        self.size_bytes = values.nbytes
        self.bytes_read = 0

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the array."""
        return bytes(self._data[offset : offset + size])

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Copy bytes of the array."""
        buffer[:] = self._data[offset : offset + len(buffer)]
        self.bytes_read += len(buffer)

    def view(self, offset: int, size: int) -> memoryview | None:
        """Return bytes of the array itself."""
        self.bytes_read += size
        return self._data[offset : offset + size]
