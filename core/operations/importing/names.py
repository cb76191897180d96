"""Which arrays become which variables and tables: by a map of names, by the source's own notes, or by their names."""

from __future__ import annotations

import fnmatch
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any, Final

from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.words import counted, meant
from edl_ckpt.core.converting.changes import FLOATS, ROWS, check_table, new_names
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.operations.importing.rows import IDS_NAME, VECTORS_NAME
from edl_ckpt.core.operations.importing.source import ArrayData, ImportedTable, NamedArrays, row_numbers

_INTEGERS: Final = {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"}


def assign_names(source: ArraySource) -> NamedArrays:
    """Return the variables and tables that the arrays of a source become.

    Raises NotFoundError for an array that is named and is not there, UsageError for two of one name and for arrays that
    cannot be a table.
    """
    names = source.names
    sections = _table_sections(source)

    def matching(glob: str, *, whole: bool = False) -> list[str]:
        matches = [glob] if glob in source.arrays else [] if whole else fnmatch.filter(source.arrays, glob)
        if not matches:
            raise NotFoundError(f"no array {glob!r}", path=source.path, hint=meant(glob, source.arrays, "arrays"))
        return matches

    renamed = new_names(names.rename.items(), matching)
    parts = {name: [table[key] for key in ("ids", "vectors")] for name, table in sections.items()}
    for name in (name for ids, vectors in parts.values() for name in ([] if ids == ROWS else [ids]) + [vectors]):
        matching(name, whole=True)
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
        check_table(table.name, table.ids, table.vectors, table.ids.reader.path, _INTEGERS)
    in_tables = {array.name for table in tables for array in (table.ids, table.vectors)}
    variables: dict[str, ArrayData] = {}
    for array in source.arrays.values():
        name = renamed.get(array.name, array.name)
        if array.name not in in_tables and variables.setdefault(name, array) is not array:
            raise UsageError(f"two arrays would be named {name!r}", path=source.path)
    return NamedArrays(variables, tuple(tables), source.location)


def _table_sections(source: ArraySource) -> Mapping[str, Mapping[str, Any]]:
    """Return the ids, vectors and initializer of each table: from the map, the source's notes, or names and shapes.

    A guess is a warning, and so is what looks like a table and is none.
    """
    if source.notes and not source.names.tables:
        return source.notes
    pairs, tables = list(_pairs(source)), dict(source.names.tables)
    uses = Counter(name for pair in pairs for name in pair[1:])
    for stem, ids, vectors in [] if tables else pairs:
        if uses[ids] == uses[vectors] == 1:
            tables[stem] = {"ids": ids, "vectors": vectors}
            if ids != f"{stem}.ids":
                source.warnings.append(f"by names and shapes, {ids} and {vectors} are the table {stem}")
    in_tables = {table[key] for table in tables.values() for key in ("ids", "vectors")}
    left = [f"{stem}={ids},{vectors}" for stem, ids, vectors in pairs if vectors not in in_tables]
    if not tables and not left:
        arrays = source.arrays.values()
        left = [f"NAME={ids.name},{v.name}" for v in arrays for ids in arrays if _is_table(ids, v)]
        left = left or [f"NAME={v.name}" for v in arrays if len(v.shape) == 2 and "emb" in v.name.lower()]
    if left:
        more = f", or {counted(len(left) - 1, 'other choice')}" if left[1:] else ""
        why = (
            "arrays that look like a table stay dense variables"
            if tables
            else "there are 0 rows: no arrays are a table"
        )
        source.warnings.append(f"{why}; try: --table {quote(left[0])}{more}")
    return tables


def _pairs(source: ArraySource) -> Iterator[tuple[str, str, str]]:
    """Yield a name, the ids and the vectors of what could be tables by their names; X.ids and X.vectors always are."""
    alone = os.path.splitext(os.path.basename(source.path.rstrip("/")))[0]

    def stems(pattern: re.Pattern[str]) -> Iterator[tuple[str, str]]:
        for match in filter(None, map(pattern.fullmatch, source.arrays)):
            yield match[0], alone if match[1] is None else match[1]

    by_stem: dict[str, list[str]] = defaultdict(list)
    for name, stem in stems(VECTORS_NAME):
        by_stem[stem].append(name)
    for name, stem in stems(IDS_NAME):
        usual = (f"{stem}.ids", f"{stem}.vectors")
        for vectors in by_stem[stem]:
            if (
                (name, vectors) == usual
                if set(usual) <= source.arrays.keys()
                else _is_table(source.arrays[name], source.arrays[vectors])
            ):
                yield stem, name, vectors


def _is_table(ids: ArrayData, vectors: ArrayData) -> bool:
    """Say whether arrays have the shapes and dtypes of ids and their rows."""
    is_ids = ids.dtype.name in _INTEGERS and len(ids.shape) == 1
    return is_ids and vectors.dtype.name in FLOATS and len(vectors.shape) == 2 and ids.shape[0] == vectors.shape[0]
