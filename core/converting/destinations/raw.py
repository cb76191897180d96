"""TFRA and dynamicemb: a file for each array of each rank, without headers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import Outgoing, OutTable
from edl_ckpt.core.converting.destinations.interface import ArrayDestination, by_rank, check_ids
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk, placement
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout

_INT64: Final = DTYPES["int64"]


class RawLayout:
    """A file for each slab of each array, at the path that `path_of` says, and `others` by their paths."""

    checksum: ClassVar = ""

    def __init__(
        self, arrays: Sequence[Array], path_of: Callable[[str, int], str], others: Mapping[str, bytes]
    ) -> None:
        self._path_of, self._others = path_of, others
        sizes = {
            path_of(array.key, slab.rank): math.prod(slab.sizes) * array.dtype.itemsize
            for array in arrays
            for slab in array.slabs
        }
        self.files: Mapping[str, int] = sizes | {path: len(data) for path, data in others.items()}

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the file of a slab, whose number is its rank."""
        return self._path_of(key, slab), 0

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield the other files."""
        del sums
        for path, data in self._others.items():
            yield path, 0, data


class RawDestination(ArrayDestination):
    """Tables whose keys and values are files."""

    least_id: ClassVar[int | None] = None
    forbidden: ClassVar[re.Pattern[str]]
    """What no name of a table may have in it."""

    def rule(self, table: OutTable) -> Placement:
        """Return the rule by which rows belong to ranks."""
        raise NotImplementedError

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return the tables; variables are left out, and rows that are no float32 are refused."""
        out = out.without([variable.name for variable in out.variables], f"{self.system} keeps tables only")
        for table in out.tables:
            if self.forbidden.search(table.name) or not table.name:
                hint = f"try: --rename '{table.name}=NEW'"
                raise UnsupportedError(f"{table.name!r} cannot be the name of a table of {self.system}", hint=hint)
        return out

    def spread(self, table: OutTable) -> Spread:
        """Return the rule of the system."""
        return Spread(self.ranks, partial(owners_by, self.rule(table), count=self.ranks))

    def check(self, rows: CountedRows) -> None:
        """Raise UnsupportedError for keys that no job can have."""
        if self.least_id is not None and self.source.version.layout.system != self.system:
            check_ids(rows, self.least_id, None, f"{self.system} has no key below {self.least_id}")

    def column(self, rows: CountedRows, key: str, *, ids: bool) -> Array:
        """Return the array of the ids of a table, or of its values."""
        table = rows.table
        shape, slabs = by_rank(rows.of_bucket, None if ids else table.info.dim)
        return Array(key, _INT64 if ids else table.dtype, shape, slabs)

    def _row_places(self, keys: str | None, values: str) -> RowPlaces:
        every = range(self.ranks)
        return RowPlaces(self.spots(values, every), None if keys is None else self.spots(keys, every))


def owners_by(rule: Placement, ids: bulk.I64, *, count: int) -> bulk.U16:
    """Return the rank of each id by a rule: uint16 [n]."""
    owners = placement.owners(rule, ids, count)
    assert owners is not None  # noqa: S101 - only rules that say the shard are asked
    return owners.astype(np.uint16, copy=False)


class ToTfra(RawDestination):
    """TFRA's FileSystemSaver, one device in each of `ranks` processes, or as many devices in one, as the source has."""

    system = "tfra"
    own = re.compile(r"_mht_.*-(?:keys|values)$", re.DOTALL)
    forbidden = re.compile(r"/|\0|_mht_", re.DOTALL)

    def accepted(self, out: Outgoing) -> Outgoing:
        """Refuse rows that are no float32 as well: nothing in the files tells the dtype."""
        out = super().accepted(out)
        _check_floats(self.system, out)
        return out

    def rule(self, table: OutTable) -> Placement:
        """Return the rule of the source, else that of TFRA with the TensorFlow of PyPI."""
        own = self.source.placement(table.source)
        return (
            own if own is Placement.MOD and self.source.version.layout.system == self.system else Placement.MASK31_MOD
        )

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield keys and values."""
        yield self.column(rows, f"{rows.table.name}-keys", ids=True)
        yield self.column(rows, f"{rows.table.name}-values", ids=False)

    def places(self, table: str) -> RowPlaces:
        """Return the files of keys and of values."""
        return self._row_places(f"{table}-keys", f"{table}-values")

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files in the directory and the form that the source has."""
        files = [path for path in self.source.version.sizes if "_mht_" in path and path.endswith("-keys")]
        known = files[0] if self.source.version.layout.system == self.system and files else "TFRADynamicEmbedding/"
        folder = known.rpartition("/")[0]
        folder += "/" if folder else ""
        in_devices = "of1_rank" not in known and len(files) > 0

        def path_of(key: str, rank: int) -> str:
            name, _, kind = key.rpartition("-")
            device = f"{rank + 1}of{self.ranks}_rank0_size1" if in_devices else f"1of1_rank{rank}_size{self.ranks}"
            return f"{folder}{name}_mht_{device}-{kind}"

        return RawLayout(arrays, path_of, {})


