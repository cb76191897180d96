"""What a destination is: a system's files for one version, laid out from counts before a value moves."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import Outgoing, OutTable, OutVariable
from edl_ckpt.core.converting.rows import CountedRows, RowPlaces, Spread
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.elasticdl.target import variable_owner
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout, Slab


class Cut(NamedTuple):
    """Bytes [start, end) of a tensor, and where they go."""

    start: int
    end: int
    file: int
    offset: int


class Given(NamedTuple):
    """What a destination is made for."""

    source: Checkpoint
    out: Outgoing
    ranks: int
    number: int
    most_file_bytes: int | None = None
    whole: Checkpoint | None = None
    """The source as tensors alone, where it goes out so."""


class Destination(ABC):
    """The files of a version in one system; made for a version, then `lay_out` is called once."""

    system: ClassVar[str]
    own: ClassVar[re.Pattern[str]]
    """What the paths of its own files have; a source of the same system may have others, which go along."""
    varints: ClassVar[bool] = False
    """True where the bytes of ids as varints must be counted."""

    def __init__(self, given: Given) -> None:
        self.source, self.ranks, self.given = given.source, given.ranks, given
        self.out = self.accepted(given.out)
        """What the system can hold; the rest is left out, by name and with the reason."""
        self._numbers: dict[str, int] = {}

    @cached_property
    def carried(self) -> Mapping[str, int]:
        """The other files that lie in a version of the same system, with their sizes: they are copied as they are."""
        version = self.source.version
        others = {name: size for name, size in version.sizes.items() if not self.own.search(name)}
        return others if version.layout.system == self.system else {}

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
    @abstractmethod
    def files(self) -> Mapping[str, int]:
        """Return the bytes of each file by its path in the version, the one that completes it last."""

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
        """Return the array of a variable."""
        if variable.in_slabs and variable.shape:
            slabs = row_slabs(variable.shape, self.ranks)
        else:
            slabs = (Slab(self.rank_of(variable), (0,) * len(variable.shape), variable.shape),)
        return Array(variable.name, variable.dtype, variable.shape, slabs)

    def matrix(self, table: OutTable) -> Array:
        """Return the array of a table by row numbers."""
        shape = (table.rows if table.resize is None else table.resize, table.info.dim)
        return Array(table.name, table.dtype, shape, row_slabs(shape, self.ranks))

    @property
    def files(self) -> Mapping[str, int]:
        """Return those that are carried, and then those of the layout."""
        return {**self.carried, **self.layout.files}

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
