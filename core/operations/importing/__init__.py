"""A new version from arrays in files of other tools, placed for N servers, proved by its fingerprint.

Two passes, as in a reshard: ids say how large every shard is and where each row lies, then values stream once. What was
read and what can be read back must have one fingerprint, else nothing is published.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch
from edl_ckpt.core.checkpoint.proof import prove_version
from edl_ckpt.core.checkpoint.target import TargetShard, free_target
from edl_ckpt.core.commit import open_output
from edl_ckpt.core.commit.interface import Written
from edl_ckpt.core.commit.recovery import location_lock
from edl_ckpt.core.errors import CorruptError, NotFoundError, UsageError
from edl_ckpt.core.format import bulk, placement
from edl_ckpt.core.format.model import ShardFile, State, TableInfo, Version
from edl_ckpt.core.format.names import writable_layout
from edl_ckpt.core.format.shard_layout import PlacedTable, PlacedVariable, ShardLayout, lay_out_shard, write_groups
from edl_ckpt.core.memory import peak_memory_bytes
from edl_ckpt.core.operations.importing.arrays import ArrayData, ArraySource, chunks
from edl_ckpt.core.operations.reshard.execute import ReshardResult
from edl_ckpt.core.parallel import default_workers
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.lock import LOCK_WAIT_SECONDS
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.interface import Sink
from edl_ckpt.core.storage.location import Location

_BATCH_BYTES: Final = 1 << 20
_IDS_AT_ONCE: Final = 1 << 17
_INTEGERS: Final = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}


@dataclass(frozen=True, slots=True)
class ImportedTable:
    """A table to be: its ids [n], its vectors [n, dim], and the initializer of ids yet unseen."""

    name: str
    ids: ArrayData
    vectors: ArrayData
    initializer: str

    @property
    def dim(self) -> int:
        """Return the elements of a row."""
        return self.vectors.shape[1]

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self.dim * self.vectors.dtype.itemsize


@dataclass(frozen=True, slots=True)
class NameMap:
    """How names of arrays become names of variables and tables: a TOML file, or nothing.

    `[rename]` has old = "new"; `[tables.NAME]` has ids, vectors and, when known, initializer.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_map(path: str) -> NameMap:
    """Read a map of names; UsageError names what in the file is not as it must be."""
    with storage_errors(path), open(path, "rb") as file:
        try:
            document = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"not a TOML file: {error}", path=path) from None
    rename, tables = document.get("rename", {}), document.get("tables", {})
    unknown = sorted(set(document) - {"rename", "tables"})
    if unknown:
        raise UsageError(f"no section {unknown[0]!r}; expected [rename] and [tables.NAME]", path=path)
    if not isinstance(rename, dict) or not all(isinstance(v, str) for v in rename.values()):
        raise UsageError('[rename] takes old = "new"', path=path)
    for name, table in tables.items() if isinstance(tables, dict) else [("", None)]:
        if not isinstance(table, dict) or not {"ids", "vectors"} <= set(table) <= {"ids", "vectors", "initializer"}:
            raise UsageError(f"[tables.{name}] takes ids, vectors and initializer", path=path)
        if not all(isinstance(value, str) for value in table.values()):
            raise UsageError(f"[tables.{name}] takes texts", path=path)
    return NameMap(rename, tables)


