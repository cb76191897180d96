"""TorchRec's tables among tensors: their rows, their companions, and the ids of rows where they are not row numbers.

With managed collision (MCH), the rows of a table belong to raw ids that the job keeps beside it: sorted in the part of
each rank, and padded at the end.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import Box, Encoding, Extent, GatheredRows, IdRun, Problem, TableEntry, TableInfo
from edl_ckpt.core.sources.dcp.boxes import BoxValues, SavedTensor, table_boxes
from edl_ckpt.core.sources.dcp.table_names import KEPT, owners_of
from edl_ckpt.core.sources.steps.content import ShardContent, problem_of

_PADDING: Final = ((1 << 63) - 1).to_bytes(8, "little")
"""The padding id of MCH."""
_READ_IDS: Final = 4096
"""So many ids are read at once, where the end of those that live is searched."""


@dataclass(frozen=True, slots=True, eq=False)
class _Role:
    """A tensor with a row for each id of a table: the table itself, or a companion."""

    saved: SavedTensor
    info: TableInfo
    kept: bool = False
    """True for what a module of managed collision keeps: its k-th row is that of its k-th id."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows [first, first + count) of a table, and the parts that tile them."""

    first: int
    count: int
    parts: Sequence[BoxValues]


def add_tables(saved: dict[str, SavedTensor]) -> None:
    """Add the tables among some tensors to their shards, and take them out of the tensors."""
    owned = owners_of({name: one.tensor.shape for name, one in saved.items()})
    roles: dict[str, list[_Role]] = {}
    for name in (name for name, owners in owned.items() if owners == [name]):
        rows, dim = saved[name].tensor.shape
        roles[name] = [_Role(saved[name], TableInfo(name, dim, "", total=rows))]
    for name, owners in owned.items():
        one = saved[name]
        if len(owners) > 1:
            message = f"cannot tell which table this state belongs to: {' or '.join(owners)}"
            problem = Problem("ambiguous-companion", name, one.first.item.start, message, warning=True)
            one.first.stored_in.shard.problems.append(problem)
        elif owners != [name]:
            roles[owners[0]].append(_companion(owners[0], one))
    for group in roles.values():
        try:
            _add_group(group)
        except UnsupportedError as error:
            group[0].saved.first.stored_in.shard.problems.append(problem_of(error, group[0].info.name))
        for role in group:
            del saved[role.info.name]


def _companion(table: str, one: SavedTensor) -> _Role:
    """Return what a tensor has of a table."""
    kept = KEPT.fullmatch(one.tensor.name)
    slot = kept[3] if kept else one.tensor.name.rpartition(".")[2]
    rows, *rest = one.tensor.shape
    info = TableInfo(one.tensor.name, math.prod(rest), "", companion_of=table, slot=slot, total=rows)
    return _Role(one, info, kept=bool(kept and kept[2] == "_mch_"))


def _add_group(roles: Sequence[_Role]) -> None:
    """Add a table and its companions; by raw ids where the job kept them, else by row numbers."""
    by_slot = {role.info.slot: role for role in roles if _are_ids(role)}
    raw, mapping = by_slot.get("sorted_raw_ids"), by_slot.get("remapped_ids_mapping")
    if raw and mapping:
        _add_by_raw_ids(raw, mapping, [role for role in roles if role not in {raw, mapping}])
        return
    ids = by_slot.get("weight_id")
    stored = {part.piece.offsets[0]: part for part in ids.saved.parts} if ids else {}
    for role in roles:
        if role is not ids:
            role.saved.first.stored_in.shard.infos.append(role.info)
            _add_rows(role, stored)


def _add_by_raw_ids(raw: _Role, mapping: _Role, others: Sequence[_Role]) -> None:
    """Add the other tensors of a table by the sorted raw ids of each part, and the rows that these are mapped to."""
    for role in others:
        info = replace(role.info, total=None)  # nothing counts the ids that live
        role.saved.first.stored_in.shard.infos.append(info)  # where no id lives, no shard has rows
    remapped = {part.piece: part for part in mapping.saved.parts}
    for part in raw.saved.parts:
        live = _live(part) if part.piece in remapped else 0
        if live:
            for role in others:
                _add_remapped(role, part, remapped[part.piece], live)


def _are_ids(role: _Role) -> bool:
    """Say whether a tensor can be read as ids, one after the other in each part."""
    of_module = role.kept or role.info.slot == "weight_id"
    is_int64 = role.info.dim == 1 and role.saved.dtype.name == "int64"
    return of_module and is_int64 and all(part.values.is_plain for part in role.saved.parts)


