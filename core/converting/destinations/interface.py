"""What a destination is: what a system can hold, and its files for one version, laid out before a value moves."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.catalog.contents import Contents
from edl_ckpt.core.converting.changes import NO_PLACE, NOT_ADMITTED, Outgoing, OutTable, OutVariable
from edl_ckpt.core.converting.lacking import check_held
from edl_ckpt.core.converting.rows import CountedRows, Cut, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk, placement
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


class Holding:
    """What of a version a system can hold."""

    system: ClassVar[str]
    other_way: ClassVar[str] = "choose --variable"
    """What leads on besides leaving out what it lacks; only an export selects variables."""

    other_dtypes: ClassVar[frozenset[str] | None] = frozenset()
    """Of the dtypes that no table has, those that its variables may have; None where it keeps no variables."""

    def __init__(self, given: Given) -> None:
        self.source, self.ranks, self.given = given.source, given.ranks, given
        self.out = self.accepted(self._with_known_types(given.out))
        """What the system can hold; the rest is left out, by name and with the reason."""

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

    @property
    def is_own(self) -> bool:
        """Say whether the source is of this system, too."""
        return self.source.version.layout.system == self.system

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return what the system can hold; UnsupportedError or UsageError for what must not be left out."""
        return out


class Destination(Holding, ABC):
    """The files of a version in one system; made for a version, then `lay_out` is called once."""

    of_system: ClassVar[re.Pattern[str]]
    """What the paths of its own files have; a source of the same system may have others, which go along.

    So do files with such a path from which nothing was read: those of another bundle, or of an earlier save.
    """
    known_by_name: ClassVar[bool] = True
    """False where files with such paths may be others, too: what the source has claimed tells."""

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._numbers: dict[str, int] = {}

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

    @abstractmethod
    def spread(self, table: OutTable) -> Spread | None:
        """Return how the rows of a table are spread; None where it is a matrix whose rows have numbers."""

    def check(self, rows: CountedRows) -> None:
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


def rule_owners(rule: Placement, ids: bulk.I64, *, count: int) -> bulk.U16:
    """Return the rank of each id by a rule: uint16 [n]."""
    owners = placement.owners(rule, ids, count)
    assert owners is not None  # noqa: S101 - only rules that say the shard are asked
    return owners.astype(np.uint16, copy=False)
