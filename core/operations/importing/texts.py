"""Ids and vectors from texts (CSV, JSON lines, word2vec), read once, line by line.

Numbers in texts say no dtype: rows are float32, unless a number has more digits than a float32 prints. No number is
rounded beyond that: whole numbers that no float holds stay whole numbers.
"""

from __future__ import annotations

import csv
import json
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.words import command, counted
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.operations.export.formats.arrays import original_name
from edl_ckpt.core.operations.importing.columns import chosen_columns
from edl_ckpt.core.operations.importing.stream import ArrayStream
from edl_ckpt.core.sources.elasticdl.target import MAX_DIM
from edl_ckpt.core.storage.faults import storage_errors

_Rows = tuple[npt.NDArray[Any], npt.NDArray[Any]]
_RowsOf = Callable[[Sequence[str]], _Rows]
_Parse = Callable[[str, Sequence[str]], _Rows]
"""Takes the kind of the numbers, as numpy spells it, and lines."""
_Opened = tuple[_Parse, int, int, int | None]
"""What parses lines, the elements of a row, the lines before the rows, and how many rows are said to follow."""
_BLOCK_BYTES: Final = 2 << 20
"""Of a text, parsed together."""
_EXACT: Final = 2.0**53
"""Each whole number below is a float64."""
_MOST_DIGITS: Final = 10**300
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,300}")
_TRUTH: Final = re.compile(r"\b(?:[Tt]rue|[Ff]alse)\b")
_DIGITS: Final = (8, 9, 7, 6, 10, 11, 12, 5, 4, 3, 2, 1)
"""Which a float32 is printed with, the usual ones first: a few more than it needs, or fewer where it is tiny."""


def read_rows(path: str, names: NameMap, warn: Callable[[str], None]) -> Iterator[ArrayStream]:
    """Yield NAME.ids and NAME.vectors of a text, where NAME is that of the file; errors name the line.

    Rows are float32, or float64 where a number has more digits. A table of whole numbers of which float64 cannot hold
    one has int64 or uint64, and a table of `True` and `False` bool: no number becomes another one. Raises CorruptError
    for a line that is no row, for such a whole number beside fractions, and where there are fewer rows than the file
    says.
    """
    name, ending = os.path.splitext(os.path.basename(path))
    name, opener = original_name(name), TEXTS[ending.lower()]
    with storage_errors(path), ExitStack() as opened:
        kinds, table = ["<f8", "<i8", "<u8"], None
        while table is None:
            kind = kinds.pop(0)
            try:
                table = opened.enter_context(_Table.read(path, names, opener, kind))
            except _BoolError:
                kinds = ["|b1"]
            except _InexactError as error:
                if not kinds:
                    raise CorruptError(f"line {error.line}: {error}", path=path) from None
        if not (table.count or table.dim):
            warn(f"{path}: is empty, so the table has no rows, and a dim of 0")
        if table.dtype.name == "float64":
            cast = command("edit", "--cast", f"{name}=float32")
            warn(f"{path}: a number has more digits than float32 keeps, so rows are float64; {cast} changes that")
        yield f"{name}.ids", DTYPES["int64"], (table.count,), _again(table.ids, "<i8")
        numpy_kind = np.dtype(table.dtype.name).newbyteorder("<").str
        yield f"{name}.vectors", table.dtype, (table.count, table.dim), _again(table.values, kind, numpy_kind)


class _InexactError(ValueError):
    """A number that the kind of numbers, as which a table is read, cannot hold."""

    line = 0


class _BoolError(ValueError):
    """A truth value where numbers are read."""