def _renamed(table: OutTable, names: Mapping[str, str]) -> OutTable:
    return replace(table, info=replace(table.info, name=names.get(table.name, table.name)))


def _check_floats(system: str, out: Outgoing) -> None:
    for table in out.tables:
        if table.dtype.name != "float32" and table.rows:
            hint = f"try: --cast '{table.source}=float32'"
            raise UnsupportedError(
                f"table {table.source!r} has rows of {table.dtype.name}; {system} keeps float32", hint=hint
            )


class ToDynamicemb(RawDestination):
    """dynamicemb's files: keys, values, and as companions the scores and the state of the optimizer."""

    system = "dynamicemb"
    own = re.compile(r"\.rank_\d+\.world_size_\d+$|_opt_args\.json$", re.DOTALL)
    least_id = 0
    forbidden = re.compile(r"\0|(?:^|/)\.{0,2}(?:/|$)", re.DOTALL)
    _COUNTS: Final = ("scores", "counts", "freqs", "frequencies")

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return tables, the scores and one state of the optimizer of each; other companions are left out by name."""
        out = super().accepted(out)
        self._ends: dict[str, tuple[str, str]] = {}
        renamed: dict[str, str] = {}
        for name, companions in out.companions.items():
            scores = [t for t in companions if t.dtype == _INT64 and t.info.slot in self._COUNTS]
            states = [t for t in companions if t.dtype.name == "float32"]
            for some, end in ((scores[:1], "emb_scores"), (states if len(states) == 1 else [], "emb_opt_values")):
                renamed |= {table.name: f"{name}_{end}" for table in some}
                self._ends |= {f"{name}_{end}": (name, end) for _ in some}
        counters = {t.name for t in out.tables if t.name.endswith("_counter") and t.dtype == _INT64}
        self._ends |= {name: (name.removesuffix("_counter"), "counter_frequencies") for name in counters}
        others = [t.name for t in out.tables if t.info.companion_of and t.name not in renamed]
        out = out.without(others, "dynamicemb keeps scores and one state of an optimizer beside a table")
        out = replace(out, tables=tuple(_renamed(table, renamed) for table in out.tables))
        _check_floats(self.system, Outgoing(tuple(t for t in out.tables if t.name not in self._ends), ()))
        return out

    def rule(self, table: OutTable) -> Placement:
        """Return the rule of the router, which the arguments of the source name."""
        own = self.source.placement(table.source)
        return Placement.FMIX64_MOD if own is Placement.FMIX64_MOD else Placement.UNSIGNED_MOD

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
        kept = _small_files(self.source, "_opt_args.json")
        tables = [t.name for t in self.out.tables if t.name not in self._ends]
        args = json.dumps({"dist_type": "roundrobin"}).encode()
        others = {f"{name}_opt_args.json": kept.get(f"{name}_opt_args.json", args) for name in tables}
        return RawLayout(arrays, lambda key, rank: f"{key}.rank_{rank}.world_size_{self.ranks}", others)


def _small_files(source: Checkpoint, ending: str) -> dict[str, bytes]:
    """Return the files of the source with an ending, by their paths in it."""
    version = source.version
    return {
        version.name_of(path): bytes(reader.read(0, reader.size_bytes))
        for path, reader in source.files.items()
        if path.endswith(ending) and reader.size_bytes < 1 << 20
    }
