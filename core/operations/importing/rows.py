"""Arrays from files that are read once, to temporary files without a name: texts, and files of frameworks.

In texts (CSV, JSON lines, word2vec) numbers say no dtype: rows are float32, unless a number has more digits than a
float32 prints. No number is rounded beyond that: whole numbers that no float holds stay whole numbers.

Parquet and PyTorch are read with their own libraries: a tensor is in memory once at most; a PyTorch file is opened
with `weights_only`, which unpickles tensors and no more.

The columns of ids and of vectors are chosen alike in any file of rows.
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
from fnmatch import fnmatchcase
from functools import partial
from operator import itemgetter
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.libraries import library
from edl_ckpt.core.base.words import command, counted
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, DType, dtype_named
from edl_ckpt.core.operations.export.formats.arrays import original_name
from edl_ckpt.core.operations.export.formats.parquet import PARQUET, PARTS_FILE
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.sources.elasticdl.target import MAX_DIM
from edl_ckpt.core.storage.faults import storage_errors

Found = tuple[str, DType, tuple[int, ...], Iterator[npt.NDArray[np.uint8]]]
"""Name, dtype, shape and the bytes of an array, in order."""
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


def read_rows(path: str, names: NameMap, warn: Callable[[str], None]) -> Iterator[Found]:
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

_NAMES: Final = {"float": "float32", "double": "float64", "halffloat": "float16"}
"""Numpy's names for types that Arrow calls otherwise."""
_BATCH_BYTES: Final = 8 << 20
_PART: Final = re.compile(r"(part|data)[-_.]?[0-9]")
"""The names of parts of a table, as Spark, Dask, pyarrow and DuckDB write them."""
TakeNotes = Callable[[Mapping[str, Any], str], None]
"""Takes the document that an export leaves for importers, and its path: `tables`, and its metadata beside them."""


def read_parquet(path: str, names: NameMap, take_notes: TakeNotes, trust: Trust) -> Iterator[Found]:
    """Yield NAME.ids and NAME.vectors of a Parquet file, or of each in a directory.

    Files that are named as parts of one are one table, with the name of the directory. Raises CorruptError for a
    directory that lacks the files of some tables, and for a page whose checksum is another one than its file says,
    where it says any, unless `trust` is forced.
    """
    folder = os.path.isdir(path)
    files = (
        [os.path.join(path, name) for name in sorted(os.listdir(path)) if name.endswith(PARQUET)] if folder else [path]
    )
    whole = _parts_document(path, len(files)) if folder else None
    tables: dict[str, list[str]] = {}
    notes: dict[str, tuple[bytes | None, Mapping[str, Any]]] = {}
    are_parts = folder and all(_PART.match(os.path.basename(full)) for full in files)
    for full in files:
        _confirm_pages(full, trust)
        table = _opened(full, trust)
        metadata = {**(table.schema_arrow.metadata or {}), **(table.metadata.metadata or {})}
        noted: Mapping[str, Any] = {"tables": {}}
        if b"edl-ckpt" in metadata:
            noted = parse_object(metadata[b"edl-ckpt"], full)
            take_notes(noted, full)
            if whole is None:
                _check_whole(noted.get("whole"), path, len(files) if folder else None)
            if table.schema_arrow.names == ["id"] and not table.metadata.num_rows:
                continue  # of a version without tables
        key = full if whole is None else metadata.get(b"table", b"").decode("utf-8", "replace")
        key = path if are_parts and b"edl-ckpt" not in metadata else key
        tables.setdefault(key, []).append(full)
        notes[key] = (metadata.get(b"table"), noted["tables"])
    if whole is not None:
        take_notes(whole, path)
    for key, parts in tables.items():
        name = original_name(os.path.basename(os.path.abspath(key)).removesuffix(PARQUET))
        title, note = notes[key]
        name = name if title is None else title.decode("utf-8", "replace")
        yield from _read_table([_opened(part, trust) for part in parts], parts, note, names, name)


def _parts_document(path: str, files: int) -> Mapping[str, Any] | None:
    """Return what a cluster says of a directory that it exported; None for any other one."""
    full = os.path.join(path, PARTS_FILE)
    if not os.path.exists(full):
        return None
    with storage_errors(full), open(full, "rb") as file:
        document = parse_object(file.read(), full)
    if document.get("files") != files:
        raise CorruptError(f"there are {files} Parquet files, and {document.get('files')} were exported", path=path)
    return document


def _confirm_pages(path: str, trust: Trust) -> None:
    """Look at the checksums of all pages of a file that is read without comparing them, as `trust` is forced."""
    if trust.force and not trust.forced:
        try:
            for _ in _batches(_opened(path), None, path, rows=1 << 16):
                pass
        except CorruptError as error:
            trust.overrule(error)


