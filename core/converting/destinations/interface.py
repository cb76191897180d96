"""What a destination is: a system's files for one version, laid out from counts before a value moves.

TFRA and dynamicemb: a file for each array of each rank, without headers.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import ClassVar, Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.converting.changes import FLOATS, NO_PLACE, NOT_ADMITTED, Outgoing, OutTable, OutVariable
from edl_ckpt.core.converting.lacking import check_held
from edl_ckpt.core.converting.rows import CountedRows, Cut, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk, placement
from edl_ckpt.core.model.dtypes import DTYPES
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.used_files import files_read
from edl_ckpt.core.sources.bundle.parts import RECORD, is_waiting
from edl_ckpt.core.sources.elasticdl.target import variable_owner
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout, Slab


class Given(NamedTuple):
    """What a destination is made for.

    Of a source of the same system, `contents` are all entries of its directory, where those go along too.
    """

    source: Checkpoint
    out: Outgoing
    ranks: int
    number: int
    most_file_bytes: int | None = None
    whole: Checkpoint | None = None
    """The source as tensors alone, where it goes out so."""
    contents: Contents | None = None


class Destination(ABC):
    """The files of a version in one system; made for a version, then `lay_out` is called once."""

    system: ClassVar[str]
    of_system: ClassVar[re.Pattern[str]]
    """What the paths of its own files have; a source of the same system may have others, which go along.

    So do files with such a path from which nothing was read: those of another bundle, or of an earlier save.
    """
    exports_only: ClassVar[bool] = False
    """True where a version of the same system cannot be written anew without a loss: only an export writes it."""
    varints: ClassVar[bool] = False
    """True where the bytes of ids as varints must be counted."""

    other_way: ClassVar[str] = "choose --variable"
    """What leads on besides leaving out what it lacks; only an export selects variables."""

    other_dtypes: ClassVar[frozenset[str] | None] = frozenset()
    """Of the dtypes that no table has, those that its variables may have; None where it keeps no variables."""

    def __init__(self, given: Given) -> None:
        self.source, self.ranks, self.given = given.source, given.ranks, given
        self.out = self.accepted(self._with_known_types(given.out))
        """What the system can hold; the rest is left out, by name and with the reason."""
        self._numbers: dict[str, int] = {}

    def _with_known_types(self, out: Outgoing) -> Outgoing:
        """Return what has types that the system can hold; items of other systems are left out.

        Raises UnsupportedError for tensors of dtypes that it lacks: they are left out only where somebody asks for it.
        """
        if self.other_dtypes is not None:
            named = [(v.source, v.dtype) for v in out.variables]
            ref, known = self.source.version.ref, self.held_dtypes
            check_held(self.holder, named, known, path=ref, keeps_items=self.is_own, other_way=self.other_way)
        if self.is_own:
            return out
        out = out.without([v.source for v in out.variables if v.is_item], f"{NO_PLACE}{self.system}")
        records = records_of(self.source)
        out = out.without(filter(is_waiting, records), NOT_ADMITTED, RECORD)
        return out.without(records, f"{NO_PLACE}{self.system}", RECORD)

    @property
    def holder(self) -> str:
        """Return what cannot hold a dtype, in words."""
        return self.system

    @property
    def held_dtypes(self) -> frozenset[str]:
        """Return those of the dtypes that no table has which its new files may have."""
        return self.other_dtypes or frozenset()

    @cached_property
    def carried(self) -> Mapping[str, int]:
        """The other files that lie in a version of the same system, with their sizes: they are copied as they are."""
        if not self.is_own:
            return {}
        contents = self.given.contents
        files = contents.files if contents and contents.tree else self.source.version.sizes
        return {name: size for name, size in files.items() if name not in self.own_names}

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The files of the source that the new ones stand for: those that were read, and those that describe them."""
        if not self.is_own:
            return frozenset()
        named = [name for name in self.source.version.sizes if self.of_system.search(name)]
        read = files_read(self.source)
        if read.isdisjoint(named):  # a checkpoint of nothing
            return frozenset(named)
        return frozenset(name for name in named if name in read or self.describes(name, read))

    def describes(self, name: str, read: Collection[str]) -> bool:
        """Say whether a file of the system, without values, belongs to those that were read, such as their index."""
        del name, read
        return False

    @property
    def written_ranks(self) -> int:
        """Return how many ranks the files say that there are, once they are laid out."""
        return self.ranks

    @property
    def is_own(self) -> bool:
        """Say whether the source is of this system, too."""
        return self.source.version.layout.system == self.system

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return what the system can hold; UnsupportedError or UsageError for what must not be left out."""
        return out

    @abstractmethod
    def spread(self, table: OutTable) -> Spread | None:
        """Return how the rows of a table are spread; None where it is a matrix whose rows have numbers."""

    def check(self, rows: CountedRows) -> None:  # noqa: B027 - most systems hold any id
        """Raise UnsupportedError for ids that the system cannot hold."""

    @abstractmethod
    def lay_out(self, rows: Mapping[str, CountedRows]) -> None:
        """Lay out all files, from the counted rows of the tables that are spread."""

    @property
    def files(self) -> Mapping[str, int]:
        """Return the bytes of each file by its path in the version: those that are carried, then the new ones."""
        return {**self.carried, **self.new_files}

    @property
    @abstractmethod
    def new_files(self) -> Mapping[str, int]:
        """Return the bytes of each new file by its path in the version, the one that completes it last."""

    def places(self, table: str) -> RowPlaces:
        """Return where the rows of a table that is spread go."""
        raise LookupError(table)

    @abstractmethod
    def cuts(self, name: str) -> Sequence[Cut]:
        """Return where the bytes of a variable or of a matrix go, in their order."""

    @property
    def summed(self) -> Iterable[tuple[tuple[str, int], int, int, int]]:
        """Return ((key, slab), file, offset, bytes) of all that the files have a checksum of."""
        return ()

    @property
    def checksum(self) -> str:
        """Return the name of that checksum."""
        return ""

    @property
    def computed(self) -> Iterable[tuple[int, int, bytes]]:
        """Return (file, offset, bytes) of values that are computed, which have their checksums too."""
        return ()

    @abstractmethod
    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[int, int, bytes]]:
        """Yield (file, offset, bytes) of all that is no value and no id."""

    def number(self, file: str) -> int:
        """Return the number of a file."""
        if not self._numbers:
            self._numbers = {name: number for number, name in enumerate(self.files)}
        return self._numbers[file]


def check_ids(rows: CountedRows, low: int, high: int | None, why: str) -> None:
    """Raise UnsupportedError where ids of a table are below `low`, or above `high`."""
    if rows.total and (rows.low < low or (high is not None and rows.high > high)):
        wrong = rows.low if rows.low < low else rows.high
        raise UnsupportedError(f"table {rows.table.source!r} has id {wrong:,}, and {why}", hint="nothing was written")


class ArrayDestination(Destination):
    """A system whose files hold arrays: variables, matrices, and the arrays that tables with ids become."""

    layout: FileLayout

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._arrays: dict[str, Array] = {}

    def spread(self, table: OutTable) -> Spread | None:
        """Return None: a table is a matrix, unless a system says otherwise."""
        del table
        return None

    @abstractmethod
    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the layout of the files that hold these arrays."""

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield the arrays that a table with ids becomes; without any it must be a matrix."""
        raise LookupError(rows.table.name)

    def lay_out(self, rows: Mapping[str, CountedRows]) -> None:
        """Lay out the arrays of everything, in the order of their names."""
        matrices = (table for table in self.out.tables if table.name not in rows)
        arrays = [*map(self.dense, self.out.variables), *map(self.matrix, matrices)]
        arrays += [array for counted_rows in rows.values() for array in self.arrays_of(counted_rows)]
        self._arrays = {array.key: array for array in sorted(arrays, key=lambda array: array.key)}
        self.layout = self.laid_out(list(self._arrays.values()))

    def rank_of(self, variable: OutVariable) -> int:
        """Return the rank that has a variable which is not spread."""
        return variable_owner(variable.name, self.ranks)

    def dense(self, variable: OutVariable) -> Array:
        """Return the array of a variable, or the bytes of an item."""
        if variable.is_item:
            slab = Slab(self.rank_of(variable), (0,), (variable.size_bytes,))
            return Array(variable.name, variable.dtype, slab.sizes, (slab,), item_shape=variable.shape)
        if variable.in_slabs and variable.shape:
            slabs = row_slabs(variable.shape, self.ranks)
        else:
            slabs = (Slab(self.rank_of(variable), (0,) * len(variable.shape), variable.shape),)
        return Array(variable.name, variable.dtype, variable.shape, slabs)

    def matrix(self, table: OutTable) -> Array:
        """Return the array of a table by row numbers."""
        shape = (table.rows, table.info.dim)
        return Array(table.name, table.dtype, shape, row_slabs(shape, self.ranks))

    @property
    def new_files(self) -> Mapping[str, int]:
        """Return those of the layout."""
        return self.layout.files

    @property
    def checksum(self) -> str:
        """Return that of the layout."""
        return self.layout.checksum

    def cuts(self, name: str) -> Sequence[Cut]:
        """Return the slabs of an array as its bytes; each has whole rows."""
        array = self._arrays[name]
        row_bytes = math.prod(array.shape[1:]) * array.dtype.itemsize
        cuts = []
        for number, slab in enumerate(array.slabs):
            file, offset = self.layout.at(name, number)
            start = slab.offsets[0] * row_bytes if slab.offsets else 0
            cuts.append(Cut(start, start + math.prod(slab.sizes) * array.dtype.itemsize, self.number(file), offset))
        return cuts

    def spots(self, key: str, slabs: Sequence[int]) -> tuple[bulk.I64, bulk.I64]:
        """Return the files and the offsets of slabs of an array, each by its number, int64 [n] both."""
        places = [self.layout.at(key, slab) for slab in slabs]
        files = np.array([self.number(file) for file, _ in places], np.int64)
        return files, np.array([offset for _, offset in places], np.int64)

    @property
    def summed(self) -> Iterator[tuple[tuple[str, int], int, int, int]]:
        """Yield every slab of every array."""
        for key, array in self._arrays.items():
            for number, slab in enumerate(array.slabs):
                file, offset = self.layout.at(key, number)
                yield (key, number), self.number(file), offset, math.prod(slab.sizes) * array.dtype.itemsize

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[int, int, bytes]]:
        """Yield those of the layout."""
        for file, offset, data in self.layout.literals(sums):
            yield self.number(file), offset, data


def row_slabs(shape: tuple[int, ...], ranks: int) -> tuple[Slab, ...]:
    """Return the slabs of rows of a tensor: ceil(n / ranks) for each rank, as TorchRec cuts them; none is empty.

    >>> [(slab.rank, slab.offsets[0], slab.sizes[0]) for slab in row_slabs((5, 2), 4)]
    [(0, 0, 2), (1, 2, 2), (2, 4, 1)]
    """
    rows, rest = shape[0], shape[1:]
    step = -(-rows // ranks) or 1
    starts = range(0, max(rows, 1), step)
    zeros = (0,) * len(rest)
    return tuple(Slab(n, (start, *zeros), (min(step, rows - start), *rest)) for n, start in enumerate(starts))


def by_rank(rows: bulk.I64, dim: int | None) -> tuple[tuple[int, ...], tuple[Slab, ...]]:
    """Return the shape and the slabs of an array that has the rows of all ranks, int64 [ranks], one after the other."""
    ends = np.cumsum(rows)
    rest = () if dim is None else (dim,)
    slabs = tuple(
        Slab(rank, (end - count, *(0,) * len(rest)), (count, *rest))
        for rank, (count, end) in enumerate(zip(rows.tolist(), ends.tolist(), strict=True))
    )
    return (int(ends[-1]), *rest), slabs


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
    other_dtypes = None
    forbidden: ClassVar[re.Pattern[str]]
    """What no name of a table may have in it."""

    def rule(self, table: OutTable) -> Placement:
        """Return the rule by which rows belong to ranks."""
        raise NotImplementedError

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return the tables; variables are left out, and rows that are no float32 are refused."""
        out = out.without([variable.source for variable in out.variables], f"{self.system} keeps tables only")
        for table in out.tables:
            if self.forbidden.search(table.name) or not table.name:
                hint = f"try: --rename '{table.source}=NEW'"
                raise UnsupportedError(f"{table.name!r} cannot be the name of a table of {self.system}", hint=hint)
        return out

    def spread(self, table: OutTable) -> Spread:
        """Return the rule of the system."""
        return Spread(self.ranks, partial(rule_owners, self.rule(table), count=self.ranks))

    def check(self, rows: CountedRows) -> None:
        """Raise UnsupportedError for keys that no job can have."""
        if self.least_id is not None and not self.is_own:
            check_ids(rows, self.least_id, None, f"{self.system} has no key below {self.least_id}")

    def column(self, rows: CountedRows, key: str, *, ids: bool) -> Array:
        """Return the array of the ids of a table, or of its values."""
        table = rows.table
        shape, slabs = by_rank(rows.of_bucket, None if ids else table.info.dim)
        return Array(key, _INT64 if ids else table.dtype, shape, slabs)

    def _row_places(self, keys: str | None, values: str) -> RowPlaces:
        every = range(self.ranks)
        return RowPlaces(self.spots(values, every), None if keys is None else self.spots(keys, every))


