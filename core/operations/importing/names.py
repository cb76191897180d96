"""Which arrays become which variables and tables: by a map of names, by the source's own notes, or by their names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.operations.importing.array_data import ArrayData
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.source import ImportedTable, NamedArrays
from edl_ckpt.core.sources.elasticdl.target import MAX_DIM
from edl_ckpt.core.storage.location import as_url
from edl_ckpt.core.storage.regular import read_toml

_INTEGERS: Final = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}


@dataclass(frozen=True, slots=True)
class NameMap:
    """New names of arrays, and the arrays of each table, as a TOML file lists them.

    `[rename]` has old = "new"; `[tables.NAME]` has ids, vectors and, when known, initializer.
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


def assign_names(source: ArraySource, names: NameMap) -> NamedArrays:
    """Return the variables and tables that the arrays of a source become.

    Raises NotFoundError for an array that is named and is not there, UsageError for two of one name and for arrays that
    cannot be a table.
    """
    sections = _table_sections(source, names)
    named = [*names.rename, *(table[key] for table in sections.values() for key in ("ids", "vectors"))]
    for name in named:
        if name not in source.arrays:
            raise NotFoundError(f"no array {name!r}", path=source.path, hint=meant(name, source.arrays, "arrays"))
    tables = [
        ImportedTable(
            names.rename.get(name, name),
            source.arrays[table["ids"]],
            source.arrays[table["vectors"]],
            str(table.get("initializer", "uniform")),
        )
        for name, table in sorted(sections.items())
    ]
    if len({table.name for table in tables}) != len(tables):
        raise UsageError("two tables would have the same name", path=source.path)
    for table in tables:
        _check_table(table)
    in_tables = {array.name for table in tables for array in (table.ids, table.vectors)}
    variables: dict[str, ArrayData] = {}
    for array in source.arrays.values():
        name = names.rename.get(array.name, array.name)
        if array.name not in in_tables and variables.setdefault(name, array) is not array:
            raise UsageError(f"two arrays would be named {name!r}", path=source.path)
    return NamedArrays(variables, tuple(tables), source.location)


def _table_sections(source: ArraySource, names: NameMap) -> Mapping[str, Mapping[str, Any]]:
    """Return the ids, vectors and initializer of each table: from the map, the source's notes, or names of arrays."""
    if names.tables:
        return names.tables
    if source.notes:
        return source.notes
    stems = [name.removesuffix(".ids") for name in source.arrays if name.endswith(".ids")]
    pairs = {stem: {"ids": f"{stem}.ids", "vectors": f"{stem}.vectors"} for stem in stems}
    return {stem: pair for stem, pair in pairs.items() if pair["vectors"] in source.arrays}


def _check_table(table: ImportedTable) -> None:
    ids, vectors = table.ids, table.vectors
    if ids.dtype.name not in _INTEGERS or len(ids.shape) != 1:
        raise UsageError(
            f"table {table.name!r}: ids must be whole numbers in one dimension, got {ids.dtype.name} {list(ids.shape)}",
            path=ids.reader.path,
        )
    if len(vectors.shape) == 2 and vectors.shape[1] >= MAX_DIM:
        message = f"table {table.name!r}: a row of {vectors.shape[1]} elements is larger than a shard can be"
        raise UnsupportedError(message, path=vectors.reader.path)
    if len(vectors.shape) != 2 or vectors.shape[0] != ids.shape[0]:
        raise UsageError(
            f"table {table.name!r}: vectors must be [{ids.shape[0]}, dim], got {list(vectors.shape)}",
            path=vectors.reader.path,
        )
