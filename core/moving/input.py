"""What a move reads: dense variables, and tables whose rows follow each other in files, in the order of their ids.

A move knows neither formats nor shards of a source. It names ids by numbers (`IdsAt`), because another process has its
own opening of the same source.

Counts of rows are numbers of every target, kept for those targets that have any: a stretch goes to M / gcd(N, M) of M
targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, Protocol, Self, TypeVar, overload

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.job import Job, Opens
from edl_ckpt.core.converting.changes import LeftOut
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.moving.file_values import FileRows, FileValues, SmallParts
from edl_ckpt.core.moving.source_proof import SourceProof
from edl_ckpt.core.proof.id_order import IdOrder, order_of
from edl_ckpt.core.reading.blocks import IdBlock
from edl_ckpt.core.reading.pieces import IdsAt
from edl_ckpt.core.sources.elasticdl.target import PlacedVariable
from edl_ckpt.core.storage.interface import RangeReader

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SurveyedTable:
    """A table of the source; `dtype` is None when it has no rows."""

    info: TableInfo
    dtype: DType | None

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row, 0 without rows."""
        return self.info.dim * self.dtype.itemsize if self.dtype else 0


def generations_of(readers: Iterable[RangeReader]) -> list[tuple[str, int, str]]:
    """Return what tells opened files from others with their names; nothing where the storage of one does not say."""
    found = sorted((reader.path, reader.size_bytes, reader.generation) for reader in readers)
    return found if all(generation for _, _, generation in found) else []


@dataclass(frozen=True, slots=True, eq=False)
class PieceCounts:
    """The rows of a piece of ids, or of a table, that go to each target, and the bytes of their ids: int64 [to_ps]."""

    table: str
    rows: bulk.I64
    id_bytes: bulk.I64


class SparsePair(NamedTuple):
    """Two numbers of each of some `targets`, int64 [targets] and [2, targets]; those of all others are 0."""

    targets: bulk.I64
    numbers: bulk.I64

    @classmethod
    def of(cls, first: bulk.I64, second: bulk.I64, targets: bulk.I64) -> Self:
        """Return the entries of these targets of two int64 [to_ps]."""
        return cls(targets, np.stack((first[targets], second[targets])))

    def full(self, to_ps: int) -> tuple[bulk.I64, bulk.I64]:
        """Return both as int64 [to_ps].

        >>> pair = SparsePair.of(np.array([0, 5, 0, 7]), np.array([0, 6, 0, 8]), np.array([1, 3]))
        >>> [numbers.tolist() for numbers in pair.full(4)]
        [[0, 5, 0, 7], [0, 6, 0, 8]]
        """
        full = np.zeros((2, to_ps), np.int64)
        full[:, self.targets] = self.numbers
        return full[0], full[1]


class Stretch(NamedTuple):
    """A stretch as a task names it: its ids in the source, what of them goes to each target, and where that begins.

    It names only the targets that it goes to, so it is small however many there are.
    """

    table: str
    ids: IdsAt
    counts: SparsePair
    """Rows, and bytes of ids."""
    route: SparsePair
    """Offsets of rows and of ids."""


class SparsePairs(Sequence[Item]):
    """Items with two int64 [to_ps] each, of which only the entries of some targets are kept; the others are 0.

    An item is made by `of` when it is asked for, from what names it and its two arrays in full.
    """

    def __init__(self, to_ps: int, of: Callable[..., Item]) -> None:
        self._to_ps, self._of = to_ps, of
        self._kept: list[tuple[tuple[str, ...], SparsePair]] = []
        self._targets: dict[bytes, bulk.I64] = {}
        """One for all pairs with the same targets: those of a remainder."""

    def __repr__(self) -> str:
        return f"<{len(self)} SparsePairs of {self._to_ps}>"

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, first: bulk.I64, second: bulk.I64, targets: bulk.I64, *names: str) -> None:
        """Keep the entries of these targets of a pair."""
        shared = self._targets.setdefault(targets.tobytes(), targets)
        self._kept.append((names, SparsePair.of(first, second, shared)))

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        names, pair = self._kept[index]
        return self._of(*names, *pair.full(self._to_ps))


