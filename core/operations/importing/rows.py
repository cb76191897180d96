"""Rows in files of text (CSV, JSON lines, word2vec), and the columns of ids and of vectors in any file of rows.

A file is read once, in blocks of lines, to temporary files without a name. Its numbers say no dtype: rows are float32,
unless a number has more digits than a float32 prints.
"""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from operator import itemgetter
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.words import command, counted
from edl_ckpt.core.converting.changes import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.operations.export.formats.names import original_name
from edl_ckpt.core.sources.elasticdl.target import MAX_DIM
from edl_ckpt.core.storage.faults import storage_errors

Found = tuple[str, DType, tuple[int, ...], Iterator[npt.NDArray[np.uint8]]]
"""Name, dtype, shape and the bytes of an array, in order."""
_Rows = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]
_Parse = Callable[[Sequence[str]], _Rows]
_Opened = tuple[_Parse, int, int, int | None]
"""What parses lines, the elements of a row, the lines before the rows, and how many rows are said to follow."""
_BLOCK_BYTES: Final = 2 << 20
"""Of a text, parsed together."""
_DIGITS: Final = (8, 9, 7, 6, 10, 11, 12, 5, 4, 3, 2, 1)
"""Which a float32 is printed with, the usual ones first: a few more than it needs, or fewer where it is tiny."""
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
    ids = [c for c in columns if c == (names.id_column or "id")]
    ids = ids or [c for c in columns if not names.id_column and IDS_NAME.fullmatch(c)]
    others = [column for column in columns if column not in ids]
    numbers = {column: match for column in others if (match := _NUMBERED.fullmatch(column))}
    vectors = [column for column in others if fnmatchcase(column, names.vector_column or "vector")]
    if not (vectors or names.vector_column):
        vectors = list(filter(VECTORS_NAME.fullmatch, others))
        vectors = vectors or ([*numbers] if {int(match[2]) for match in numbers.values()} & {0, 1} else [])
    is_numbered = set(vectors) <= set(numbers) and len({numbers[column][1] for column in vectors}) == 1
    is_told = len(vectors) == 1 or is_numbered or (vectors and names.vector_column)
    if len(ids) != 1 or not is_told or sum(c in {*ids, *vectors} for c in columns) != 1 + len(vectors):
        raise UnsupportedError(
            f"its columns do not tell ids from vectors; got {', '.join(columns):.200}",
            path=path,
            hint="name them: --id-column NAME --vector-column NAME, or a glob such as 'x*' where each element has one",
        )
    return ids[0], sorted(vectors, key=lambda c: int(numbers[c][2])) if is_numbered else vectors


def read_rows(path: str, names: NameMap, warn: Callable[[str], None]) -> Iterator[Found]:
    """Yield NAME.ids and NAME.vectors of a text, where NAME is that of the file; errors name the line.

    Raises CorruptError for a line that is no row, and where there are fewer rows than the file says.
    """
    name, ending = os.path.splitext(os.path.basename(path))
    name, count, is_single = original_name(name), 0, True
    with storage_errors(path), tempfile.TemporaryFile() as ids, tempfile.TemporaryFile() as values:
        with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
            try:
                parse, dim, before, promised = TEXTS[ending.lower()](file, names, path)
            except (ValueError, RecursionError) as error:
                raise CorruptError(f"line 1: {error}", path=path) from None
            while lines := file.readlines(_BLOCK_BYTES):
                new_ids, block = _parsed(parse, lines, path, before + count)
                is_single = is_single and _is_float32(block)
                ids.write(new_ids.astype("<i8").tobytes())
                values.write(block.astype("<f8").tobytes())
                count += len(lines)
        if promised not in (None, count):
            raise CorruptError(f"has {counted(count, 'row')}, and its first line says {promised}", path=path)
        if not is_single:
            cast = command("edit", "--cast", f"{name}=float32")
            warn(f"{path}: a number has more digits than float32 keeps, so rows are float64; {cast} changes that")
        yield f"{name}.ids", DTYPES["int64"], (count,), _again(ids, "<i8")
        dtype = DTYPES["float32" if is_single else "float64"]
        yield f"{name}.vectors", dtype, (count, dim), _again(values, "<f8", f"<f{dtype.itemsize}")