@dataclass
class _Table:
    """The rows of a text, as one kind of numbers, in files without a name."""

    ids: IO[bytes]
    values: IO[bytes]
    kind: str
    count: int = 0
    dim: int = 0
    is_single: bool = True

    @staticmethod
    @contextmanager
    def read(path: str, names: NameMap, opener: Callable[..., _Opened], kind: str) -> Iterator[_Table]:
        """Read all rows; _InexactError for a number that the kind lacks, _BoolError for a truth value."""
        with tempfile.TemporaryFile() as ids, tempfile.TemporaryFile() as values:
            table = _Table(ids, values, kind)
            with open(path, encoding="utf-8-sig", errors="surrogateescape") as file:
                try:
                    parse, table.dim, before, promised = opener(file, names, path)
                except (ValueError, RecursionError, csv.Error) as error:
                    raise CorruptError(f"line 1: {getattr(error, 'msg', error)}", path=path) from None
                while lines := file.readlines(_BLOCK_BYTES):
                    table.add(*_parsed(partial(parse, kind), lines, path, before + table.count))
            if promised not in (None, table.count):
                raise CorruptError(f"has {counted(table.count, 'row')}, and its first line says {promised}", path=path)
            yield table

    def add(self, ids: npt.NDArray[Any], block: npt.NDArray[Any]) -> None:
        """Add rows."""
        self.is_single = self.is_single and self.kind == "<f8" and _is_float32(block)
        with storage_errors(tempfile.gettempdir()):
            self.ids.write(ids.astype("<i8").tobytes())
            self.values.write(block.astype(self.kind).tobytes())
        self.count += len(ids)

    @property
    def dtype(self) -> DType:
        """Return the dtype that the rows have."""
        return DTYPES["float32" if self.is_single and self.kind == "<f8" else np.dtype(self.kind).name]


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


def _parsed(parse: _RowsOf, lines: Sequence[str], path: str, before: int) -> _Rows:
    """Return the rows in lines; CorruptError with the first line that is none, which halving finds."""
    try:
        return _one_a_line(parse, lines)
    except _BoolError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, Warning) as error:
        if len(lines) > 1:
            half = len(lines) // 2
            halves = (_parsed(parse, lines[:half], path, before), _parsed(parse, lines[half:], path, before + half))
            ids, block = map(np.concatenate, zip(*halves, strict=True))
            return ids, block
        if isinstance(error, _InexactError):
            error.line = before + 1
            raise
        why = f"no value for {error}" if isinstance(error, KeyError) else getattr(error, "msg", str(error))
        why = why if lines[0].strip() else "it is empty"
        why = re.sub(r" at row [01](?:, (column [0-9]+)\.|;.*)?", r" in \1", why).removesuffix(" in ")
        raise CorruptError(f"line {before + 1}: {why}", path=path) from None


def _one_a_line(parse: _RowsOf, lines: Sequence[str]) -> _Rows:
    with warnings.catch_warnings():  # numpy has one for a number that is cut off, and for no number at all
        warnings.simplefilter("error")
        ids, block = parse(lines)
    if len(ids) != len(lines):
        raise ValueError(f"expected one row, got {len(ids)}")
    return ids, block


def _check_exact(block: npt.NDArray[np.float64], cells: Callable[[], Iterable[Any]]) -> None:
    """Raise _InexactError for a whole number that became another one as float64; `cells` are asked where one may."""
    with np.errstate(invalid="ignore"):
        if not (np.abs(block) >= _EXACT).any():
            return
    for cell in cells():  # only of a block with numbers that large
        number = int(cell) if isinstance(cell, int) or (isinstance(cell, str) and _WHOLE.fullmatch(cell)) else None
        if number is not None and abs(number) < _MOST_DIGITS and int(float(number)) != number:
            raise _InexactError(f"float64 cannot hold {number}, and other numbers here are no integers of 64 bits")


def _open_csv(file: IO[str], names: NameMap, path: str) -> _Opened:
    columns = next(csv.reader([file.readline(_BLOCK_BYTES)]), [])
    ids, vectors = chosen_columns(columns, names, path)
    wanted = [columns.index(name) for name in (ids, *vectors)]
    form = {"delimiter": ",", "quotechar": '"', "usecols": None if wanted == [*range(len(columns))] else wanted}
    return partial(_numbers, len(vectors), form), len(vectors), 1, None