def import_arrays(
    source: LocationLike,
    location: LocationLike,
    version: int,
    ps_num: int,
    *,
    names: NameMap | None = None,
    layout: str = "design",
    reporter: Reporter = SILENT,
    wait_seconds: float = LOCK_WAIT_SECONDS,
) -> ReshardResult:
    """Write a new version of a location from a safetensors file, an .npz, or a directory of .npy.

    Without a map, what the file itself says of tables holds, else each pair X.ids and X.vectors is the table X; all
    other arrays are dense variables. Memory is a few batches, and the ids of the largest table when they are not
    ascending. The lock of the location is held while the version is written. Raises RefusedError for a version that
    exists, CorruptError for files that lie, UsageError for arrays that are no table, UnsupportedError for a dtype that
    no checkpoint can hold, LockedError when another command holds the lock.
    """
    begin = time.perf_counter()
    if not 1 <= ps_num <= placement.MAX_PS_NUM:
        raise UsageError(f"ps_num must be 1 to {placement.MAX_PS_NUM}, got {ps_num}")
    if not 0 <= version < 1 << 31:
        raise UsageError(f"a version is a number of 31 bits, got {version}")
    chosen = writable_layout(layout)
    where = Location.of(location)
    final = free_target(where, chosen, version).directory
    with ArraySource(Location.of(source)) as arrays:
        variables, tables = assign_names(arrays, names or NameMap())
        for table in tables:
            _check_table(table)
        counts = {table.name: _count(table, ps_num) for table in tables}
        layouts = _lay_out(version, variables, tables, counts, ps_num)
        with (
            location_lock(where, "import", wait_seconds=wait_seconds, reporter=reporter, create=True) as place,
            open_output(place, chosen, version, purpose="import", spool=True) as output,
        ):
            files = output.create([held.size_bytes for held in layouts])
            reporter.start("importing", sum(a.size_bytes for a in arrays.arrays.values()))
            sketch = _write(layouts, files, variables, tables, reporter)
            read = sum(array.reader.bytes_read for array in {a.reader.path: a for a in arrays.arrays.values()}.values())
            seals: list[Seal] = []

            def prove(written: Written) -> Seal:
                workers = default_workers(remote=not written.staged)
                seals.append(
                    prove_version(
                        written.version,
                        sketch,
                        staged=written.staged,
                        workers=workers,
                        reporter=reporter,
                    )
                )
                return seals[0]

            output.publish(prove)
    shards = tuple(
        TargetShard(
            i,
            os.path.join(final, chosen.shard_file(i, ps_num)),
            held.size_bytes,
            len(held.dense_at),
            sum(int(rows[i]) for rows, _ in counts.values()),
        )
        for i, held in enumerate(layouts)
    )
    size = sum(shard.size_bytes for shard in shards)
    return ReshardResult(
        f"{where}@{version}",
        where.url,
        None,  # type: ignore[arg-type]
        ps_num,
        version,
        size,
        read,
        size,
        sum(shard.rows for shard in shards),
        time.perf_counter() - begin,
        peak_memory_bytes(),
        seals[0].fingerprint,
        shards,
    )


def assign_names(source: ArraySource, names: NameMap) -> tuple[dict[str, ArrayData], list[ImportedTable]]:
    """Return the variables by name and the tables that arrays become; errors name what a map asks for in vain."""
    wanted: dict[str, dict[str, Any]] = {name: dict(table) for name, table in names.tables.items()}
    if not wanted:
        wanted = {name: dict(note) for name, note in source.notes.items()}
    if not wanted:
        stems = [name.removesuffix(".ids") for name in source.arrays if name.endswith(".ids")]
        wanted = {s: {"ids": f"{s}.ids", "vectors": f"{s}.vectors"} for s in stems if f"{s}.vectors" in source.arrays}
    absent = [key for key in names.rename if key not in source.arrays]
    absent += [table[key] for table in wanted.values() for key in ("ids", "vectors") if table[key] not in source.arrays]
    if absent:
        raise NotFoundError(f"no array {absent[0]!r}", path=source.path)
    tables = [
        ImportedTable(
            names.rename.get(name, name),
            source.arrays[table["ids"]],
            source.arrays[table["vectors"]],
            str(table.get("initializer", "uniform")),
        )
        for name, table in sorted(wanted.items())
    ]
    used = {array.name for table in tables for array in (table.ids, table.vectors)}
    variables: dict[str, ArrayData] = {}
    for name, array in source.arrays.items():
        if name not in used and variables.setdefault(names.rename.get(name, name), array) is not array:
            raise UsageError(f"two arrays would be named {names.rename.get(name, name)!r}", path=source.path)
    if len({table.name for table in tables}) != len(tables):
        raise UsageError("two tables would have one name", path=source.path)
    return variables, tables


def _check_table(table: ImportedTable) -> None:
    ids, vectors = table.ids, table.vectors
    if ids.dtype.name not in _INTEGERS or len(ids.shape) != 1:
        raise UsageError(
            f"table {table.name!r}: ids must be whole numbers in one dimension, got {ids.dtype.name} {list(ids.shape)}",
            path=ids.reader.path,
        )
    if len(vectors.shape) != 2 or vectors.shape[0] != ids.shape[0]:
        raise UsageError(
            f"table {table.name!r}: vectors must be [{ids.shape[0]}, dim], got {list(vectors.shape)}",
            path=vectors.reader.path,
        )


def _ids(table: ImportedTable, start: int, count: int) -> bulk.I64:
    size = table.ids.dtype.itemsize
    data = table.ids.read(start * size, count * size)
    return data.view(np.dtype(table.ids.dtype.name).newbyteorder("<")).astype(np.int64)


