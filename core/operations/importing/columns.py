"""The columns of ids and of vectors in a file of rows: those that are named, else those with usual names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.name_map import NameMap

IDS_NAME: Final = re.compile(r"(?is)(?:(.*)[._/-])?(?:ids?|keys?)")
VECTORS_NAME: Final = re.compile(
    r"(?is)(?:(.*)[._/-])?(?:vec(?:tor)?s?|emb(?:edding)?s?|weights?|values?|features?|rows)"
)
_NUMBERED: Final = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


def chosen_columns(columns: Sequence[str], names: NameMap, path: str) -> tuple[str, list[str]]:
    """Return the column of ids, and that of vectors or those of their elements, in order.

    Columns that differ in a number alone are in the order of these. Raises UnsupportedError where
    the names of columns do not tell.
    """
    ids = _id_columns(columns, names)
    others = [column for column in columns if column not in ids]
    numbers = {column: match for column in others if (match := _NUMBERED.fullmatch(column))}
    vectors = _vector_columns(others, numbers, names)
    stems = {numbers[column][1] for column in vectors if column in numbers}
    is_numbered = len(stems) == 1 and all(column in numbers for column in vectors)
    is_told = len(vectors) == 1 or is_numbered or (vectors and names.vector_column)
    used = {*ids, *vectors}
    is_repeated = sum(column in used for column in columns) != len(ids) + len(vectors)
    if len(ids) != 1 or not is_told or is_repeated:
        raise UnsupportedError(
            f"its columns do not tell ids from vectors; got {', '.join(columns):.200}",
            path=path,
            hint="name them: --id-column NAME --vector-column NAME, or a glob such as 'x*' where each element has one",
        )
    if is_numbered:
        vectors.sort(key=lambda column: int(numbers[column][2]))
    return ids[0], vectors


def _id_columns(columns: Sequence[str], names: NameMap) -> list[str]:
    """Return the columns with the name of ids: the name that is asked for, else `id`, else any usual one."""
    if names.id_column:
        return [column for column in columns if column == names.id_column]
    return [column for column in columns if column == "id"] or list(filter(IDS_NAME.fullmatch, columns))


def _vector_columns(others: Sequence[str], numbers: Mapping[str, re.Match[str]], names: NameMap) -> list[str]:
    """Return the columns of vectors: those asked for, else `vector`, usual names, or all that count from 0 or 1.

    `numbers` has the number at the end of a name, for the columns that have one.
    """
    if names.vector_column:
        return [column for column in others if fnmatchcase(column, names.vector_column)]
    vectors = [column for column in others if column == "vector"] or list(filter(VECTORS_NAME.fullmatch, others))
    if vectors:
        return vectors
    starts = {int(match[2]) for match in numbers.values()} & {0, 1}
    return list(numbers) if starts else []
