"""Maps of names: what tables and variables are called where they go, and which arrays are a table.

The same file serves an import and an export; `template` writes one to start from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.model.tables import DenseEntry, Encoding, IdRun, ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.storage.location import as_url
from edl_ckpt.core.storage.regular import read_toml

ROWS: Final = "rows"
"""Says that the ids of a table are the numbers of its rows."""
_ENCODINGS: Final = {"int64": Encoding.INT64, "uint64": Encoding.UINT64, "int32": Encoding.INT32}


@dataclass(frozen=True, slots=True)
class NameMap:
    """New names of arrays, and the arrays of each table, as a TOML file lists them.

    `[rename]` has old = "new", where a `*` in the new name is what the one of the old name stands for. `[tables.NAME]`
    has ids, vectors and, when known, initializer; with ids "rows" the ids are the numbers of the rows.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_map(path: str | os.PathLike[str]) -> NameMap:
    """Read a map of names; UsageError when the file has anything else in it."""
    path = as_url(path)
    document = read_toml(path)
    rename, tables = document.get("rename", {}), document.get("tables", {})
    unknown = sorted(set(document) - {"rename", "tables"})
    if unknown:
        hint = meant(unknown[0], ("rename", "tables"))
        raise UsageError(f"no section {unknown[0]!r}; expected [rename] and [tables.NAME]", path=path, hint=hint)
    if not isinstance(rename, dict) or not all(isinstance(v, str) for v in rename.values()):
        raise UsageError('[rename] takes old = "new"', path=path)
    for name, table in tables.items() if isinstance(tables, dict) else [("", None)]:
        if not isinstance(table, dict) or not {"ids", "vectors"} <= set(table) <= {"ids", "vectors", "initializer"}:
            raise UsageError(f"[tables.{name}] takes ids, vectors and initializer", path=path)
        if not all(isinstance(value, str) for value in table.values()):
            raise UsageError(f"[tables.{name}] takes strings", path=path)
    return NameMap(rename, tables)


def with_tables(checkpoint: Checkpoint, names: NameMap) -> Checkpoint:
    """Return a version with the tables of a map in the place of the variables that they are made of; errors name both.

    It shares the open files. Raises NameNotFoundError for an unknown variable, UsageError for shapes that are no table.
    """
    shards = list(checkpoint.shards)
    for table, parts in names.tables.items():
        _, vectors = checkpoint.find_variable(checkpoint.variable_name(parts["vectors"]))
        ids = None
        if parts["ids"] != ROWS:
            ids = checkpoint.find_variable(checkpoint.variable_name(parts["ids"]))[1]
        if table in checkpoint.table_names:
            raise UsageError(f"the version has a table {table!r} already", path=checkpoint.version.ref)
        _check(table, vectors, ids, checkpoint.version.ref)
        number = next(n for n, shard in enumerate(shards) if vectors in shard.variables)
        shards[number] = _with_table(shards[number], table, vectors, ids, parts.get("initializer", "uniform"))
        if ids is not None and ids not in shards[number].variables:
            raise UsageError(
                f"table {table!r}: ids and vectors are in files of two shards", path=checkpoint.version.ref
            )
        rest = tuple(v for v in shards[number].variables if v not in (vectors, ids))
        shards[number] = replace(shards[number], variables=rest)
    return Checkpoint(checkpoint.version, shards, checkpoint.files, checkpoint.store)


def _check(table: str, vectors: DenseEntry, ids: DenseEntry | None, ref: str) -> None:
    if len(vectors.shape) != 2 or not vectors.shape[1]:
        raise UsageError(
            f"table {table!r}: {vectors.name!r} has shape {list(vectors.shape)}, and rows need two", path=ref
        )
    if ids is not None and (ids.dtype.name not in _ENCODINGS or ids.shape != vectors.shape[:1]):
        raise UsageError(
            f"table {table!r}: ids must be whole numbers [{vectors.shape[0]}], {ids.name!r} has {ids.dtype.name}"
            f" {list(ids.shape)}",
            path=ref,
        )


def _with_table(
    shard: ShardIndex, table: str, vectors: DenseEntry, ids: DenseEntry | None, initializer: str
) -> ShardIndex:
    rows, dim = vectors.shape
    run = IdRun(0, 8 * rows, Encoding.ROWS)
    if ids is not None:
        run = IdRun(ids.values.start, ids.values.end, _ENCODINGS[ids.dtype.name], file=ids.values.file)
    runs = (run,) if rows else ()
    entry = TableEntry(
        table, vectors.dtype if rows else None, dim if rows else 0, rows, vectors.values, runs, vectors.offset
    )
    info = TableInfo(table, dim, initializer)
    return replace(shard, tables=(*shard.tables, entry), infos=(*shard.infos, info))


def template(checkpoint: Checkpoint) -> str:
    """Return a map that changes nothing, to start from: all names, and what could be a table."""
    return "\n".join(_template(checkpoint)) + "\n"


def _template(checkpoint: Checkpoint) -> Iterator[str]:
    yield f"# A map of the names of {checkpoint.version.ref}. Change what is on the right; delete what stays as it is."
    yield "[rename]"
    for name in (*checkpoint.table_names, *checkpoint.variable_names):
        yield f"{_quoted(name)} = {_quoted(name)}"
    matrices = [v for shard in checkpoint.shards for v in shard.variables if len(v.shape) == 2]
    if matrices:
        yield "\n# A matrix becomes a table whose ids are the numbers of its rows:"
    for matrix in sorted(matrices, key=lambda v: v.name):
        yield f"# [tables.{_quoted(matrix.name)}]\n# ids = {_quoted(ROWS)}\n# vectors = {_quoted(matrix.name)}"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)
