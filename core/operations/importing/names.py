"""Which arrays become which variables and tables: by a map of names, by the source's own notes, or by their names."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any, Final

from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.converting.changes import ROWS, NameMap, new_names
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.source import ArrayData, ImportedTable, NamedArrays, row_numbers
from edl_ckpt.core.sources.elasticdl.target import MAX_DIM

_INTEGERS: Final = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}


def assign_names(source: ArraySource, names: NameMap) -> NamedArrays:
    """Return the variables and tables that the arrays of a source become.

    Raises NotFoundError for an array that is named and is not there, UsageError for two of one name and for arrays that
    cannot be a table.
    """
    sections = _table_sections(source, names)

    def matching(glob: str) -> list[str]:
        found = [name for name in source.arrays if name == glob] or fnmatch.filter(source.arrays, glob)
        if not found:
            raise NotFoundError(f"no array {glob!r}", path=source.path, hint=meant(glob, source.arrays, "arrays"))
        return found

    renamed = new_names(names.rename.items(), matching)
    parts = {name: [table[key] for key in ("ids", "vectors")] for name, table in sections.items()}
    for name in (name for both in parts.values() for name in both if name != ROWS or ROWS in source.arrays):
        matching(name)
    tables = [
        ImportedTable(
            renamed.get(name, name),
            source.arrays.get(ids) or row_numbers(source.arrays[vectors]),
            source.arrays[vectors],
            str(sections[name].get("initializer", "uniform")),
        )
        for name, (ids, vectors) in sorted(parts.items())
    ]
    if len({table.name for table in tables}) != len(tables):
        raise UsageError("two tables would have the same name", path=source.path)
    for table in tables:
        _check_table(table)
    in_tables = {array.name for table in tables for array in (table.ids, table.vectors)}
    variables: dict[str, ArrayData] = {}
    for array in source.arrays.values():
        name = renamed.get(array.name, array.name)
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
