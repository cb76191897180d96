"""Maps of names: what tables and variables are called where they go, and which arrays are a table.

The same file serves an import and an export; `template` writes one to start from.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.words import escaped, meant
from edl_ckpt.core.model.tables import DenseEntry, Encoding, IdRun, ShardIndex, TableEntry, TableInfo
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl.target import MAX_DIM
from edl_ckpt.core.storage.location import as_url
from edl_ckpt.core.storage.user_files import read_toml

ROWS: Final = "rows"
"""Says that the ids of a table are the numbers of its rows."""
_ENCODINGS: Final = {"int64": Encoding.INT64, "uint64": Encoding.UINT64, "int32": Encoding.INT32}


@dataclass(frozen=True, slots=True)
class NameMap:
    """New names of arrays, and the arrays of each table, as a TOML file lists them.

    `[rename]` has old = "new", where a `*` in the new name is what the one of the old name stands for. `[tables.NAME]`
    has ids, vectors and, when known, initializer; with ids "rows" the ids are the numbers of the rows.

    Only an import of files reads the rest: `id_column` and `vector_column` are columns of a file of rows, the second
    perhaps a glob of one for each element, and `key` is the dotted path to a dict of tensors in a .pt.
    """

    rename: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    id_column: str | None = None
    vector_column: str | None = None
    key: str | None = None


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


def tables_of(texts: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the tables of a map from texts: NAME=IDS,VECTORS, or NAME=MATRIX for ids that are the numbers of its rows.

    >>> tables_of(["user=user_ids,user_vecs", "item=emb.weight"])["item"]
    {'ids': 'rows', 'vectors': 'emb.weight'}
    """
    tables: dict[str, dict[str, str]] = {}
    for text in texts:
        name, _, arrays = text.partition("=")
        ids, comma, vectors = arrays.rpartition(",")
        if not name or not vectors or bool(comma) != bool(ids) or name in tables:
            raise UsageError(f"expected NAME=IDS,VECTORS or NAME=MATRIX, each NAME once, got {text!r}")
        tables[name] = {"ids": ids or ROWS, "vectors": vectors}
    return tables


def with_tables(checkpoint: Checkpoint, names: NameMap) -> Checkpoint:
    """Return a version with the tables of a map in the place of the variables that they are made of; errors name both.

    Of a companion, `companion_of` and `slot` say whose it is, and `same_ids` names a copy of its table's ids, which is
    left out. It shares the open files. Raises NameNotFoundError for an unknown variable, UsageError for shapes that
    are no table.
    """
    shards = list(checkpoint.shards)
    for table, parts in names.tables.items():
        _, vectors = checkpoint.find_array(checkpoint.variable_name(parts["vectors"]))
        ids = None
        if parts["ids"] != ROWS:
            ids = checkpoint.find_array(checkpoint.variable_name(parts["ids"]))[1]
        if table in checkpoint.table_names:
            raise UsageError(f"the version has a table {table!r} already", path=checkpoint.version.ref)
        check_table(table, ids, vectors, checkpoint.version.ref)
        remaining = [variable for shard in shards for variable in shard.variables]
        if vectors not in remaining or ids not in (None, *remaining):
            message = f"table {table!r}: {parts['vectors']!r} or its ids belong to another table of the map"
            raise UsageError(message, path=checkpoint.version.ref)
        number = next(n for n, shard in enumerate(shards) if vectors in shard.variables)
        shards[number] = _with_table(shards[number], table, vectors, ids, parts)
        if ids is not None and ids not in shards[number].variables:
            raise UsageError(
                f"table {table!r}: ids and vectors are in files of two shards", path=checkpoint.version.ref
            )
        copy = parts.get("same_ids")
        rest = tuple(v for v in shards[number].variables if v not in (vectors, ids) and v.name != copy)
        shards[number] = replace(shards[number], variables=rest)
    return Checkpoint(checkpoint.version, shards, checkpoint.files, checkpoint.store)


def check_table(
    name: str, ids: DenseEntry | Any, vectors: DenseEntry | Any, path: str, integers: Container[str] = _ENCODINGS
) -> None:
    """Raise UsageError where two arrays cannot be a table, UnsupportedError for rows that no shard can have.

    Each array has a name, a dtype and a shape; without `ids` these are numbers of rows.
    """
    if len(vectors.shape) != 2 or (ids is None and not vectors.shape[1]):
        found = f"{vectors.name!r} has {list(vectors.shape)}"
        raise UsageError(f"table {name!r}: vectors must be [rows, dim], {found}", path=path)
    if ids is not None and (ids.dtype.name not in integers or ids.shape != vectors.shape[:1]):
        found = f"{ids.name!r} has {ids.dtype.name} {list(ids.shape)}"
        raise UsageError(f"table {name!r}: ids must be whole numbers [{vectors.shape[0]}], {found}", path=path)
    if vectors.shape[1] >= MAX_DIM:
        message = f"table {name!r}: a row of {vectors.shape[1]} elements is larger than a shard can be"
        raise UnsupportedError(message, path=path)


def _with_table(
    shard: ShardIndex, table: str, vectors: DenseEntry, ids: DenseEntry | None, parts: Mapping[str, str]
) -> ShardIndex:
    rows, dim = vectors.shape
    run = IdRun(0, 8 * rows, Encoding.ROWS)
    if ids is not None:
        run = IdRun(ids.values.start, ids.values.end, _ENCODINGS[ids.dtype.name], file=ids.values.file)
    runs = (run,) if rows else ()
    entry = TableEntry(
        table, vectors.dtype if rows else None, dim if rows else 0, rows, vectors.values, runs, vectors.offset
    )
    owner, slot = parts.get("companion_of", ""), parts.get("slot", "")
    info = TableInfo(table, dim, parts.get("initializer", "uniform"), companion_of=owner, slot=slot)
    return replace(shard, tables=(*shard.tables, entry), infos=(*shard.infos, info))


def template(checkpoint: Checkpoint) -> str:
    """Return a map that changes nothing, to start from: all names, and what could be a table."""
    return "\n".join(_template(checkpoint)) + "\n"


def _template(checkpoint: Checkpoint) -> Iterator[str]:
    yield f"# Old name = new name, for {escaped(checkpoint.version.ref)}."
    yield "# Edit the right-hand side; unchanged lines can be deleted."
    yield "[rename]"
    records = records_of(checkpoint)
    for name in (*checkpoint.table_names, *(name for name in checkpoint.variable_names if name not in records)):
        yield f"{_quoted(name)} = {_quoted(name)}"
    if items := checkpoint.item_names:
        yield "# Texts, values of Python and the like: other systems leave them out."
    for name in items:
        yield f"{_quoted(name)} = {_quoted(name)}"
    matrices = [v for shard in checkpoint.shards for v in shard.variables if len(v.shape) == 2 and v.dtype.is_ours]
    if matrices:
        yield "\n# A matrix becomes a table whose ids are the numbers of its rows:"
    for matrix in sorted(matrices, key=lambda v: v.name):
        yield f"# [tables.{_quoted(matrix.name)}]\n# ids = {_quoted(ROWS)}\n# vectors = {_quoted(matrix.name)}"


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")
