"""dynamicemb's files as a destination: keys, values, scores, counters and the state of an optimizer."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from edl_ckpt.core.converting.changes import Outgoing, OutTable
from edl_ckpt.core.converting.destinations.raw import INT64, RawDestination, RawLayout, check_floats
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout

_ARGUMENTS: Final = "_opt_args.json"


class ToDynamicemb(RawDestination):
    """dynamicemb's files: keys, values, and as companions the scores and the state of the optimizer."""

    system = "dynamicemb"
    of_system = re.compile(r"\.rank_\d+\.world_size_\d+$|_opt_args\.json$", re.DOTALL)
    least_id = 0
    forbidden = re.compile(r"\0|(?:^|/)(?:\.|/|$)", re.DOTALL)  # no hidden file is one of a checkpoint
    _COUNTS: Final = ("scores", "counts", "freqs", "frequencies")

    def describes(self, name: str, read: Collection[str]) -> bool:
        """Say whether a file has the arguments of a table that was read."""
        stem = name.removesuffix(_ARGUMENTS)
        return stem != name and any(path.startswith(f"{stem}_") for path in read)

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return tables, the scores and one state of the optimizer of each; other companions are left out by name."""
        out = super().accepted(out)
        self._ends: dict[str, tuple[str, str]] = {}
        new_names: dict[str, str] = {}
        for name, companions in out.companions.items():
            for end, companion in self._kept_companions(companions):
                new_names[companion.name] = f"{name}_{end}"
                self._ends[f"{name}_{end}"] = (name, end)
        for table in out.tables:
            if table.name.endswith("_counter") and table.dtype == INT64:
                self._ends[table.name] = (table.name.removesuffix("_counter"), "counter_frequencies")
        others = [table.source for table in out.tables if table.info.companion_of and table.name not in new_names]
        out = out.without(others, "dynamicemb keeps scores and one state of an optimizer for a table")
        out = replace(out, tables=tuple(_renamed(table, new_names) for table in out.tables))
        check_floats(self.system, Outgoing(tuple(table for table in out.tables if table.name not in self._ends), ()))
        return out

    def _kept_companions(self, companions: Sequence[OutTable]) -> Iterator[tuple[str, OutTable]]:
        """Yield the companions of a table that have a file, with the ends of their names.

        The first scores have one, and the state of an optimizer if there is only one.
        """
        scores = [table for table in companions if table.dtype == INT64 and table.info.slot in self._COUNTS]
        states = [table for table in companions if table.dtype.name == "float32"]
        if scores:
            yield "emb_scores", scores[0]
        if len(states) == 1:
            yield "emb_opt_values", states[0]

    def rule(self, table: OutTable) -> Placement:
        """Return the rule of the router, which the arguments of the source name."""
        rule = self.source.placement(table.source)
        return Placement.FMIX64_MOD if rule is Placement.FMIX64_MOD else Placement.UNSIGNED_MOD

    def _keys(self, table: str) -> tuple[str | None, str]:
        """Return the names of a table's arrays of keys and of values; None for the keys of a companion."""
        name, end = self._ends.get(table, (table, "emb_values"))
        if end in {"emb_scores", "emb_opt_values"}:
            return None, f"{name}_{end}"
        keys = "counter_keys" if end == "counter_frequencies" else "emb_keys"
        return f"{name}_{keys}", f"{name}_{end}"

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield the keys of a table, unless another one has them, and its values."""
        keys, values = self._keys(rows.table.name)
        if keys is not None:
            yield self.column(rows, keys, ids=True)
        yield self.column(rows, values, ids=False)

    def places(self, table: str) -> RowPlaces:
        """Return the files of keys and of values."""
        return self._row_places(*self._keys(table))

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files, with the arguments of the source, or those that a router needs to know."""
        kept = _small_files(self.source, _ARGUMENTS)
        tables = [t.name for t in self.out.tables if t.name not in self._ends]
        args = json.dumps({"dist_type": "roundrobin"}).encode()
        others = {f"{name}{_ARGUMENTS}": kept.get(f"{name}{_ARGUMENTS}", args) for name in tables}
        return RawLayout(arrays, lambda key, rank: f"{key}.rank_{rank}.world_size_{self.ranks}", others)


def _renamed(table: OutTable, names: Mapping[str, str]) -> OutTable:
    return replace(table, info=replace(table.info, name=names.get(table.name, table.name)))


def _small_files(source: Checkpoint, ending: str) -> dict[str, bytes]:
    """Return the files of the source with an ending, by their paths in it."""
    version = source.version
    return {
        version.name_of(path): bytes(reader.read(0, reader.size_bytes))
        for path, reader in source.files.items()
        if path.endswith(ending) and reader.size_bytes < 1 << 20
    }
