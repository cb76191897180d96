"""What differs between a version and the one that is written from it: names, dtypes, rows, and what is left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.base.several import several, several_pairs
from edl_ckpt.core.base.words import left_out_items, meant
from edl_ckpt.core.converting.names import new_names, with_companions
from edl_ckpt.core.converting.row_filters import BoundFilter, bind, parse_row_filter
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.tables import DenseEntry, TableInfo
from edl_ckpt.core.reading.names import chosen_names, names_like
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.bundle.parts import RECORD, is_waiting
from edl_ckpt.core.sources.dcp.table_names import collisions

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
NO_PLACE: Final = "not in "
"""Before the name of a system: why items are left out."""
NOT_ADMITTED: Final = "keys that were not admitted yet go by parts"
"""Why keys of DeepRec that wait for their admission are left out."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The requested edits. Names are whole names or globs, as on the command line; a pair is (old, new).

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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", several(self.tables, "tables"))
        object.__setattr__(self, "variables", several(self.variables, "variables"))
        object.__setattr__(self, "drop", several(self.drop, "drop"))
        object.__setattr__(self, "rows", several(self.rows, "rows"))
        object.__setattr__(self, "rename", several_pairs(self.rename, "rename"))
        object.__setattr__(self, "cast", several_pairs(self.cast, "cast"))
        object.__setattr__(self, "resize", several_pairs(self.resize, "resize"))


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
        return (self.name, self.dtype, self.leaves_out) == (self.source, dtype, None)