def _opened(path: str, trust: Trust | None = None) -> Any:
    is_compared = trust is None or not trust.forced
    try:
        return library("pyarrow.parquet", "arrow").ParquetFile(path, page_checksum_verification=is_compared)
    except Exception as error:  # noqa: BLE001 - pyarrow's errors have no common root but Exception
        raise CorruptError(f"not a Parquet file: {error}", path=path) from None


def _check_whole(whole: object, path: str, files: int | None) -> None:
    """Raise CorruptError when a directory does not have a file for each table."""
    count = whole.get("tables") if isinstance(whole, dict) else None
    if files is not None and isinstance(count, int) and files != count:
        raise CorruptError(f"there are Parquet files of {files} tables, and {count} were exported", path=path)


def _read_table(
    tables: Sequence[Any], paths: Sequence[str], notes: Mapping[str, Any], names: NameMap, name: str
) -> Iterator[Found]:
    """Yield the ids and the vectors of a table, in opened files that follow each other."""
    path = paths[0]
    table, schema = tables[0], tables[0].schema_arrow
    id_column, vectors = chosen_columns(schema.names, names, path)
    kinds = [schema.field(column).type for column in vectors]
    dim: int | None = len(vectors)
    if is_list := len(vectors) == 1 and hasattr(kinds[0], "value_type") and not hasattr(kinds[0], "index_type"):
        dim = getattr(kinds[0], "list_size", None)
        if dim is None:  # of any length, but all are alike
            note, filled = notes.get(name), next((t for t in tables if t.metadata.num_rows), table)
            dim = note.get("dim") if isinstance(note, dict) else _first_length(filled, vectors[0], path)
        kinds = [kinds[0].value_type]
    if not isinstance(dim, int) or (vectors == ["vector"] and not is_list):
        got = schema.field(vectors[0]).type
        raise UnsupportedError(f"expected a list of numbers in {vectors[0]!r}, got {got} without values", path=path)
    elements = {_NAMES.get(str(k), str(k)) for k in kinds}
    unknown = sorted(elements - DTYPES.keys())
    element = unknown[0] if unknown else str(np.result_type(*elements))
    other = next((k for k, one in enumerate(tables) if not one.schema_arrow.equals(schema)), None)
    if other is not None:
        message = f"has other columns than {os.path.basename(path)}, and is a part of the same table"
        raise CorruptError(message, path=paths[other])
    rows, ids = sum(each.metadata.num_rows for each in tables), str(schema.field(id_column).type)
    id_dtype = dtype_named(id_column, _NAMES.get(ids, ids), path=path)
    yield f"{name}.ids", id_dtype, (rows,), _columns(tables, [id_column], None, ids, paths)
    data = _columns(tables, vectors, dim if is_list else None, element, paths)
    yield f"{name}.vectors", dtype_named(vectors[0], element, path=path), (rows, dim), data


def _first_length(table: Any, name: str, path: str) -> int | None:
    """Return the length of the first vector, None without one."""
    first = next(_batches(table, [name], path, rows=1), [[None]])[0][0]
    return len(first) if first is not None and first.is_valid else None


def _batches(table: Any, names: Sequence[str] | None, path: str, *, rows: int) -> Iterator[Any]:
    """Yield columns in parts; all of them where None are named."""
    with storage_errors(path):
        try:
            yield from table.iter_batches(rows, columns=None if names is None else list(names))
        except Exception as error:
            if getattr(error, "errno", None):
                raise
            raise CorruptError(f"not a readable Parquet file: {error}", path=path) from None


def _columns(
    tables: Sequence[Any], names: Sequence[str], lists: int | None, dtype: str, paths: Sequence[str]
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield columns of files that follow each other, side by side; or one of lists that have so many values."""
    most = max(_BATCH_BYTES // (8 * max(lists or 0, len(names))), 1)
    for table, path in zip(tables, paths, strict=True):
        row = 0
        for batch in _batches(table, names, path, rows=min(most, 1 << 16)):
            columns = [_values(batch.column(c), c, lists, row, path) for c in names]
            values = columns[0] if len(columns) == 1 else np.column_stack(columns).astype(dtype, copy=False)
            yield np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            row += len(batch)


def _values(column: Any, name: str, lists: int | None, row: int, path: str) -> npt.NDArray[Any]:
    """Return the values of a column, from row `row` of the file on; CorruptError for nulls and other lengths."""
    values = column.flatten() if lists is not None else column
    if column.null_count or values.null_count:
        rows = f"rows {row} to {row + len(column) - 1}"
        raise CorruptError(f"column {name!r} contains nulls, in {rows}", path=path)
    lengths = np.diff(column.offsets.to_numpy()) if hasattr(column, "offsets") else np.full(len(column), lists)
    if lists is not None and (lengths != lists).any():
        odd = int(np.argmax(lengths != lists))
        message = f"row {row + odd} of column {name!r} has {counted(int(lengths[odd]), 'value')}, expected {lists}"
        raise CorruptError(message, path=path)
    return np.asarray(values.to_numpy(zero_copy_only=False))
