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
        renamed: dict[str, str] = {}
        for name, companions in out.companions.items():
            scores = [t for t in companions if t.dtype == INT64 and t.info.slot in self._COUNTS]
            states = [t for t in companions if t.dtype.name == "float32"]
            for columns, end in ((scores[:1], "emb_scores"), (states if len(states) == 1 else [], "emb_opt_values")):
                renamed |= {table.name: f"{name}_{end}" for table in columns}
                self._ends |= {f"{name}_{end}": (name, end) for _ in columns}
        counters = {t.name for t in out.tables if t.name.endswith("_counter") and t.dtype == INT64}
        self._ends |= {name: (name.removesuffix("_counter"), "counter_frequencies") for name in counters}
        others = [t.source for t in out.tables if t.info.companion_of and t.name not in renamed]
        out = out.without(others, "dynamicemb keeps scores and one state of an optimizer for a table")
        out = replace(out, tables=tuple(_renamed(table, renamed) for table in out.tables))
        check_floats(self.system, Outgoing(tuple(t for t in out.tables if t.name not in self._ends), ()))
        return out

    def rule(self, table: OutTable) -> Placement:
        """Return the rule of the router, which the arguments of the source name."""
        rule = self.source.placement(table.source)
        return Placement.FMIX64_MOD if rule is Placement.FMIX64_MOD else Placement.UNSIGNED_MOD

    def _keys(self, table: str) -> tuple[str | None, str]:
        name, end = self._ends.get(table, (table, "emb_values"))
        keys = None if end in {"emb_scores", "emb_opt_values"} else "counter_keys" if "counter" in end else "emb_keys"
        return keys and f"{name}_{keys}", f"{name}_{end}"

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