@dataclass(frozen=True, slots=True)
class OutVariable:
    """A dense variable that goes out, or a whole tensor that a system keeps as one; or an item, as bytes."""

    source: str
    name: str
    dtype: DType
    shape: tuple[int, ...]
    in_slabs: bool = False
    """True where its rows are spread over ranks."""
    item_bytes: int = 0
    """The bytes of an item; 0 for a variable."""

    @property
    def is_item(self) -> bool:
        """Say whether it is texts, a value or the like."""
        return self.dtype.is_item

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all values."""
        return self.item_bytes if self.is_item else math.prod(self.shape) * self.dtype.itemsize

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
    kind: str = ""
    """What an item is, such as 'value' or 'string'; '' for tables and variables."""

    @property
    def lacks_place(self) -> bool:
        """Say whether it is an item that the system has no place for: nobody has asked for that."""
        return bool(self.kind) and self.reason.startswith((NO_PLACE, NOT_ADMITTED))


def left_out_of(
    checkpoint: Checkpoint, system: str, items: Iterable[str] | None = None, records: Iterable[str] | None = None
) -> tuple[LeftOut, ...]:
    """Return the items of a version, and the records of parts, as left out of something in another system.

    By default these are all that the version has.
    """
    entries = [checkpoint.find_variable(name)[1] for name in (checkpoint.item_names if items is None else items)]
    found = [LeftOut(e.name, 0, e.size_bytes, f"{NO_PLACE}{system}", e.dtype.name) for e in entries]
    for name in sorted(records_of(checkpoint) if records is None else records):
        reason = NOT_ADMITTED if is_waiting(name) else f"{NO_PLACE}{system}"
        found.append(LeftOut(name, 0, checkpoint.find_variable(name)[1].size_bytes, reason, RECORD))
    return tuple(found)


def left_out_lines(left_out: Iterable[LeftOut]) -> Iterator[str]:
    """Yield a line for each table and variable that is left out, and one for all items of a kind.

    >>> list(left_out_lines(LeftOut(name, 0, 9, "not in npz", "value") for name in ("lr", "step")))
    ['left out: lr, step (2 values; not in npz)']
    """
    items: dict[tuple[str, str], list[str]] = {}
    for one in left_out:
        if one.kind:
            items.setdefault((one.kind, one.reason), []).append(one.name)
        else:
            yield f"{one.name} is left out: {one.reason}"
    for (kind, reason), names in items.items():
        yield left_out_items(names, reason, kind)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """The tables and variables that go out, and what was left out with reasons."""

    tables: tuple[OutTable, ...]
    variables: tuple[OutVariable, ...]
    left_out: tuple[LeftOut, ...] = ()

    def without(self, names: Iterable[str], reason: str, kind: str = "") -> Outgoing:
        """Return the rest, with these tables and variables, by their names in the source, left out for a reason.

        `kind` is what such variables are called together; each item has its own.
        """
        gone = set(names)
        tables = [LeftOut(t.name, t.rows, t.rows * t.row_bytes, reason) for t in self.tables if t.source in gone]
        dense = [
            LeftOut(v.name, 0, v.size_bytes, reason, v.dtype.name if v.is_item else kind)
            for v in self.variables
            if v.source in gone
        ]
        return Outgoing(
            tuple(t for t in self.tables if t.source not in gone),
            tuple(v for v in self.variables if v.source not in gone),
            (*self.left_out, *tables, *dense),
        )

    def check_some(self, ref: str) -> None:
        """Raise UsageError where all is left out."""
        if self.left_out and not (self.tables or self.variables):
            first = self.left_out[0]
            message = f"nothing of it would be written: {first.name!r} is left out ({first.reason})"
            raise UsageError(f"{message}, and so is all else", path=ref)

    def check_names(self, ref: str) -> None:
        """Raise UsageError for two of one name, and for one without a name."""
        names = [*(table.name for table in self.tables), *(variable.name for variable in self.variables)]
        if not all(names):
            raise UsageError("a table or variable needs a name", path=ref, hint="try: --rename OLD=NEW")
        ((name, count),) = Counter(names).most_common(1) or [("", 0)]
        if count > 1:
            hint = "try: --rename OLD=NEW"
            raise UsageError(f"two of the version's tables or variables would be named {name!r}", path=ref, hint=hint)

    @property
    def companions(self) -> Mapping[str, list[OutTable]]:
        """Return the companions of each table that goes out, by its name."""
        names = [table.name for table in self.tables]
        return {name: [t for t in self.tables if t.info.companion_of == name] for name in names}


def outgoing(checkpoint: Checkpoint, changes: Changes, *, meaning: Checkpoint | None = None) -> Outgoing:
    """Return what goes out of a version.

    `meaning` is the same version with its tables, where `checkpoint` has its tensors alone.
    Raises NotFoundError for a name or a glob that matches nothing, UsageError for two of one name, for a dtype that
    values cannot have and for a condition that cannot be read.
    """
    slots = (meaning or checkpoint).slots
    tables = checkpoint.table_names
    variables = _entry_names(checkpoint)
    kept = set(chosen_names(tables, changes.tables, changes.variables, "table", slots))
    kept.update(chosen_names(variables, changes.variables, changes.tables, "variable"))
    dropped = {name for glob in changes.drop for name in _named(glob, tables, variables, slots)}
    companions = {n for n, info in checkpoint.infos.items() if info.companion_of}
    filters = [bind(checkpoint, parse_row_filter(text)) for text in changes.rows]
    renamed = renamed_by(checkpoint, changes.rename, meaning=meaning)
    casts = _casts(checkpoint, changes.cast)
    if changes.resize:
        name = checkpoint.table_name(changes.resize[0][0])
        raise UnsupportedError(f"table {name!r} is no matrix of its system, so it has no size")
    out = Outgoing(
        tuple(_table(checkpoint, name, renamed, casts, filters) for name in tables if name in kept),
        tuple(_variable(checkpoint, name, renamed, casts) for name in variables if name in kept),
    )
    out = out.without(dropped, "dropped by name")
    gone = {n for n in companions if changes.drop_companions or checkpoint.infos[n].companion_of in dropped}
    out = out.without(gone - dropped, "a companion of its table")
    if renamed:  # a version may have a table and a variable of one name, and one without a name
        out.check_names(checkpoint.version.ref)
    return out


def _entry_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names of variables and items: all of them go out, are renamed and dropped alike."""
    return sorted((*checkpoint.variable_names, *checkpoint.item_names))


def _named(glob: str, tables: Sequence[str], variables: Sequence[str], slots: Mapping[str, str]) -> list[str]:
    """Return the whole names that a glob matches, of a whole name that one; NotFoundError for none."""
    if glob in (*tables, *variables):
        return [glob]
    names = list(dict.fromkeys([*names_like(glob, tables, slots), *names_like(glob, variables)]))
    if not names:
        raise NotFoundError(f"no table or variable matches {glob!r}", hint=meant(glob, [*tables, *variables], "names"))
    return names