def rule_owners(rule: Placement, ids: bulk.I64, *, count: int) -> bulk.U16:
    """Return the rank of each id by a rule: uint16 [n]."""
    owners = placement.owners(rule, ids, count)
    assert owners is not None  # noqa: S101 - only rules that say the shard are asked
    return owners.astype(np.uint16, copy=False)


class ToTfra(RawDestination):
    """TFRA's FileSystemSaver, one device in each of `ranks` processes, or as many devices in one, as the source has."""

    system = "tfra"
    of_system = re.compile(r"_mht_.*-(?:keys|values)$", re.DOTALL)
    forbidden = re.compile(r"\A\.|/|\0|_mht_", re.DOTALL)  # no hidden file is one of a checkpoint

    def accepted(self, out: Outgoing) -> Outgoing:
        """Leave out companions by name, and refuse rows that are no float32: nothing in the files tells the dtype."""
        out = super().accepted(out)
        companions = [table.source for table in out.tables if table.info.companion_of and not self.is_own]
        out = out.without(companions, "TFRA has no file for it")
        _check_floats(self.system, out)
        return out

    def rule(self, table: OutTable) -> Placement:
        """Return the rule of the source, else that of TFRA with the TensorFlow of PyPI."""
        rule = self.source.placement(table.source)
        return rule if rule is Placement.MOD and self.is_own else Placement.MASK31_MOD

    def arrays_of(self, rows: CountedRows) -> Iterator[Array]:
        """Yield keys and values."""
        yield self.column(rows, f"{rows.table.name}-keys", ids=True)
        yield self.column(rows, f"{rows.table.name}-values", ids=False)

    def places(self, table: str) -> RowPlaces:
        """Return the files of keys and of values."""
        return self._row_places(f"{table}-keys", f"{table}-values")

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files in the directory and the form that the source has."""
        files = [path for path in self.source.version.sizes if path in self.own_names and path.endswith("-keys")]
        known = files[0] if self.is_own and files else "TFRADynamicEmbedding/"
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
            hint = "try: --dtype float32" if table.dtype.name in FLOATS else "choose others: --table GLOB"
            raise UnsupportedError(
                f"table {table.source!r} has rows of {table.dtype.name}; {system} keeps float32", hint=hint
            )


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
            scores = [t for t in companions if t.dtype == _INT64 and t.info.slot in self._COUNTS]
            states = [t for t in companions if t.dtype.name == "float32"]
            for columns, end in ((scores[:1], "emb_scores"), (states if len(states) == 1 else [], "emb_opt_values")):
                renamed |= {table.name: f"{name}_{end}" for table in columns}
                self._ends |= {f"{name}_{end}": (name, end) for _ in columns}
        counters = {t.name for t in out.tables if t.name.endswith("_counter") and t.dtype == _INT64}
        self._ends |= {name: (name.removesuffix("_counter"), "counter_frequencies") for name in counters}
        others = [t.source for t in out.tables if t.info.companion_of and t.name not in renamed]
        out = out.without(others, "dynamicemb keeps scores and one state of an optimizer for a table")
        out = replace(out, tables=tuple(_renamed(table, renamed) for table in out.tables))
        _check_floats(self.system, Outgoing(tuple(t for t in out.tables if t.name not in self._ends), ()))
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


def _small_files(source: Checkpoint, ending: str) -> dict[str, bytes]:
    """Return the files of the source with an ending, by their paths in it."""
    version = source.version
    return {
        version.name_of(path): bytes(reader.read(0, reader.size_bytes))
        for path, reader in source.files.items()
        if path.endswith(ending) and reader.size_bytes < 1 << 20
    }
