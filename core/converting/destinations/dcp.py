"""torch DCP as a destination: tables are matrices in slabs of rows, as TorchRec cuts them, and all else is as it is.

A version of torch goes out tensor by tensor, whatever its tensors mean. From another system a table gets the key that
TorchRec gives its tables, and its companions those of an optimizer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Final

from edl_ckpt.core.converting.changes import Outgoing, OutTable, OutVariable
from edl_ckpt.core.converting.destinations.interface import ArrayDestination
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.dcp.several import StepIndexes, lay_out_several
from edl_ckpt.core.sources.dcp.table_names import collided, is_table_name, owners_of
from edl_ckpt.core.sources.dcp.writing import METADATA, OF_TORCH, lay_out
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout, Slab

_SPLIT_BYTES: Final = 1 << 20
"""From this size on, a tensor of one rank that is no table is split, too: each box of it is a zip of its own."""


class ToDcp(ArrayDestination):
    """A `.distcp` file for each rank that has anything, and `.metadata`."""

    system = "dcp"
    other_dtypes = OF_TORCH
    of_system = re.compile(r"(?:^|/)(?:\.metadata|__\d+_\d+\.distcp)$")

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return tables with the keys of TorchRec."""
        keys = {t.name: _key_of(t.name) for t in out.tables if not t.info.companion_of}
        return replace(out, tables=tuple(_named(table, keys) for table in out.tables))

    def describes(self, name: str, read: Collection[str]) -> bool:
        """Say whether a file is an index."""
        del read
        return name.rpartition("/")[2] == METADATA

    def rank_of(self, variable: OutVariable) -> int:
        """Return the rank of the shard that has it, modulo the new number; by the name from another system."""
        if self.given.whole is None:
            return super().rank_of(variable)
        shard, _ = self.given.whole.find_variable(variable.source)
        return shard.file.ps_id % self.ranks

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files, with the values that are no tensors and the paths of keys that a source of torch has."""
        if not self.is_own:
            return lay_out(arrays, variables=self._marked(arrays))
        sources = {variable.name: variable.source for variable in self.out.variables}
        marked = self._marked(arrays)
        return lay_out_several(self._indexes, arrays, sources, items=self._forms, variables=marked)

    def _marked(self, arrays: Sequence[Array]) -> Sequence[str]:
        """Return the variables whose names a reader would take for those of tables or of companions."""
        taken = owners_of({array.key: array.shape for array in arrays if not array.dtype.is_item})
        if self.given.whole is None:
            variables = {variable.name for variable in self.out.variables}
        else:  # under a new name, a tensor is what that name says
            same = (v.name for v in self.out.variables if v.name == v.source)
            variables = {name for name in same if name in self.source}
        return sorted(variables & taken.keys())

    @cached_property
    def _indexes(self) -> StepIndexes:
        """The source's `.metadata` files."""
        version, files = self.source.version, self.source.files
        names = [name for name in version.sizes if name.rpartition("/")[2] == METADATA]
        return StepIndexes({n.removesuffix(METADATA): metadata.read(files[version.path_of(n)]) for n in names})

    @cached_property
    def _collided(self) -> tuple[set[str], tuple[str, ...]]:
        """What has managed collision, as `collided` returns it."""
        return collided(self.source.infos)

    @cached_property
    def _kept_boxes(self) -> Mapping[str, Sequence[metadata.SavedBox]]:
        """The boxes of the tensors that stay cut as they are, by name: those with whole rows."""
        names, begins = self._collided
        tensors = self._indexes.tensors if names and self.is_own else ()
        kept = {t.name: t.pieces for t in tensors if t.name in names or t.name.startswith(begins)}
        return {name: pieces for name, pieces in kept.items() if len(pieces) > 1}

    def dense(self, variable: OutVariable) -> Array:
        """Return the array of a tensor; what belongs to managed collision keeps its boxes."""
        if variable.is_item:
            return self._item(variable)
        boxes = self._kept_boxes.get(variable.source, ())
        if any(box.sizes[1:] != variable.shape[1:] for box in boxes) or not boxes:
            return super().dense(replace(variable, in_slabs=variable.in_slabs or self._is_split(variable)))
        ordered = sorted(boxes, key=lambda box: box.offsets)
        slabs = (Slab(n * self.ranks // len(boxes), box.offsets, box.sizes) for n, box in enumerate(ordered))
        return Array(variable.name, variable.dtype, variable.shape, tuple(slabs))

    @cached_property
    def _stored_items(self) -> Mapping[str, Sequence[metadata.Item]]:
        """What the source's index has of each name, in the order of the boxes: as the bytes of an item are read."""
        found: dict[str, list[metadata.Item]] = {}
        for item in self._indexes.items:
            found.setdefault(item.name, []).append(item)
        return {name: sorted(items, key=lambda item: item.offsets) for name, items in found.items()}

    @cached_property
    def _forms(self) -> Mapping[str, metadata.IndexedTensor]:
        """What the index says of each item that goes out, by its new name; boxes are in the order of its items."""
        new = {v.source: v.name for v in self.out.variables if v.is_item}
        tensors = self._indexes.tensors if new else ()
        known = (one for one in tensors if one.name in new)
        return {
            new[one.name]: replace(one, pieces=tuple(sorted(one.pieces, key=lambda piece: piece.offsets)))
            for one in known
        }

    def _item(self, variable: OutVariable) -> Array:
        """Return the bytes of an item: they are copied as they are, a zip for each box; values go to rank 0."""
        items = self._stored_items[variable.source]
        slabs: list[Slab] = []
        start = 0
        for number, item in enumerate(items):
            slabs.append(Slab(number * self.ranks // len(items), (start,), (item.end - item.start,)))
            start += item.end - item.start
        return Array(variable.name, variable.dtype, (start,), tuple(slabs), item_shape=variable.shape)

    @property
    def written_ranks(self) -> int:
        """Return the number of ranks that have a file."""
        return len({name.rpartition("/")[2] for name in self.layout.files if name.endswith(".distcp")})

    def _is_split(self, variable: OutVariable) -> bool:
        """Say whether a tensor that one rank saved is cut into blocks of rows: that it is in one file says nothing.

        Among several ranks, a tensor in one file is there because a job placed it so.
        """
        if not (self.is_own and self.ranks > 1 and self.source.version.ps_num == 1 and variable.shape):
            return False
        names, begins = self._collided
        if variable.source in names or variable.source.startswith(begins):
            return False
        size_bytes = prod(variable.shape) * variable.dtype.itemsize
        return self.source.has_table(variable.source) or size_bytes >= _SPLIT_BYTES


def _key_of(name: str) -> str:
    return name if is_table_name(name) else f"embedding_bags.{name.replace('.', '_')}.weight"


def _named(table: OutTable, keys: Mapping[str, str]) -> OutTable:
    """Return a table with its key, or a companion with that of an optimizer's state."""
    info, owner = table.info, keys.get(table.info.companion_of, "")
    if not owner:
        return replace(table, info=replace(info, name=keys.get(info.name, info.name)))
    key = f"optim.state.{owner}.{owner.split('.')[-2]}.{info.slot.replace('.', '_')}"
    return replace(table, info=replace(info, name=key, companion_of=owner))
