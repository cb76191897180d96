"""What differs between a version and the one that is written from it: names, dtypes, rows, and what is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.words import abridged, meant
from edl_ckpt.core.converting.row_filters import BoundFilter, bind, parse_row_filter
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.tables import DenseEntry, TableInfo
from edl_ckpt.core.reading.names import names_like
from edl_ckpt.core.reading.reader import Checkpoint

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to differ. Names are whole names or globs, as on the command line; a pair is (old, new).

    `tables` and `variables` are all that goes out, by globs; both empty: everything. `rows` are conditions on the rows
    that are left out, as `parse_row_filter` reads them. `resize` has the new number of rows of a matrix.
    """

    tables: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()
    drop: tuple[str, ...] = ()
    drop_companions: bool = False
    rows: tuple[str, ...] = ()
    cast: tuple[tuple[str, str], ...] = ()
    resize: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OutTable:
    """A table that goes out: its name in the source, how it is described, and what becomes of its rows."""

    source: str
    info: TableInfo
    dtype: DType
    rows: int
    """Its rows in the source."""
    by_number: bool
    """True where its ids in the source are row numbers."""
    leaves_out: BoundFilter | None = None
    resize: int | None = None

    @property
    def name(self) -> str:
        """Return its new name."""
        return self.info.name

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row as it goes out."""
        return self.info.dim * self.dtype.itemsize

    def is_as(self, dtype: DType) -> bool:
        """Say whether all of it goes out as it was, under its own name; its values had this dtype."""
        return (self.name, self.dtype, self.leaves_out, self.resize) == (self.source, dtype, None, None)


@dataclass(frozen=True, slots=True)
class OutVariable:
    """A dense variable that goes out, or a whole tensor that a system keeps as one."""

    source: str
    name: str
    dtype: DType
    shape: tuple[int, ...]
    in_slabs: bool = False
    """True where its rows are spread over ranks."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def is_as(self, entry: DenseEntry) -> bool:
        """Say whether its values go out as they were."""
        return (self.dtype, self.shape) == (entry.dtype, entry.shape)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What does not go out, and why: a whole table or variable, or some rows of a table."""

    name: str
    rows: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Outgoing:
    """All that goes out, and what does not."""

    tables: tuple[OutTable, ...]
    variables: tuple[OutVariable, ...]
    left_out: tuple[LeftOut, ...] = ()

    def without(self, names: Iterable[str], reason: str) -> Outgoing:
        """Return the rest, with these tables and variables, by their new names, left out for a reason."""
        gone = set(names)
        tables = [LeftOut(t.name, t.rows, t.rows * t.row_bytes, reason) for t in self.tables if t.name in gone]
        dense = [LeftOut(v.name, 0, v.size_bytes, reason) for v in self.variables if v.name in gone]
        return Outgoing(
            tuple(t for t in self.tables if t.name not in gone),
            tuple(v for v in self.variables if v.name not in gone),
            (*self.left_out, *tables, *dense),
        )

    @property
    def companions(self) -> Mapping[str, list[OutTable]]:
        """Return the companions of each table that goes out, by its name."""
        names = [table.name for table in self.tables]
        return {name: [t for t in self.tables if t.info.companion_of == name] for name in names}


def outgoing(checkpoint: Checkpoint, changes: Changes) -> Outgoing:
    """Return what goes out of a version.

    Raises NotFoundError for a name or a glob that matches nothing, UsageError for two of one name, for a dtype that
    values cannot have and for a condition that cannot be read.
    """
    slots, tables, variables = checkpoint.slots, checkpoint.table_names, checkpoint.variable_names
    kept = _kept(checkpoint, changes)
    dropped = {name for glob in changes.drop for name in _named(glob, tables, variables, slots)}
    companions = {n for n, info in checkpoint.infos.items() if info.companion_of}
    filters = [bind(checkpoint, parse_row_filter(text)) for text in changes.rows]
    renamed = new_names(changes.rename, lambda glob: _named(glob, tables, variables, slots))
    casts = _casts(changes.cast, tables, variables, slots)
    sizes = {checkpoint.table_name(name): rows for name, rows in changes.resize}
    out = Outgoing(
        tuple(_table(checkpoint, name, renamed, casts, filters, sizes.get(name)) for name in tables if name in kept),
        tuple(_variable(checkpoint, name, renamed, casts) for name in variables if name in kept),
    )
    goes = {renamed.get(name, name) for name in dropped}
    out = out.without(goes, "dropped by name")
    if changes.drop_companions:
        out = out.without({renamed.get(name, name) for name in companions} - goes, "a companion of its table")
    name, count = max(
        Counter(x.name for x in (*out.tables, *out.variables)).items(), key=itemgetter(1), default=("", 0)
    )
    if count > 1:
        raise UsageError(
            f"two of the version's tables or variables would be named {name!r}", path=checkpoint.version.ref
        )
    return out


def _kept(checkpoint: Checkpoint, changes: Changes) -> set[str]:
    """Return the names of all tables and variables that are asked for."""
    tables, variables = checkpoint.table_names, checkpoint.variable_names
    if not changes.tables and not changes.variables:
        return {*tables, *variables}
    chosen = {n for glob in changes.tables for n in _named(glob, tables, (), checkpoint.slots, "table")}
    return chosen | {n for glob in changes.variables for n in _named(glob, (), variables, {}, "variable")}


def _named(
    glob: str,
    tables: Sequence[str],
    variables: Sequence[str],
    slots: Mapping[str, str],
    noun: str = "table or variable",
) -> list[str]:
    """Return the whole names that a glob matches; NotFoundError for none."""
    names = [*names_like(glob, tables, slots), *names_like(glob, variables)]
    if not names:
        raise NotFoundError(f"no {noun} matches {glob!r}", hint=meant(glob, [*tables, *variables], "names"))
    return names


def new_names(pairs: Iterable[tuple[str, str]], matching: Callable[[str], Sequence[str]]) -> dict[str, str]:
    """Return the new names by the old ones; a `*` in a new name stands for what the `*` of the glob stands for.

    `matching` returns the names that a glob matches. UsageError for several names that would be one.

    >>> new_names([("emb.*.weight", "*")], lambda glob: ["emb.user.weight", "emb.item.weight"])
    {'emb.user.weight': 'user', 'emb.item.weight': 'item'}
    """
    new: dict[str, str] = {}
    for old, pattern in pairs:
        names = matching(old)
        if len(names) > 1 and "*" not in pattern:
            several, hint = abridged(map(repr, names), 3), "a new name may have a * as the old one has"
            raise UsageError(f"{several} would all be named {pattern!r}", hint=hint)
        before, _, after = old.partition("*")
        for name in names:
            inner = name[name.find(before) + len(before) :] if before in name else name
            new[name] = pattern.replace("*", inner.removesuffix(after))
    return new


def _casts(
    pairs: Iterable[tuple[str, str]], tables: Sequence[str], variables: Sequence[str], slots: Mapping[str, str]
) -> dict[str, DType]:
    """Return the new dtypes by names; of values that are no floats there is none."""
    casts: dict[str, DType] = {}
    for glob, dtype in pairs:
        if dtype not in FLOATS:
            raise UsageError(f"values are cast to {', '.join(FLOATS)}, not to {dtype!r}", hint=meant(dtype, FLOATS))
        casts |= dict.fromkeys(_named(glob, tables, variables, slots), DTYPES[dtype])
    return casts


def _cast(name: str, dtype: DType, casts: Mapping[str, DType]) -> DType:
    """Return the dtype that goes out: only floats are cast."""
    return casts.get(name, dtype) if dtype.name in FLOATS else dtype


def _table(
    checkpoint: Checkpoint,
    name: str,
    renamed: Mapping[str, str],
    casts: Mapping[str, DType],
    filters: Sequence[BoundFilter],
    resize: int | None,
) -> OutTable:
    entries = [entry for _, entry in checkpoint.entries(name) if entry.rows]
    info = checkpoint.infos.get(name) or TableInfo(name, max((e.dim for e in entries), default=0), "uniform")
    table = info.companion_of or name
    own = [one for one in filters if one.table == table]
    if len(own) > 1:
        raise UsageError(f"two conditions on the rows of table {table!r}", hint="join them by 'or'")
    new = replace(
        info,
        name=renamed.get(name, name),
        companion_of=renamed.get(info.companion_of, info.companion_of),
        dim=info.dim or max((e.dim for e in entries), default=0),
    )
    by_number = bool(entries) and all(not run.is_stored for entry in entries for run in entry.ids)
    dtype = _cast(name, checkpoint.written_dtype(name), casts)
    if resize is not None and not by_number:
        raise UnsupportedError(f"table {name!r} is no matrix: its rows have ids, and it grows by itself")
    return OutTable(name, new, dtype, sum(e.rows for e in entries), by_number, own[0] if own else None, resize)


def _variable(checkpoint: Checkpoint, name: str, renamed: Mapping[str, str], casts: Mapping[str, DType]) -> OutVariable:
    _, entry = checkpoint.find_variable(name)
    return OutVariable(name, renamed.get(name, name), _cast(name, entry.dtype, casts), entry.shape)
