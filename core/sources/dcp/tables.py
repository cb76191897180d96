"""TorchRec's tables among tensors: their names, their companions, and the ids of rows where they are not row numbers.

A tensor `...embedding_bags.T.weight` or `...embeddings.T.weight` is a table. With managed collision (MCH), the rows of
a table belong to raw ids that the job keeps beside it: sorted in the part of each rank, and padded at the end.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import Box, Encoding, Extent, GatheredRows, IdRun, Problem, TableEntry, TableInfo
from edl_ckpt.core.sources.dcp.boxes import BoxValues, SavedTensor, table_boxes
from edl_ckpt.core.sources.steps.content import ShardContent

_TABLE: Final = re.compile(r"(?:.+\.)?(?:embedding_bags|embeddings)\.[^.]+\.weight")
_KEPT: Final = re.compile(r"(.+)\.(_mch_|_hash_zch_)([^.]+)")
"""What a module of managed collision has for each row; the module's name ends with that of the table."""
_PADDING: Final = ((1 << 63) - 1).to_bytes(8, "little")
"""The id that stands for none, as MCH stores it."""
_BESIDE: Final = frozenset({"weight_id", "metadata"})
"""What tables of virtual size (KV ZCH) have beside their weight, row by row."""
_READ_IDS: Final = 4096
"""So many ids are read at once, where the end of those that live is searched."""


@dataclass(frozen=True, slots=True, eq=False)
class _Role:
    """A tensor with a row for each id of a table: the table itself, or a companion."""

    saved: SavedTensor
    info: TableInfo
    kept: bool = False
    """True for what a module of managed collision keeps: its k-th row is that of its k-th id."""

    @property
    def dim(self) -> int:
        """Return the elements of a row."""
        return self.info.dim

    @property
    def row_bytes(self) -> int:
        """Return the bytes of a row."""
        return self.dim * self.saved.dtype.itemsize


def add_tables(saved: dict[str, SavedTensor]) -> None:
    """Add the tables among some tensors to their shards, and take them out of the tensors."""
    tables = {name: one for name, one in saved.items() if _TABLE.fullmatch(name) and len(one.tensor.shape) == 2}
    if not tables:
        return
    roles = {name: [_Role(one, TableInfo(name, one.tensor.shape[1], ""))] for name, one in tables.items()}
    known = _TableNames(tables)
    for name, one in saved.items():
        if name not in tables and one.tensor.shape:
            best = [table for table in known.alike(name) if _same_rows(tables[table], one)]
            if len(best) == 1:
                roles[best[0]].append(_companion(best[0], one))
            elif best:
                message = f"it may belong to {' or '.join(best)}, so it is no companion of either"
                problem = Problem("ambiguous-companion", name, one.first.item.start, message, warning=True)
                one.first.stored_in.shard.problems.append(problem)
    for group in roles.values():
        _add_group(group)
        for role in group:
            del saved[role.info.name]


def _same_rows(table: SavedTensor, one: SavedTensor) -> bool:
    return len(one.tensor.shape) <= 2 and one.tensor.shape[0] == table.tensor.shape[0]


def _companion(table: str, one: SavedTensor) -> _Role:
    """Return what a tensor has of a table."""
    kept = _KEPT.fullmatch(one.tensor.name)
    slot = kept[3] if kept else one.tensor.name.rpartition(".")[2]
    info = TableInfo(one.tensor.name, math.prod(one.tensor.shape[1:]), "", companion_of=table, slot=slot)
    return _Role(one, info, kept=bool(kept and kept[2] == "_mch_"))


class _TableNames:
    """The names of tables, to find those that the name of a companion contains."""

    def __init__(self, tables: Iterable[str]) -> None:
        self._by_end: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for table in tables:
            parts = tuple(table.split("."))
            self._by_end[parts[-3:]].append(table)
            self._by_end[parts[-2:-1]].append(table)

    def alike(self, name: str) -> list[str]:
        """Return the tables that have the longest run of names in common with a name; [] for no companion."""
        parts = tuple(name.split("."))
        if kept := _KEPT.fullmatch(name):
            close = self._by_end.get((kept[1].rpartition(".")[2],), [])
        elif parts[-1] in _BESIDE:
            close = self._by_end.get((*parts[-3:-1], "weight"), [])
        else:
            windows = (parts[n : n + 3] for n in range(len(parts) - 3))
            close = list(dict.fromkeys(table for window in windows for table in self._by_end.get(window, ())))
        if len(close) < 2:
            return close
        runs = {table: _common_run(table.split("."), parts) for table in close}
        return [table for table in close if runs[table] == max(runs.values())]


def _common_run(names: Sequence[str], others: Sequence[str]) -> int:
    """Return the length of the longest run of names that both have.

    >>> _common_run(["model", "ebc", "user"], ["optim", "ebc", "user", "m"])
    2
    """
    best, ends = 0, [0] * (len(others) + 1)
    for name in names:
        ends = [0, *(before + 1 if name == other else 0 for before, other in zip(ends, others, strict=False))]
        best = max(best, *ends)
    return best


def _add_group(roles: Sequence[_Role]) -> None:
    """Add a table and its companions; by raw ids where the job kept them, else by row numbers."""
    by_slot = {role.info.slot: role for role in roles if role.kept or role.info.slot == "weight_id"}
    raw, remap, ids = by_slot.get("sorted_raw_ids"), by_slot.get("remapped_ids_mapping"), by_slot.get("weight_id")
    if raw and remap and _are_ids(raw.saved) and _are_ids(remap.saved):
        rows = {part.piece.offsets[0]: part for part in remap.saved.parts}
        for part in raw.saved.parts:
            other = rows.get(part.piece.offsets[0])
            if other and other.piece == part.piece and (live := _live(part)):
                for role in roles:
                    if role not in {raw, remap}:
                        _add_remapped(role, part, other, live)
        return
    stored = {part.piece.offsets[0]: part for part in ids.saved.parts} if ids and _are_ids(ids.saved) else {}
    for role in roles:
        if role is not ids or not stored:
            _add_rows(role, stored)