def _numbers(dim: int, form: Mapping[str, Any], kind: str, lines: Sequence[str]) -> _Rows:
    """Return rows whose lines are an id and numbers."""
    if kind == "|b1":
        lines = [_TRUTH.sub(lambda found: "1" if found[0][0] in "Tt" else "0", line) for line in lines]
    shape = np.dtype([("id", "<i8"), ("vector", "|i1" if kind == "|b1" else kind, (dim,))])
    load: Callable[[np.dtype[Any]], npt.NDArray[Any]] = partial(np.loadtxt, lines, comments=None, ndmin=1, **form)
    try:
        rows = load(shape)
    except ValueError:
        if kind == "<f8" and _TRUTH.search(lines[0]):
            raise _BoolError from None
        if kind in {"<i8", "<u8"} and len(lines) == 1 and len(load(_shape_of("<f8", dim))):
            raise _InexactError("a whole number here is beyond float64, and this row has other numbers") from None
        raise
    block = rows["vector"]
    if kind == "|b1" and not ((block == 0) | (block == 1)).all():
        raise ValueError("a number beside True and False")
    if kind == "<f8":
        _check_exact(block, lambda: load(_shape_of("U64", dim))["vector"].reshape(-1).tolist())
    return rows["id"], block


def _shape_of(kind: str, dim: int) -> np.dtype[Any]:
    return np.dtype([("id", "<i8"), ("vector", kind, (dim,))])


def _open_word2vec(file: IO[str], _: NameMap, path: str) -> _Opened:
    rows, dim = map(int, file.readline(1 << 10).split())
    if not 0 <= dim < MAX_DIM or 2 * rows * dim > os.path.getsize(path):
        raise ValueError(f"the file is too short for {counted(rows, 'row')} of {dim}")
    return partial(_numbers, dim, {}), dim, 1, rows


def _open_json_lines(file: IO[str], names: NameMap, path: str) -> _Opened:
    first = file.readline(_BLOCK_BYTES)
    file.seek(0)
    if not first:  # an export of a table without rows: nothing says how many elements they would have
        return partial(_objects, "id", itemgetter("vector"), 0), 0, 0, None
    row = json.loads(first)
    ids, vectors = chosen_columns([*row] if isinstance(row, dict) else [], names, path)
    element = row[vectors[0]]
    dim = len(element) if isinstance(element, list) and len(vectors) == 1 else len(vectors)
    return partial(_objects, ids, itemgetter(*vectors), dim), dim, 0, None


def _objects(ids: str, vector: Callable[[Any], Any], dim: int, kind: str, lines: Sequence[str]) -> _Rows:
    """Return rows whose lines are JSON objects."""
    text = ",".join(lines)
    rows = json.loads(f"[{text}]")
    numbers = np.array(list(map(itemgetter(ids), rows)))
    if numbers.dtype != np.int64:
        raise ValueError(f"{ids!r} is no whole number of 64 bits")
    found = list(map(vector, rows))
    if kind == "<f8":
        if ("true" in text or "false" in text) and np.array(found[:1]).dtype == np.bool_:
            raise _BoolError
        values = np.array(found, np.float64).reshape(len(rows), -1)
        _check_exact(values, lambda: np.array(found, object).reshape(-1).tolist())
    else:
        wanted_type = bool if kind == "|b1" else int
        if any(type(cell) is not wanted_type for cell in np.array(found, object).reshape(-1).tolist()):
            raise _InexactError("a whole number here is beyond float64, and this row has other numbers")
        try:
            values = np.array(found, np.dtype(kind)).reshape(len(rows), -1)
        except OverflowError as error:
            raise _InexactError(f"a whole number here is beyond 64 bits or float64: {error}") from None
    if values.shape[1] != dim:
        raise ValueError(f"{counted(values.shape[1], 'value')}, expected {dim}")
    if kind == "<f8" and np.isnan(values).any() and "null" in text:
        raise ValueError('a value is null; NaN is the text "NaN"')
    return numbers, values


TEXTS: Final = {".csv": _open_csv, ".jsonl": _open_json_lines, ".vec": _open_word2vec}
"""What opens a text, by its ending."""
