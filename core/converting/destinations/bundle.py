"""TensorFlow's bundles: variables as they are, tables as DeepRec's embedding variables in parts.

A part has the keys with `key % 1000 % parts` of its number, in groups of one `key % 1000`, and where each group begins
is in `-partition_offset`. DeepRec restores no part that lacks `-versions`; without elements, as it writes them itself,
they and `-freqs` say nothing. It takes the first `part_` in a name for that of the number. A table of the source that
has no groups stays in one piece, as TFPlus and TFRA have it. Source: DeepRec's
`tensorflow/core/framework/embedding/embedding_var_restore.cc` and `embedding_var_ckpt_data.cc`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import NOT_ADMITTED, Outgoing, OutTable, OutVariable
from edl_ckpt.core.converting.destinations.interface import ArrayDestination, check_ids, rule_owners
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import Encoding
from edl_ckpt.core.sources.bundle.data_files import TENSORS, WRITTEN_DTYPES
from edl_ckpt.core.sources.bundle.index import StoredTensor, read_index
from edl_ckpt.core.sources.bundle.parts import OFFSETS, RECORD, is_waiting, part_records
from edl_ckpt.core.sources.bundle.state_file import NAME as STATE_FILE
from edl_ckpt.core.sources.bundle.tables import part_of
from edl_ckpt.core.sources.bundle.writing import lay_out
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout, Slab
from edl_ckpt.core.sources.steps.names import prefix_of

_GROUPS: Final = 1000
"""Of keys, by DeepRec: `kSavedPartitionNum`."""
_WHOLE: Final = Spread(1, None)
_COLUMNS: Final = ("freqs", "versions")
_PART: Final = "part_"
_NUMBER_OF_FILE: Final = re.compile(r"(?<=\.data-)\d{5}(?=-of-\d{5}$)")
_INT64, _INT32 = DTYPES["int64"], DTYPES["int32"]


class ToBundle(ArrayDestination):
    """A bundle with a data file for each part."""

    system = "tensorflow"
    other_dtypes = WRITTEN_DTYPES
    of_system = re.compile(r"\.index$|\.data-\d{5}-of-\d{5}$", re.DOTALL)

    @property
    def held_dtypes(self) -> frozenset[str]:
        """Return what any release reads; what a bundle has already, its own release reads."""
        return frozenset(dtype.name for dtype in TENSORS.values()) if self.is_own else WRITTEN_DTYPES

    def accepted(self, out: Outgoing) -> Outgoing:
        """Leave out what is made anew for the parts, and keys that wait for their admission."""
        self._tables = {table.name: table for table in out.tables}
        grouped = [name for name in self.source.variable_names if name.endswith(OFFSETS)]
        self._grouped = {part_of(name.removesuffix(OFFSETS))[0] for name in grouped}
        self._check(out.tables)
        same = {v.name: v.shape for v in out.variables if v.name == v.source}  # a new name makes it a variable
        records = part_records(same, set(self.source.table_names))
        waiting = [name for name in records if is_waiting(name)]
        sources = {table.source for table in out.tables}
        made = {name for name, table in records.items() if table in sources} - set(waiting)
        before = out.left_out
        out = out.without(waiting, NOT_ADMITTED, RECORD).without(made, "")
        out = replace(out, left_out=(*before, *(one for one in out.left_out[len(before) :] if one.reason)))
        return out.without(records, "a record of a table that is left out", RECORD)

    def describes(self, name: str, read: Collection[str]) -> bool:
        """Say whether a file is the index of a bundle that was read, or a data file of it without values."""
        if name.endswith(".index"):
            return prefix_of(name) in set(map(prefix_of, read))
        return _NUMBER_OF_FILE.sub("", name) in {_NUMBER_OF_FILE.sub("", path) for path in read}

    def _check(self, tables: Sequence[OutTable]) -> None:
        """Raise UnsupportedError for tables that a loader would not find, or not read."""
        entries = [entry for shard in self.source.shards for entry in shard.tables] if self.is_own else []
        narrow = {entry.name for entry in entries if any(run.encoding is Encoding.INT32 for run in entry.ids)}
        for table in tables:
            if not self.is_own and _PART in table.name:
                hint = f"try: --rename '{table.source}=NEW'"
                raise UnsupportedError(f"{table.name!r}: DeepRec finds no table with {_PART!r} in its name", hint=hint)
            if table.source in narrow:
                raise UnsupportedError(f"table {table.source!r} has keys of int32, and keys are written as int64")

    def _owner(self, table: OutTable) -> OutTable | None:
        """Return the table that a companion has the keys of, if that goes out too."""
        return self._tables.get(table.info.companion_of)

    def _is_whole(self, table: OutTable) -> bool:
        owner = self._owner(table)
        return self._is_whole(owner) if owner else self.is_own and table.source not in self._grouped

    def spread(self, table: OutTable) -> Spread:
        """Return the groups of DeepRec, or one for a table that stays in one piece."""
        if self._is_whole(table):
            return _WHOLE
        return Spread(_GROUPS, partial(rule_owners, Placement.MOD, count=_GROUPS))

    def check(self, rows: CountedRows) -> None:
        """Raise UnsupportedError for negative keys: DeepRec has no group for them."""
        if not self._is_whole(rows.table):
            check_ids(rows, 0, None, "DeepRec has no part for negative keys")

    def _stems(self, table: OutTable) -> tuple[list[str], str]:
        """Return the begin of the names of each part's tensors, and what those of the values end with."""
        name, rest, ending = self._names(table)
        if self._is_whole(table) or self.ranks == 1:
            return [name + rest], ending
        return [f"{name}/{_PART}{part}{rest}" for part in range(self.ranks)], ending

    def _names(self, table: OutTable) -> tuple[str, str, str]:
        """Return the prefix and the suffix around the number of a part, and the ending of value names."""
        owner, slot = self._owner(table), table.info.slot
        if owner is not None and table.name in {f"{owner.name}-{slot}", f"{owner.name}/{slot}"}:
            name, rest, ending = self._names(owner)
            return (name, rest, slot) if table.name[len(owner.name)] == "-" else (name, f"{rest}/{slot}", ending)
        return table.name, "", "values"

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
                    columns = {t.info.slot for t in self.out.companions[table.name] if self._names(t)[2] != "values"}
                    for column in sorted(set(_COLUMNS) - columns):
                        yield _array(f"{stem}-{column}", rank, (0,), _INT64)
                    self._offsets[f"{stem}{OFFSETS}"] = np.concatenate([[0], np.cumsum(counts)]).astype("<i4").tobytes()
                    yield _array(f"{stem}{OFFSETS}", rank, (_GROUPS + 1,), _INT32)

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
        stem_of_part = np.arange(len(parts[0])) % len(stems)
        before = np.stack([np.cumsum(counts) - counts for counts in parts])[stem_of_part, np.arange(len(stem_of_part))]

        def spots(end: str, width: int) -> tuple[bulk.I64, bulk.I64]:
            files, starts = (
                np.concatenate(one) for one in zip(*(self.spots(f"{stem}-{end}", [0]) for stem in stems), strict=True)
            )
            return files[stem_of_part], starts[stem_of_part] + before * width

        return RowPlaces(spots(ending, rows.table.row_bytes), spots("keys", 8) if ending == "values" else None)

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the bundle, with the prefix that the source has, and with its strings."""
        names = [name for name in self.source.version.sizes if name in self.own_names and name.endswith(".index")]
        prefix = names[0].removesuffix(".index") if self.is_own and names else "model"
        items = self._items(names[0]) if self.is_own and names else {}
        # The file `checkpoint` of the source goes along: it names this prefix, and perhaps others. Without one, as if
        # bundles lie side by side, tf.train.latest_checkpoint would find nothing. A SavedModel's loader needs none.
        folder, slash, _ = prefix.rpartition("/")
        has_state = f"{folder}{slash}{STATE_FILE}" in self.source.version.sizes or folder == "variables"
        return lay_out(prefix, arrays, self.ranks, items=items, with_state=not (self.is_own and has_state))

    def _items(self, index: str) -> Mapping[str, StoredTensor]:
        """Return what the source's index says of each item that goes out, by its new name; its bytes are copied."""
        new = {v.source: v.name for v in self.out.variables if v.is_item}
        if not new:
            return {}
        reader = self.source.files[self.source.version.path_of(index)]
        tensors = read_index(reader.read(0, reader.size_bytes), reader.path).tensors
        return {name: tensors[source] for source, name in new.items()}

    def rank_of(self, variable: OutVariable) -> int:
        """Return the rank of a variable; items are in the first file."""
        return 0 if variable.is_item else super().rank_of(variable)

    @property
    def computed(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield where groups begin, which has checksums of its own in the index."""
        for key, data in self._offsets.items():
            file, offset = self.layout.at(key, 0)
            yield self.number(file), offset, data


def _array(key: str, rank: int, shape: tuple[int, ...], dtype: DType) -> Array:
    return Array(key, dtype, shape, (Slab(rank, (0,) * len(shape), shape),))
