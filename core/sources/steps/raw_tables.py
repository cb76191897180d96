"""Tables in files without headers: one file of a rank has the ids, and one more the rows for them, of each kind.

Only names and sizes say what is in such files. A row of a kind has as many elements in every rank: the number that most
ranks agree on is the right one, and a file with another size was cut off. Where a table has one rank only, values that
were cut off may look like shorter rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.words import base_name, counted, missing_shards
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

NUMBER: Final = "(0|[1-9][0-9]{0,8})"
"""How a number in the name of a file is spelled."""
_ID_BYTES: Final = 8
_SAMPLED_SHARDS: Final = 4
_SAMPLED_IDS: Final = 1024


class RawColumn(NamedTuple):
    """A kind of rows: what follows the table's name in theirs, their dtype, and their slot if they are a companion."""

    suffix: str
    dtype: str
    slot: str = ""


IDS: Final = RawColumn("", "int64", "ids")
VALUES: Final = RawColumn("", "float32")


class RawName(NamedTuple):
    """What the path of a file says."""

    table: str
    column: RawColumn
    ps_id: int
    ps_num: int
    save: str = ""
    """What the files of a table have in common that one job saved, besides their `ps_num`."""


class Sized(Protocol):
    """A file of a listing or of a version."""

    @property
    def size_bytes(self) -> int:
        """Return its size."""

    @property
    def modified(self) -> float:
        """Return when it was written."""


class RawFile(NamedTuple):
    """A file, by its path in the version."""

    path: str
    size_bytes: int


