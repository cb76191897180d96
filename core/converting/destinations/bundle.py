"""TensorFlow's bundles: variables as they are, tables as DeepRec's embedding variables in parts.

A part has the keys with `key % 1000 % parts` of its number, in groups of one `key % 1000`, and where each group begins
is in `-partition_offset`. A table of the source that is in one piece stays in one piece, as TFPlus and TFRA have it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import Outgoing, OutTable
from edl_ckpt.core.converting.destinations.interface import ArrayDestination, check_ids
from edl_ckpt.core.converting.destinations.raw import owners_by
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.sources.bundle.table import varint_at
from edl_ckpt.core.sources.bundle.writing import lay_out
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout, Slab

_GROUPS: Final = 1000
"""Of keys, by DeepRec: `kSavedPartitionNum`."""
_WHOLE: Final = Spread(1, None)
_OFFSETS: Final = "-partition_offset"
_OF_PARTS: Final = re.compile(r"-(?:partition_(?:filter_)?offset|(?:keys|freqs|versions)_filtered)$")
_INT64, _INT32 = DTYPES["int64"], DTYPES["int32"]


class ToBundle(ArrayDestination):
    """A bundle with a data file for each part."""

    system = "tensorflow"
    own = re.compile(r"\.index$|\.data-\d{5}-of-\d{5}$|(?:^|/)checkpoint$", re.DOTALL)

    def accepted(self, out: Outgoing) -> Outgoing:
        """Leave out what is made anew for the parts, and keys that wait for their admission."""
        parts = [v.name for v in out.variables if _OF_PARTS.search(v.name)]
        made = [name for name in parts if name.endswith(_OFFSETS)]
        out = out.without(parts, "keys that were not admitted yet go by parts")
        left_out = tuple(one for one in out.left_out if one.name not in made)
        return Outgoing(out.tables, out.variables, left_out)

    def _is_whole(self, table: OutTable) -> bool:
        source = self.source
        is_own = source.version.layout.system == self.system
        return is_own and source.placement(table.source) is not Placement.MOD_1000_MOD

    def spread(self, table: OutTable) -> Spread:
        """Return the groups of DeepRec, or one for a table that stays in one piece."""
        if self._is_whole(table):
            return _WHOLE
        return Spread(_GROUPS, partial(owners_by, Placement.MOD, count=_GROUPS))

    def check(self, rows: CountedRows) -> None:
        """Raise UnsupportedError for negative keys: DeepRec has no group for them."""
        if not self._is_whole(rows.table):
            check_ids(rows, 0, None, "DeepRec has no part for negative keys")

    def _stems(self, table: OutTable) -> tuple[list[str], str]:
        """Return the begin of the names of each part's tensors, and what those of the values end with."""
        owner, slot = table.info.companion_of, table.info.slot
        is_column = bool(owner) and table.name == f"{owner}-{slot}"
        name, rest = (
            (owner, "")
            if is_column
            else (owner, f"/{slot}")
            if owner and table.name == f"{owner}/{slot}"
            else (table.name, "")
        )
        if self._is_whole(table) or self.ranks == 1:
            stems = [name + rest]
        else:
            stems = [f"{name}/part_{part}{rest}" for part in range(self.ranks)]
        return stems, slot if is_column else "values"

    def _rows_of_parts(self, rows: CountedRows) -> list[bulk.I64]:
        """Return the rows of each group in each part: int64 [groups]."""
        counts = rows.of_bucket
        if len(counts) == 1:
            return [counts]
        groups = np.arange(_GROUPS)
        return [np.where(groups % self.ranks == part, counts, 0) for part in range(self.ranks)]

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield the arrays of each part: values, and unless another table has them, keys and the offsets of groups."""
        table = rows.table
        stems, ending = self._stems(table)
        for rank, (stem, counts) in enumerate(zip(stems, self._rows_of_parts(rows), strict=True)):
            count = int(counts.sum())
            shape = (count,) if ending != "values" else (count, table.info.dim)
            yield _array(f"{stem}-{ending}", rank, shape, table.dtype)
            if ending == "values":
                yield _array(f"{stem}-keys", rank, (count,), _INT64)
                if len(counts) > 1:
                    self._offsets[f"{stem}{_OFFSETS}"] = (
                        np.concatenate([[0], np.cumsum(counts)]).astype("<i4").tobytes()
                    )
                    yield _array(f"{stem}{_OFFSETS}", rank, (_GROUPS + 1,), _INT32)

    def lay_out(self, rows: Mapping[str, CountedRows]) -> None:
        """Note the groups of each table, and lay out all arrays."""
        self._offsets: dict[str, bytes] = {}
        self._rows = rows
        super().lay_out(rows)

    def places(self, table: str) -> RowPlaces:
        """Return where each group begins."""
        rows = self._rows[table]
        stems, ending = self._stems(rows.table)
        parts = self._rows_of_parts(rows)
        own = np.arange(len(parts[0])) % len(stems)
        before = np.stack([np.cumsum(counts) - counts for counts in parts])[own, np.arange(len(own))]

        def spots(end: str, width: int) -> tuple[bulk.I64, bulk.I64]:
            files, starts = (
                np.concatenate(some) for some in zip(*(self.spots(f"{stem}-{end}", [0]) for stem in stems), strict=True)
            )
            return files[own], starts[own] + before * width

        return RowPlaces(spots(ending, rows.table.row_bytes), spots("keys", 8) if ending == "values" else None)

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the bundle, with the prefix that the source has, and with its strings."""
        names = [name for name in self.source.version.sizes if name.endswith(".index")]
        is_own = self.source.version.layout.system == self.system
        prefix = names[0].removesuffix(".index") if is_own and names else "model"
        with_state = not is_own or "checkpoint" in self.source.version.sizes
        return lay_out(
            prefix, arrays, self.ranks, strings=dict(self._strings()) if is_own else {}, with_state=with_state
        )

    def _strings(self) -> Iterator[tuple[str, bytes]]:
        """Yield the scalar strings of the source; UnsupportedError for anything else that is no tensor of ours."""
        for shard in self.source.shards:
            for blob in shard.blobs:
                reader = self.source.reader(shard, blob.values)
                data = bytes(reader.read(blob.values.start, blob.values.size_bytes))
                length, at = varint_at(data, 0, len(data))
                if len(data) != at + 4 + length:
                    raise UnsupportedError(
                        f"{blob.name!r} is no single string, and cannot be written", path=reader.path
                    )
                yield blob.name, data[at + 4 :]

    @property
    def computed(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield where groups begin, which has checksums of its own in the index."""
        for key, data in self._offsets.items():
            file, offset = self.layout.at(key, 0)
            yield self.number(file), offset, data


def _array(key: str, rank: int, shape: tuple[int, ...], dtype: DType) -> Array:
    return Array(key, dtype, shape, (Slab(rank, (0,) * len(shape), shape),))