def _count(table: ImportedTable, ps_num: int) -> tuple[bulk.I64, bulk.I64]:
    """Return (rows, id bytes) of each shard, having looked that no id is there twice."""
    rows, id_bytes = np.zeros(ps_num, np.int64), np.zeros(ps_num, np.int64)
    ascending, last = True, -(1 << 63) - 1
    for start in range(0, table.ids.shape[0], _IDS_AT_ONCE):
        ids = _ids(table, start, min(_IDS_AT_ONCE, table.ids.shape[0] - start))
        more, more_bytes = bulk.tally(bulk.owners(ids, ps_num), bulk.varint_lengths(ids), ps_num)
        rows, id_bytes = rows + more, id_bytes + more_bytes
        ascending = ascending and int(ids[0]) > last and bool((ids[1:] > ids[:-1]).all())
        last = int(ids[-1])
    if not ascending:
        ordered = np.sort(_ids(table, 0, table.ids.shape[0]))
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            raise CorruptError(
                f"table {table.name!r}: id {int(ordered[twice[0]])} is there twice ({len(twice)} such)",
                code="duplicate-id",
                path=table.ids.reader.path,
            )
    return rows, id_bytes


Counts = Mapping[str, tuple[bulk.I64, bulk.I64]]


def _lay_out(
    version: int, variables: Mapping[str, ArrayData], tables: list[ImportedTable], counts: Counts, ps_num: int
) -> tuple[ShardLayout, ...]:
    infos = [TableInfo(t.name, t.dim, t.initializer) for t in sorted(tables, key=lambda t: t.name.encode())]
    held: list[list[PlacedVariable]] = [[] for _ in range(ps_num)]
    for name in sorted(variables, key=str.encode):
        array = variables[name]
        held[placement.variable_owner(name, ps_num)].append(
            PlacedVariable(name, array.dtype, array.shape, array.size_bytes)
        )
    ordered = sorted(tables, key=lambda t: t.name.encode())
    return tuple(
        lay_out_shard(
            version,
            infos,
            held[i],
            [
                PlacedTable(t.name, t.vectors.dtype, t.dim, int(counts[t.name][0][i]), int(counts[t.name][1][i]))
                for t in ordered
            ],
        )
        for i in range(ps_num)
    )


def _write(
    layouts: Sequence[ShardLayout],
    files: Sequence[Sink],
    variables: Mapping[str, ArrayData],
    tables: list[ImportedTable],
    reporter: Reporter,
) -> ContentSketch:
    """Write all shards; return the sketch of what was read."""
    sketch = ContentSketch()
    for file, held in zip(files, layouts, strict=True):
        for offset, data in held.between:
            file.write(offset, data)
    for name, array in variables.items():
        _write_dense(name, array, layouts, files, sketch)
        reporter.advance(array.size_bytes)
    for table in tables:
        _write_table(table, layouts, files, sketch, reporter)
    return sketch


def _write_dense(
    name: str, array: ArrayData, layouts: Sequence[ShardLayout], files: Sequence[Sink], sketch: ContentSketch
) -> None:
    owner = placement.variable_owner(name, len(files))
    step = _BATCH_BYTES
    for start in range(0, max(array.size_bytes, 1), step):
        data = array.read(start, min(step, array.size_bytes - start))
        sketch.add_dense(name, array.size_bytes, start, data)
        files[owner].write(layouts[owner].dense_at[name] + start, data.data)


def _write_table(
    table: ImportedTable,
    layouts: Sequence[ShardLayout],
    files: Sequence[Sink],
    sketch: ContentSketch,
    reporter: Reporter,
) -> None:
    """Write the rows of a table, and their ids as varints, each shard's in the order of the source."""
    ps_num = len(files)
    ids_at = np.array([held.ids_at[table.name] for held in layouts], np.int64)
    values_at = np.array([held.values_at[table.name] for held in layouts], np.int64)
    for start, values in chunks(table.vectors, table.row_bytes, _BATCH_BYTES):
        ids = _ids(table, start, len(values))
        owner, lengths = bulk.owners(ids, ps_num), bulk.varint_lengths(ids)
        rows, id_bytes = bulk.tally(owner, lengths, ps_num)
        sketch.add_rows(table.name, ids, values)
        varints = bulk.group_varints(bulk.encode_varints(ids), lengths, owner, id_bytes)
        write_groups(files, varints, id_bytes, ids_at)
        ids_at += id_bytes
        if table.row_bytes:
            grouped = np.empty_like(values)
            bulk.group_rows(values, owner, rows, grouped)
            write_groups(files, grouped.reshape(-1), rows * table.row_bytes, values_at)
            values_at += rows * table.row_bytes
        reporter.advance(values.nbytes + ids.nbytes)


def as_checkpoint_file(path: str, version: int) -> Version:
    """Return a bare shard file, as `export` writes one, as a version that can be opened."""
    from edl_ckpt.core.format.names import ELASTICDL

    with storage_errors(path):
        info = os.stat(path)
    shard = ShardFile(0, 1, path, info.st_size, info.st_mtime)
    return Version(Location(os.path.dirname(path) or "."), version, path, ELASTICDL, State.COMPLETE, 1, (shard,))