def _live(part: BoxValues) -> int:
    """Return how many ids are before the padding, by a search of the sorted ids."""
    reader = part.stored_in.reader
    first = part.values.first
    low = 0
    high = part.piece.sizes[0]
    assert reader is not None  # noqa: S101 - it has read the item
    while high - low > _READ_IDS:
        middle = (low + high) // 2
        is_padding = reader.read(first + middle * 8, 8) == _PADDING
        low, high = (low, middle) if is_padding else (middle + 1, high)
    data = reader.read(first + low * 8, (high - low) * 8)
    return low + bisect_left(range(high - low), True, key=lambda n: data[n * 8 : n * 8 + 8] == _PADDING)


def _ids_of(part: BoxValues, count: int, *, file: int, first: int = 0) -> IdRun:
    return IdRun(part.values.first, part.values.first + 8 * count, file=file, encoding=Encoding.INT64, first=first)


def _add_remapped(role: _Role, ids: BoxValues, mapping: BoxValues, live: int) -> None:
    """Add the rows of one part of the raw ids to its shard."""
    shard, (first,), (count,) = ids.stored_in.shard, ids.piece.offsets, ids.piece.sizes
    rows = next((rows for rows in _rows_of(role) if (rows.first, rows.count) == (first, count)), None)
    if rows is None and role.saved.whole and not role.kept:
        rows = _Rows(0, role.saved.tensor.shape[0], role.saved.parts)
    if rows is not None:
        run = _ids_of(ids, live, file=ids.stored_in.number)
        order = _ids_of(mapping, live, file=shard.number(mapping.stored_in.file), first=rows.first)
        _add_entry(shard, role, [rows], [run], Placement.NONE, None if role.kept else order)


def _add_rows(role: _Role, stored: Mapping[int, BoxValues]) -> None:
    """Add the rows of a tensor to the shards that have them, with row numbers as ids or with parts of stored ones."""
    by_shard: dict[int, list[_Rows]] = defaultdict(list)
    for rows in _rows_of(role):
        by_shard[rows.parts[0].stored_in.shard.file.ps_id].append(rows)
    placement = Placement.WHOLE_TABLE if len(by_shard) == 1 else Placement.RANGES
    if stored:
        placement = Placement.NONE
    for of_shard in by_shard.values():
        shard = of_shard[0].parts[0].stored_in.shard
        runs = [IdRun(0, 8 * rows.count, encoding=Encoding.ROWS, first=rows.first) for rows in of_shard]
        if stored:
            ids = [part for rows in of_shard if (part := stored.get(rows.first)) and part.stored_in.shard is shard]
            runs = [_ids_of(part, part.piece.sizes[0], file=part.stored_in.number) for part in ids]
        _add_entry(shard, role, of_shard, runs, placement, None)


def _rows_of(role: _Role) -> list[_Rows]:
    """Return the rows whose columns are all there, in order; where rows of parts overlap otherwise, all as one."""
    groups: dict[tuple[int, int], list[BoxValues]] = defaultdict(list)
    for part in sorted(role.saved.parts, key=lambda part: part.piece.offsets):
        groups[part.piece.offsets[0], part.piece.sizes[0]].append(part)
    if any(first + count > after for (first, count), (after, _) in pairwise(groups)):
        return [_Rows(0, role.saved.tensor.shape[0], role.saved.parts)] if role.saved.whole else []
    wide = {rows: sum(math.prod(part.piece.sizes[1:]) for part in parts) for rows, parts in groups.items()}
    return [_Rows(*rows, parts) for rows, parts in groups.items() if wide[rows] == role.info.dim]


def _add_entry(
    shard: ShardContent, role: _Role, groups: list[_Rows], runs: list[IdRun], placement: Placement, order: IdRun | None
) -> None:
    """Add rows of a table to a shard, with their ids."""
    name, dim, dtype = role.info.name, role.info.dim, role.saved.dtype
    count, row_bytes = sum(run.size_bytes for run in runs) // 8, dim * dtype.itemsize
    first = groups[0].parts[0]
    values = Extent(first.values.first, first.values.first + count * row_bytes, file=first.stored_in.number)
    is_one = len(groups) == len(groups[0].parts) == 1 and first.stored_in.shard is shard
    if order is not None or not is_one or not first.values.is_plain:
        boxes: list[Box] = []
        before = 0
        for rows in groups:
            inside = table_boxes(dim, rows.parts, rows.first, rows.count, lambda of_box: shard.number(of_box.file))
            boxes += [replace(box, first=box.first + before) for box in inside]
            before += rows.count
        gathered = GatheredRows(count, row_bytes, tuple(boxes), order)
        values = Extent(0, count * row_bytes, file=shard.gather(gathered))
    shard.infos.append(role.info)
    if not count:
        return
    entry = TableEntry(name, dtype, dim, count, values, tuple(runs), first.item.start, placement=placement)
    shard.tables.append(entry)