def renamed_by(
    checkpoint: Checkpoint, pairs: Iterable[tuple[str, str]], *, meaning: Checkpoint | None = None
) -> dict[str, str]:
    """Return the new names of tables and variables by the old ones; companions follow their tables.

    `meaning` is the same version with its tables, where `checkpoint` has its tensors alone.
    Raises NotFoundError for a glob that matches nothing, UsageError for several that would be one, and for no name.
    """
    meaning = meaning or checkpoint
    known = checkpoint.table_names, _entry_names(checkpoint), meaning.slots
    new = new_names(pairs, lambda glob: _named(glob, *known))
    if "" in new.values():
        raise UsageError("a table or variable needs a name; the new one is empty", path=checkpoint.version.ref)
    return with_companions(new, _owners(checkpoint, meaning)) if new else {}


def _owners(checkpoint: Checkpoint, meaning: Checkpoint) -> dict[str, str]:
    """Return the table of each companion, and of each tensor that a module of managed collision keeps for it."""
    owners = {name: info.companion_of for name, info in meaning.infos.items() if info.companion_of}
    for module, table in collisions(meaning.infos).items():
        kept = [name for name in checkpoint.variable_names if name.startswith(f"{module}.")]
        owners |= dict.fromkeys(kept, table)
    return owners


def _casts(checkpoint: Checkpoint, pairs: Iterable[tuple[str, str]]) -> dict[str, DType]:
    """Return the new dtypes by names; UsageError for a glob that names no floats."""
    casts: dict[str, DType] = {}
    for glob, dtype in pairs:
        if dtype not in FLOATS:
            raise UsageError(f"values are cast to {', '.join(FLOATS)}, not to {dtype!r}", hint=meant(dtype, FLOATS))
        names = _named(glob, checkpoint.table_names, _entry_names(checkpoint), checkpoint.slots)
        if not any(_dtype_of(checkpoint, name).name in FLOATS for name in names):
            raise UsageError(f"nothing that {glob!r} names has floats, and only floats are cast")
        casts |= dict.fromkeys(names, DTYPES[dtype])
    return casts


def _dtype_of(checkpoint: Checkpoint, name: str) -> DType:
    """Return the dtype of a table or a variable."""
    is_table = checkpoint.has_table(name)
    return checkpoint.written_dtype(name) if is_table else checkpoint.find_variable(name)[1].dtype


def _cast(name: str, dtype: DType, casts: Mapping[str, DType]) -> DType:
    """Return the dtype that goes out: only floats are cast."""
    return casts.get(name, dtype) if dtype.name in FLOATS and not dtype.is_item else dtype


def _table(
    checkpoint: Checkpoint,
    name: str,
    renamed: Mapping[str, str],
    casts: Mapping[str, DType],
    filters: Sequence[BoundFilter],
) -> OutTable:
    entries = [entry for _, entry in checkpoint.entries(name) if entry.rows]
    info = checkpoint.infos.get(name) or TableInfo(name, max((e.dim for e in entries), default=0), "uniform")
    table = info.companion_of or name
    asked = [one for one in filters if one.table == table]
    if len(asked) > 1:
        raise UsageError(f"two conditions on the rows of table {table!r}", hint="join them by 'or'")
    new = replace(
        info,
        name=renamed.get(name, name),
        companion_of=renamed.get(info.companion_of, info.companion_of),
        dim=info.dim or max((e.dim for e in entries), default=0),
    )
    by_number = bool(entries) and all(not run.is_stored for entry in entries for run in entry.ids)
    dtype = _cast(name, _dtype_of(checkpoint, name), casts)
    return OutTable(name, new, dtype, sum(e.rows for e in entries), by_number, asked[0] if asked else None)


def _variable(checkpoint: Checkpoint, name: str, renamed: Mapping[str, str], casts: Mapping[str, DType]) -> OutVariable:
    _, entry = checkpoint.find_variable(name)
    new, item_bytes = renamed.get(name, name), entry.size_bytes if entry.is_item else 0
    return OutVariable(name, new, _cast(name, entry.dtype, casts), entry.shape, item_bytes=item_bytes)
