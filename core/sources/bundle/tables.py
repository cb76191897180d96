"""Tables in a bundle: `NAME-keys` and `NAME-values`, as DeepRec, TFPlus and TFRA save them, in parts or not.

DeepRec's `NAME/part_3-keys` and TFRA's `NAME_mht_4of8-keys` are parts of the table NAME. So are those of TFRA's saved
objects, `.../tables_of_VARIABLE/3/.ATTRIBUTES/table-keys`. Frequencies, versions and an optimizer's slots
are companions. Whatever does not fit is left to be a variable.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Final, NamedTuple

from edl_ckpt.core.model.dtypes import TF_DTYPES, DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import Box, Encoding, Extent, GatheredRows, IdRun, TableEntry, TableInfo
from edl_ckpt.core.sources.bundle.data_files import DataFile, DataFiles
from edl_ckpt.core.sources.bundle.index import Index, StoredTensor

_COMPANIONS: Final = ("freqs", "versions")
_PARTS: Final = [
    re.compile(r"(.*)/part_([0-9]{1,9})((?:/.*)?)", re.ASCII | re.DOTALL),
    re.compile(r"(.*)_mht_([0-9]{1,9})of[0-9]+()", re.ASCII | re.DOTALL),
    re.compile(r"(.*/tables_of_[^/]+)/([0-9]{1,9})/\.ATTRIBUTES/table()", re.ASCII | re.DOTALL),
]
"""How parts are spelled: the table's name without the part's number is the first group and the third one."""
_ENCODINGS: Final = {9: Encoding.INT64, 23: Encoding.UINT64, 3: Encoding.INT32}


class KeyedPart(NamedTuple):
    """One part of a table. `number` is -1 if it is not partitioned; `stem` begins the names of its tensors."""

    number: int
    stem: str
    keys: StoredTensor
    values: StoredTensor

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.keys.shape[0]


class KeyedTable(NamedTuple):
    """A table: its name, its parts in order, what the names of their values end with, and whose companion it is."""

    name: str
    parts: Sequence[KeyedPart]
    ending: str = "values"
    placement: Placement | None = None
    companion_of: str = ""
    slot: str = ""

    @property
    def dtype(self) -> DType:
        """Return the dtype of its rows."""
        return TF_DTYPES[self.parts[0].values.dtype]

    @property
    def dim(self) -> int:
        """Return the elements of a row."""
        return (*self.parts[0].values.shape, 1)[1]

    @property
    def tensors(self) -> Iterator[tuple[str, StoredTensor]]:
        """Return the tensors that its parts are, by their names."""
        for part in self.parts:
            yield f"{part.stem}-keys", part.keys
            yield f"{part.stem}-{self.ending}", part.values


def find_tables(index: Index) -> list[KeyedTable]:
    """Return the tables among the tensors of an index."""
    tables: dict[str, KeyedTable] = {}
    for name, parts in _parts_by_table(index).items():
        parts.sort(key=lambda part: part.number)
        kinds = {(part.keys.dtype, part.values.dtype, part.values.shape[1]) for part in parts}
        together = [KeyedTable(name, parts)]
        apart = [KeyedTable(part.stem, [part]) for part in parts]
        for table in together if len(kinds) == 1 else apart:
            tables[table.name] = table._replace(placement=_placement(index, table))
    slots = [_as_slot(table, tables) for table in tables.values()]
    companions: list[KeyedTable] = []
    for table in slots:
        companions += _companions(index, table)
    return [*slots, *companions]


def _parts_by_table(index: Index) -> Mapping[str, list[KeyedPart]]:
    """Return the pairs of keys and values with a row for each key, by the names of their tables."""
    by_name: defaultdict[str, list[KeyedPart]] = defaultdict(list)
    for keys_name, keys in index.tensors.items():
        if not keys_name.endswith("-keys"):
            continue
        stem = keys_name.removesuffix("-keys")
        values = index.tensors.get(f"{stem}-values")
        if values is not None and _are_rows(keys, values, 2) and keys.dtype in _ENCODINGS and values.shape[1]:
            name, number = part_of(stem)
            by_name[name].append(KeyedPart(number, stem, keys, values))
    return by_name


def part_of(stem: str) -> tuple[str, int]:
    """Return the table that a part belongs to, and its number, from the begin of its tensors' names.

    >>> part_of("item/part_3/Adagrad"), part_of("item")
    (('item/Adagrad', 3), ('item', -1))
    """
    match = next(filter(None, (pattern.fullmatch(stem) for pattern in _PARTS)), None)
    return (match[1] + match[3], int(match[2])) if match else (stem, -1)


def _are_rows(keys: StoredTensor, values: StoredTensor, dims: int) -> bool:
    """Say whether values have a row for each key, and both the bytes that their shapes need."""
    for tensor in (keys, values):
        dtype = TF_DTYPES.get(tensor.dtype)
        if dtype is None or tensor.slices or prod(tensor.shape) * dtype.itemsize != tensor.end - tensor.start:
            return False
    return len(keys.shape) == 1 and len(values.shape) == dims and values.shape[0] == keys.shape[0]


def _placement(index: Index, table: KeyedTable) -> Placement | None:
    """Return the rule of DeepRec where each part is alone in the data file of its number, else no rule."""
    offsets = all(f"{part.stem}-partition_offset" in index.tensors for part in table.parts)
    placed = [(part.number, part.keys.shard, part.values.shard) for part in table.parts]
    return Placement.MOD_1000_MOD if offsets and placed == [(n, n, n) for n in range(index.shards)] else None


def _companions(index: Index, table: KeyedTable) -> Iterator[KeyedTable]:
    """Yield the frequencies and versions of a table, where all parts have them."""
    for ending in _COMPANIONS:
        parts: list[KeyedPart] = []
        for part in table.parts:
            values = index.tensors.get(f"{part.stem}-{ending}")
            if values is not None and values.dtype in _ENCODINGS and _are_rows(part.keys, values, 1):
                parts.append(part._replace(values=values))
        if len(parts) == len(table.parts) and len({part.values.dtype for part in parts}) == 1:
            yield KeyedTable(f"{table.name}-{ending}", parts, ending, table.placement, table.name, ending)


def _as_slot(table: KeyedTable, tables: Mapping[str, KeyedTable]) -> KeyedTable:
    """Return a table as the companion of the one whose name its own begins with, if the checksums of ids are equal."""
    name, slot = table.name, ""
    while "/" in name:
        name, _, last = name.rpartition("/")
        slot = f"{last}/{slot}" if slot else last
        keys = [(part.number, part.keys.crc32c, part.rows) for part in table.parts]
        if name in tables and keys == [(part.number, part.keys.crc32c, part.rows) for part in tables[name].parts]:
            return table._replace(companion_of=name, slot=slot)
    return table


def add_table(table: KeyedTable, files: DataFiles) -> None:
    """Add a table to the shards that have its values; parts in files that are not open are left out."""
    by_shard: defaultdict[int, list[KeyedPart]] = defaultdict(list)
    for part in table.parts:
        if part.keys.shard in files and part.values.shard in files:
            by_shard[part.values.shard].append(part)
    for number, parts in by_shard.items():
        _add_parts(table, parts, files[number], files)
    for name, tensor in table.tensors:
        if tensor.shard in files:
            files[tensor.shard].add_sum(name, tensor, files[tensor.shard].extent(tensor))


def _add_parts(table: KeyedTable, parts: Sequence[KeyedPart], file: DataFile, files: DataFiles) -> None:
    """Add those parts of a table that one shard has, as one."""
    dtype, dim = table.dtype, table.dim
    start = parts[0].values.start
    info = TableInfo(
        table.name,
        dim,
        "",
        dtype=dtype.tf_enum,
        companion_of=table.companion_of,
        slot=table.slot,
        total=sum(part.rows for part in table.parts),
    )
    file.shard.infos.append(info)
    parts = [part for part in parts if part.rows]
    ids: list[IdRun] = []
    for keys in (part.keys for part in parts):
        keys_file = files[keys.shard].file
        ids.append(file.shard.id_run(keys_file, keys.start, keys.end, _ENCODINGS[keys.dtype], keys.shape[0]))
    values = _values(parts, file, dim * dtype.itemsize) if parts else Extent(start, start, file=file.number)
    rows = sum(part.rows for part in parts)
    entry = TableEntry(table.name, dtype, dim, rows, values, tuple(ids), start, placement=table.placement)
    file.shard.tables.append(entry.described())


def _values(parts: Sequence[KeyedPart], file: DataFile, row_bytes: int) -> Extent:
    """Return the rows of parts, one after the other."""
    if len(parts) == 1:
        return file.extent(parts[0].values)
    firsts = [*accumulate((part.rows for part in parts), initial=0)]
    boxes = [
        Box(file.extent(part.values), row_bytes, part.rows, first) for part, first in zip(parts, firsts, strict=False)
    ]
    number = file.shard.gather(GatheredRows(firsts[-1], row_bytes, tuple(boxes)))
    return Extent(0, firsts[-1] * row_bytes, file=number)