def _again(file: IO[bytes], *kinds: str) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the numbers in a temporary file, the first kind, as the last kind."""
    file.seek(0)
    while data := file.read(_BLOCK_BYTES):
        yield np.frombuffer(data, kinds[0]).astype(kinds[-1], copy=False).view(np.uint8)


def _is_float32(values: npt.NDArray[np.float64]) -> bool:
    """Say whether each number is what a float32 prints.

    >>> _is_float32(np.array([0.1, 1e-42, 0.100000001, np.nan])), _is_float32(np.array([1 / 3])), _is_float32(
    ...     np.array([16777217.0])
    ... )
    (True, False, False)
    """
    with np.errstate(all="ignore"):
        single, power = values.astype(np.float32).astype(np.float64), np.floor(np.log10(np.abs(values)))
        fits = (single == values) | np.isnan(values)
        for digits in _DIGITS:
            if not fits.all():
                scale = 10.0 ** (digits - 1 - power)
                is_exact = (scale >= 1) & (scale <= 1e22)  # as float64: the powers of ten that it has
                most = np.where(is_exact, 0, 1e-15) * np.abs(values)
                fits |= np.abs(np.rint(single * scale) / scale - values) <= most
    return bool(fits.all())


def _parsed(parse: _Parse, lines: Sequence[str], path: str, before: int) -> _Rows:
    """Return the rows in lines; CorruptError with the first line that is none, which halving finds."""
    try:
        return _one_a_line(parse, lines)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, Warning) as error:
        if len(lines) > 1:
            half = len(lines) // 2
            halves = (_parsed(parse, lines[:half], path, before), _parsed(parse, lines[half:], path, before + half))
            ids, block = map(np.concatenate, zip(*halves, strict=True))
            return ids, block
        why = f"no value for {error}" if isinstance(error, KeyError) else getattr(error, "msg", str(error))
        why = why if lines[0].strip() else "it is empty"
        why = re.sub(r" at row [01](?:, (column [0-9]+)\.|;.*)?", r" in \1", why).removesuffix(" in ")
        raise CorruptError(f"line {before + 1}: {why}", path=path) from None


def _one_a_line(parse: _Parse, lines: Sequence[str]) -> _Rows:
    with warnings.catch_warnings():  # numpy has one for a number that is cut off, and for no number at all
        warnings.simplefilter("error")
        ids, block = parse(lines)
    if len(ids) != len(lines):
        raise ValueError(f"expected one row, got {len(ids)}")
    return ids, block


def _open_csv(file: IO[str], names: NameMap, path: str) -> _Opened:
    columns = next(csv.reader([file.readline()]), [])
    ids, vectors = chosen_columns(columns, names, path)
    wanted = [columns.index(name) for name in (ids, *vectors)]
    form = {"delimiter": ",", "quotechar": '"', "usecols": None if wanted == [*range(len(columns))] else wanted}
    return partial(_numbers, len(vectors), form), len(vectors), 1, None


def _numbers(dim: int, form: Mapping[str, Any], lines: Sequence[str]) -> _Rows:
    """Return rows whose lines are an id and numbers."""
    kind = np.dtype([("id", "<i8"), ("vector", "<f8", (dim,))])
    rows = np.loadtxt(lines, kind, comments=None, ndmin=1, **form)
    return rows["id"], rows["vector"]


def _open_word2vec(file: IO[str], _: NameMap, path: str) -> _Opened:
    rows, dim = map(int, file.readline(1 << 10).split())
    if not 0 <= dim < MAX_DIM or 2 * rows * dim > os.path.getsize(path):
        raise ValueError(f"the file is too short for {counted(rows, 'row')} of {dim}")
    return partial(_numbers, dim, {}), dim, 1, rows


def _open_json_lines(file: IO[str], names: NameMap, path: str) -> _Opened:
    row = json.loads(file.readline())
    ids, vectors = chosen_columns([*row] if isinstance(row, dict) else [], names, path)
    file.seek(0)
    element = row[vectors[0]]
    dim = len(element) if isinstance(element, list) and len(vectors) == 1 else len(vectors)
    return partial(_objects, ids, itemgetter(*vectors), dim), dim, 0, None


def _objects(ids: str, vector: Callable[[Any], Any], dim: int, lines: Sequence[str]) -> _Rows:
    """Return rows whose lines are JSON objects."""
    text = ",".join(lines)
    rows = json.loads(f"[{text}]")
    numbers = np.array(list(map(itemgetter(ids), rows)))
    if numbers.dtype != np.int64:
        raise ValueError(f"{ids!r} is no whole number of 64 bits")
    values = np.array(list(map(vector, rows)), np.float64).reshape(len(rows), -1)
    if values.shape[1] != dim:
        raise ValueError(f"{counted(values.shape[1], 'value')}, expected {dim}")
    if np.isnan(values).any() and "null" in text:
        raise ValueError('a value is null; NaN is the text "NaN"')
    return numbers, values


TEXTS: Final = {".csv": _open_csv, ".jsonl": _open_json_lines, ".vec": _open_word2vec}
"""What opens a text, by its ending."""