@dataclass
class RawTable:
    """The files of a table that one job saved."""

    name: str
    ps_num: int
    save: str
    parts: dict[int, dict[RawColumn, RawFile]] = field(default_factory=dict)
    """What each rank has; the table has the columns that any rank has."""
    modified: float = 0.0

    @property
    def files(self) -> list[RawFile]:
        """Return all files."""
        return [file for part in self.parts.values() for file in part.values()]

    @cached_property
    def columns(self) -> list[RawColumn]:
        """Return the columns without the ids, in order: its own values at least, and companions that have a byte."""
        files = [(column, file) for part in self.parts.values() for column, file in part.items()]
        columns = {column for column, file in files if not column.slot or file.size_bytes} - {IDS}
        return sorted(columns if any(not column.slot for column in columns) else {VALUES, *columns})

    def rows(self, ps_id: int) -> int:
        """Return the rows that a rank has, by the size of its ids."""
        return self.parts[ps_id][IDS].size_bytes // _ID_BYTES if IDS in self.parts.get(ps_id, ()) else 0

    @cached_property
    def dims(self) -> dict[RawColumn, int]:
        """Return the elements of a row of each column, as the files of most ranks have it; 0 where none has rows."""
        dims = {}
        for column in self.columns:
            votes = Counter[int]()
            for ps_id, part in self.parts.items():
                bytes_of_ones = self.rows(ps_id) * DTYPES[column.dtype].itemsize
                if column in part and bytes_of_ones and not part[column].size_bytes % bytes_of_ones:
                    votes[part[column].size_bytes // bytes_of_ones] += 1
            dims[column] = max(votes, key=lambda dim: (votes[dim], dim), default=0)
        return dims

    def faults(self) -> Iterator[tuple[str, str, int]]:
        """Yield (path, what is wrong with it, offset) for each file that cannot be whole or lacks another one."""
        dims = self.dims
        for ps_id, part in self.parts.items():
            for column in (IDS, *dims):
                if column not in part:
                    yield (
                        part[IDS if IDS in part else min(part)].path,
                        f"has no file of {column.slot or 'values'} beside it",
                        0,
                    )
            rows, rest = self.rows(ps_id), part[IDS].size_bytes % _ID_BYTES if IDS in part else 0
            if rest:
                message = f"ends inside an id, after {counted(rows, 'id')}"
                yield part[IDS].path, message, part[IDS].size_bytes - rest
            for column, dim in dims.items() if IDS in part else ():
                expected = rows * dim * DTYPES[column.dtype].itemsize
                if column in part and (part[column].size_bytes != expected or (rows and not dim)):
                    size = part[column].size_bytes
                    yield part[column].path, _ends(size, expected, rows, column.dtype), min(size, expected)


def _ends(size: int, expected: int, rows: int, dtype: str) -> str:
    if not expected:
        return f"has {counted(size, 'byte')}, which are not rows of {dtype} for {counted(rows, 'id')}"
    if size < expected:
        return f"ends at byte {size:,} of {expected:,}"
    return f"has {size:,} bytes (expected {expected:,} for {counted(rows, 'id')})"


def survey(files: Mapping[str, Sized], parse: Callable[[str], RawName | None]) -> tuple[list[RawTable], list[RawTable]]:
    """Return the tables whose files are among others, and the older ones of those that several jobs have saved there.

    A job with other numbers of ranks leaves the files of the one before it beside its own.
    """
    saves: dict[str, dict[tuple[int, str], RawTable]] = {}
    for path, file in files.items():
        name = parse(path)
        if name is not None:
            key = (name.ps_num, name.save)
            table = saves.setdefault(name.table, {}).setdefault(key, RawTable(name.table, *key))
            table.parts.setdefault(name.ps_id, {})[name.column] = RawFile(path, file.size_bytes)
            table.modified = max(table.modified, file.modified)
    ordered = [
        sorted(tables.values(), key=lambda table: (table.modified, len(table.parts))) for tables in saves.values()
    ]
    return [tables[-1] for tables in ordered], [table for tables in ordered for table in tables[:-1]]


def no_heads(files: Files) -> Sequence[str]:
    """Return (): names and sizes say everything that a listing needs."""
    del files
    return ()


def no_digest(file: RangeReader) -> Digest:
    """Return None: there are no heads."""
    del file


def claim_tables(
    files: Mapping[str, Sized], parse: Callable[[str], RawName | None], common: Iterable[str] = ()
) -> Claim | None:
    """Return the claim of a format whose files are of this kind."""
    tables, stale = survey(files, parse)
    if not tables:
        return None
    shards: dict[int, list[str]] = {}
    lacks = []
    for table in tables:
        for ps_id, part in table.parts.items():
            shards.setdefault(ps_id, []).extend(part[column].path for column in (IDS, *table.columns) if column in part)
        ends = pairwise([-1, *sorted(table.parts), table.ps_num])
        gaps = [range(before + 1, after) for before, after in ends if after - before > 1]
        lacks += [f"{table.name}: {missing_shards(gaps, table.ps_num)}"] if gaps else []
        lacks += [f"{path} {fault}" for path, fault, _ in table.faults()]
    older = [file.path for table in stale for file in table.files]
    shapes: dict[str, tuple[int, int]] = {}
    for table in tables:
        rows = sum(map(table.rows, table.parts))
        for column, dim in table.dims.items():
            shapes[table.name + column.suffix] = (rows, dim)
    return Claim(shards, max(table.ps_num for table in tables), [*common, *older], lacks, shapes=shapes)


def add_tables(
    content: Content,
    parse: Callable[[str], RawName | None],
    placement: Callable[[RawTable], Placement],
    companion_of: Callable[[RawTable, Iterable[RawTable]], tuple[str, str]] = lambda *_: ("", ""),
) -> None:
    """Add the tables of all files that are open; `companion_of` says a table and a slot, for a table with own ids."""
    from edl_ckpt.core.model.tables import Problem

    tables, stale = survey({path: file.file for path, file in content.files.items()}, parse)
    for path, fault, offset in (fault for table in tables for fault in table.faults()):
        file = content.files[path]
        message = f"{base_name(path)} {fault}"
        content.fail(file.shard, CorruptError(message, code="truncated", path=file.file.path, offset=offset))
    for table in tables:
        rule = placement(table)
        dims = table.dims
        owner = companion_of(table, tables)
        for ps_id, part in table.parts.items():
            for column in table.columns if IDS in part else ():
                if column in part:
                    _add_rows(content, table, ps_id, column, dims[column], rule, owner)
    for table in stale:
        message = (
            f"files of another save, of {counted(table.ps_num, 'shard')}, are next to its own: a loader may take them"
        )
        shard = content.files[table.files[0].path].shard
        shard.problems.append(Problem("mixed-ps-num", table.name, None, message, warning=True))


def _add_rows(
    content: Content,
    table: RawTable,
    ps_id: int,
    column: RawColumn,
    dim: int,
    placement: Placement,
    owner: tuple[str, str],
) -> None:
    """Add a column of a table to the shard that has it, if its files are open."""
    from edl_ckpt.core.model.tables import Encoding, Extent, IdRun, TableEntry, TableInfo

    ids, values = (content.files[table.parts[ps_id][which].path] for which in (IDS, column))
    if ids.reader is None or values.reader is None:
        return
    rows = table.rows(ps_id)
    dtype = DTYPES[column.dtype]
    name = table.name + column.suffix
    companion_of, slot = (table.name, column.slot) if column.slot else owner
    values.shard.infos.append(TableInfo(name, dim, "", companion_of=companion_of, slot=slot))
    extent = Extent(0, values.file.size_bytes, file=values.number)
    runs = (IdRun(0, rows * _ID_BYTES, Encoding.INT64, file=ids.number),)
    entry = TableEntry(name, dtype, dim, rows, extent, runs, 0, placement=placement)
    values.shard.tables.append(entry.described())


def rule_of(content: Content, table: RawTable, rules: Iterable[Placement]) -> Placement:
    """Return the rule that most ids obey among the first ones of some shards; NONE where they obey none.

    The files do not name their rule. A few ids that break it may be faults, which `verify` is to find.
    """
    import numpy as np  # a listing reads no ids

    from edl_ckpt.core.kernel.placement import misplaced

    if table.ps_num != content.version.ps_num:
        return Placement.NONE
    wrong = dict.fromkeys(rules, 0)
    sampled = 0
    seen = 0
    for ps_id in sorted(table.parts):
        count = min(table.rows(ps_id), _SAMPLED_IDS)
        reader = content.files[table.parts[ps_id][IDS].path].reader if count else None
        if reader is None or (sampled >= _SAMPLED_SHARDS and len({*wrong.values()}) > 1):
            continue  # further shards tell rules apart that agree so far
        ids = np.frombuffer(reader.read(0, count * _ID_BYTES), "<i8").astype(np.int64)
        sampled, seen = sampled + 1, seen + count
        for rule in wrong:
            wrong[rule] += len(misplaced(rule, ids, table.ps_num, ps_id))
    best = min(wrong, key=lambda rule: wrong[rule])  # rules may differ for a few ids only
    return best if wrong[best] <= seen // 4 else Placement.NONE