class FilteredRows(NamedTuple):
    """A table some of whose rows stay behind: how many it has, the bytes of one as it goes out, and the condition."""

    rows: int
    row_bytes: int
    condition: str


@dataclass(frozen=True, slots=True)
class InputFacts:
    """What headers say of an input: what goes out of it, and how much it has."""

    variables: tuple[PlacedVariable, ...]
    """All dense variables."""
    tables: tuple[SurveyedTable, ...]
    id_bytes: int
    """The bytes of all ids, as the source has them."""
    value_bytes: int
    """The bytes of all values."""
    round_trips: bool = False
    """True where each read takes a request."""
    left_out: tuple[LeftOut, ...] = ()
    """What it has and the target cannot contain, or was not asked for."""
    filtered: Mapping[str, FilteredRows] = field(default_factory=dict)
    """The tables that do not go out with all of their rows."""


class SmallTables(Protocol):
    """The tables of an input that are so small that many are read and written together."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """Return the bytes of ids of each."""

    def count(self, names: Sequence[str], to_ps: int) -> tuple[list[PieceCounts], int]:
        """Return the counts of some for `to_ps` servers, and how many bytes of ids were read.

        Raises CorruptError for ids that cannot be decoded, or that a table has twice.
        """

    def read(self, names: Sequence[str]) -> SmallParts:
        """Read some that follow each other in the target."""

    def raise_bad_part(self, names: Sequence[str], number: int) -> NoReturn:
        """Raise CorruptError for a part of some whose ids cannot be decoded."""

    def path_of(self, table: str) -> str:
        """Return the first file with rows of a table, for an error."""


class Input(Protocol):
    """Variables and tables, opened: what a move reads."""

    proof: SourceProof
    """What the source's own files and its seal say of what was read."""

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read so far."""

    @property
    def facts(self) -> InputFacts:
        """Return what headers say of it."""

    @property
    def identity(self) -> object:
        """Return what tells it from any other input, and what goes out of it; '' where that cannot be told.

        It consists of texts, numbers, and sequences of these.
        """
        return ""

    @property
    def small(self) -> SmallTables | None:
        """Return what reads small tables together; None for an input that has none."""
        return None

    def value(self) -> Opens[Input]:
        """Return the source as a picklable value, without credentials, for other processes."""

    def stretches(self, task_bytes: int, job: Job, *, values: bool) -> Iterator[IdsAt]:
        """Yield the ids of all tables but small ones, in the order of the target, each of about `task_bytes`.

        With `values` the rows count too. The job counts rows where it must be known before which of them go out.
        """

    def cut(self, ids: IdsAt, piece_bytes: int) -> Iterator[IdsAt]:
        """Cut a stretch into pieces of about `piece_bytes` of ids."""

    def numbered(self, stretches: Sequence[IdsAt], orders: Sequence[IdOrder], job: Job) -> list[IdsAt]:
        """Return stretches of whole tables with their rows, from the orders of their ids.

        Raises CorruptError where a table has more or fewer ids than rows, or an id twice. The memory of the job bounds
        the ids that are sorted for that.
        """

    def name_of(self, ids: IdsAt) -> str:
        """Return the name of the table that ids belong to."""

    def order_of(self, ids: IdsAt, values: bulk.I64) -> IdOrder:  # noqa: ARG002 - a version knows the shard
        """Return the order of the ids of a piece, which are int64 [n]."""
        return order_of(values)

    def bytes_of(self, ids: IdsAt) -> int:
        """Return the bytes of ids, as the source has them."""

    def read_ids(self, ids: IdsAt) -> IdBlock:
        """Return the ids of a piece, with their varints where the source has them so."""

    def kept(self, ids: IdsAt, values: bulk.I64) -> npt.NDArray[np.bool_] | None:
        """Return which rows of a piece, whose ids are int64 [n], go out: bool [n], or None for all."""
        del ids, values
        return None

    def rows_of(self, ids: IdsAt) -> FileRows:
        """Return where the rows of ids are; the number of the first one is `ids.first_row`."""

    def dense(self, name: str) -> FileValues:
        """Return where the values of a variable are."""

    def check_unchanged(self) -> None:
        """Raise LockedError when a file has changed since it was opened."""

    def close(self) -> None:
        """Close all files."""