def _are_ids(saved: SavedTensor) -> bool:
    """Say whether a tensor can be read as ids, one after the other in each part."""
    one_each = saved.tensor.shape[1:] in {(), (1,)}
    return one_each and saved.dtype.name == "int64" and all(part.values.is_plain for part in saved.parts)


def _live(part: BoxValues) -> int:
    """Return how many ids are before the padding, by a search of the sorted ids."""
    reader, first, count = part.stored_in.reader, part.values.first, part.piece.sizes[0]
    assert reader is not None  # noqa: S101 - it has read the item

    low, high = 0, count
    while high - low > _READ_IDS:
        middle = (low + high) // 2
        is_padding = reader.read(first + middle * 8, 8) == _PADDING
        low, high = (low, middle) if is_padding else (middle + 1, high)
    data = reader.read(first + low * 8, (high - low) * 8)
    return low + bisect_left(range(high - low), True, key=lambda n: data[n * 8 : n * 8 + 8] == _PADDING)


def _add_remapped(role: _Role, ids: BoxValues, rows: BoxValues, live: int) -> None:
    """Add the rows of one part of the raw ids to its shard."""
    shard, (first,), (count,) = ids.stored_in.shard, ids.piece.offsets, ids.piece.sizes
    parts = _row_groups(role.saved, role.dim).get((first, count), [])
    if not parts and role.saved.whole and not role.kept:
        first, count, parts = 0, role.saved.tensor.shape[0], role.saved.parts
    if not parts:
        return
    order = None
    if not role.kept:
        start, file = rows.values.first, shard.number(rows.stored_in.file)
        order = IdRun(start, start + 8 * live, file=file, encoding=Encoding.INT64, first=first)
    run = IdRun(ids.values.first, ids.values.first + 8 * live, file=ids.stored_in.number, encoding=Encoding.INT64)
    _add_entry(shard, role, [(first, count, parts)], [run], Placement.NONE, order=order)


def _add_rows(role: _Role, stored: Mapping[int, BoxValues]) -> None:
    """Add the rows of a tensor to the shards that have them, with row numbers as ids or with parts of stored ones."""
    by_shard: dict[int, list[tuple[int, int, list[BoxValues]]]] = defaultdict(list)
    shards: dict[int, ShardContent] = {}
    for (first, rows), parts in sorted(_row_groups(role.saved, role.dim).items()):
        shard = min(parts, key=lambda part: part.piece.offsets).stored_in.shard
        shards[shard.file.ps_id] = shard
        by_shard[shard.file.ps_id].append((first, rows, parts))
    placement = Placement.NONE if stored else Placement.WHOLE_TABLE if len(shards) == 1 else Placement.RANGES
    for number, groups in by_shard.items():
        runs = [IdRun(0, 8 * rows, encoding=Encoding.ROWS, first=first) for first, rows, _ in groups]
        if stored:
            parts_of_ids = [stored.get(first) for first, _, _ in groups]
            runs = [
                IdRun(part.values.first, part.values.end, file=part.stored_in.number, encoding=Encoding.INT64)
                for part in parts_of_ids
                if part and part.stored_in.shard is shards[number]
            ]
        _add_entry(shards[number], role, groups, runs, placement)


def _row_groups(saved: SavedTensor, dim: int) -> dict[tuple[int, int], list[BoxValues]]:
    """Return the parts that have the same rows, by (first row, rows); those whose columns are all there.

    Where rows of parts overlap otherwise, all parts are one group.
    """
    groups: dict[tuple[int, int], list[BoxValues]] = defaultdict(list)
    for part in saved.parts:
        groups[part.piece.offsets[0], part.piece.sizes[0]].append(part)
    ordered = sorted(groups)
    if any(first + rows > after for (first, rows), (after, _) in pairwise(ordered)):
        return {(0, saved.tensor.shape[0]): saved.parts} if saved.whole else {}
    columns = {rows: sum(math.prod(part.piece.sizes[1:]) for part in parts) for rows, parts in groups.items()}
    return {rows: parts for rows, parts in groups.items() if columns[rows] == dim}


def _add_entry(
    shard: ShardContent,
    role: _Role,
    groups: Sequence[tuple[int, int, Sequence[BoxValues]]],
    runs: Sequence[IdRun],
    placement: Placement,
    *,
    order: IdRun | None = None,
) -> None:
    """Add rows of a table to a shard, those of some (first row, rows, parts), with their ids."""
    rows = sum(run.size_bytes for run in runs) // 8
    size, first = rows * role.row_bytes, groups[0][2][0]
    if order is None and len(groups) == len(groups[0][2]) == 1 and first.values.is_plain:
        values = Extent(first.values.first, first.values.first + size, file=first.stored_in.number)
    else:
        boxes: list[Box] = []
        before = 0
        for start, count, parts in groups:
            of_group = table_boxes(role.dim, parts, start, count, lambda of_box: shard.number(of_box.file))
            boxes += [replace(box, first=box.first + before) for box in of_group]
            before += count
        gathered = GatheredRows(rows, role.row_bytes, tuple(boxes), order)
        values = Extent(0, size, file=shard.gather(gathered))
    if role.info not in shard.infos:
        shard.infos.append(role.info)
    dtype = role.saved.dtype
    entry = TableEntry(
        role.info.name, dtype, role.dim, rows, values, tuple(runs), first.item.start, placement=placement
    )
    shard.tables.append(entry)
