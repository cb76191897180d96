"""The interface of formats: what is asked for, their traits, and the content they write.

A selection says which part of a version is exported, in which dtype, and whether tables go out as ids and vectors or as
matrices. The content is tensors in order, and the rows of tables.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.parallel import default_workers, run_parallel
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.several import several, several_pairs
from edl_ckpt.core.base.words import counted, describe, escaped, meant
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.converting.changes import FLOATS, LeftOut
from edl_ckpt.core.converting.items import NO_ITEMS, ItemCounts
from edl_ckpt.core.converting.name_map import NameMap
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export.content.quantizing import QUANTIZED, Quantized
from edl_ckpt.core.operations.export.output.places import Place
from edl_ckpt.core.proof.fingerprint import Fingerprint
from edl_ckpt.core.proof.trust import Trust, check_trust
from edl_ckpt.core.reading.loss import NOTHING, Loss, open_rest
from edl_ckpt.core.reading.names import chosen_names
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.reading.stored_sums import NO_SUMS, SumsCompared
from edl_ckpt.core.sorting.partition import PART_BYTES
from edl_ckpt.core.storage.location import Location

CASTS: Final = ("float16", "bfloat16", "float32")
FILLS: Final = ("zeros", "initializer")
STORED: Final = "stored"
COMPACT: Final = "the compact form is NAME.ids and NAME.vectors; for one row for each id, and its ids, try: --remap"
WEIGHT: Final = ".weight"
"""Ends the name of the parameter that a `torch.nn.Embedding` or `EmbeddingBag` has."""
ORDERS: Final = ("id", STORED)


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a version to export, and its form.

    `tables` and `variables` are globs of names (none: all). Floats are cast to `dtype`. `dense_rows` makes tables
    matrices of so many rows: a number, 'auto' for the highest id plus one, or None. `fill` is the content of rows that
    no id has: 'zeros', or 'initializer' for the table's own, drawn with `seed`. Rows are in the `order` of their ids
    ('id'), or 'stored': shard after shard, as each has them. Raises UsageError for any other word, and for a matrix in
    the order 'stored'. `quantize` stores rows of tables in 8 or 4 bits an element: a name in `QUANTIZED`. `remap` makes
    tables matrices with the row k of the k-th id, and their ids, which ascend, are an array beside them.
    """

    tables: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    dtype: str | None = None
    dense_rows: int | str | None = None
    fill: str = "zeros"
    seed: int = 0
    order: str = "id"
    quantize: str | None = None
    remap: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", several(self.tables, "tables"))
        object.__setattr__(self, "variables", several(self.variables, "variables"))
        words = ("dtype", CASTS), ("fill", FILLS), ("order", ORDERS), ("quantize", tuple(QUANTIZED))
        for name, known in words:
            word = getattr(self, name)
            if word not in known and not (word is None and name in {"dtype", "quantize"}):
                expected = " or ".join(known) if len(known) == 2 else f"one of {', '.join(known)}"
                raise UsageError(f"{name} must be {expected}, got {word!r}", hint=meant(word, known))
        if self.quantize is not None and (self.dtype is not None or self.dense_rows is not None):
            raise UsageError("quantized rows have a type of their own, and ids: no dtype and no dense_rows")
        if self.remap and self.dense_rows is not None:
            raise UsageError("remap numbers the ids, and dense_rows takes them as numbers of rows: choose one")
        if self.order == STORED and self.is_matrix:
            raise UsageError("a matrix has its rows in the order of ids: no order 'stored' with dense_rows or remap")

    @property
    def is_matrix(self) -> bool:
        """Return True when tables go out as matrices."""
        return self.remap or self.dense_rows is not None

    @property
    def is_lossless(self) -> bool:
        """Return True when everything is exported unchanged."""
        return self == Selection(fill=self.fill, seed=self.seed, order=self.order, remap=self.remap)

    def target_dtype(self, dtype: DType) -> DType:
        """Return the dtype that is written for a dtype that was read: only floats are cast."""
        return DTYPES[self.dtype] if self.dtype and dtype.name in FLOATS else dtype

    def quantizes(self, dtype: DType) -> Quantized | None:
        """Return how rows of a dtype are stored in bits; None for rows as they are."""
        return QUANTIZED[self.quantize] if self.quantize and dtype.name in FLOATS else None

    def choose_variables(self, names: Sequence[str]) -> list[str]:
        """Return the variables to export, of all names; NotFoundError when a glob matches nothing."""
        return chosen_names(names, self.variables, self.tables, "variable")

    def written_variables(self, checkpoint: Checkpoint) -> list[str]:
        """Return the variables that a format of arrays writes: records of parts only where they are named.

        Errors as `choose_variables`.
        """
        records = records_of(checkpoint).keys() - set(self.variables)
        return [name for name in self.choose_variables(checkpoint.variable_names) if name not in records]

    def choose_tables(self, names: Sequence[str], slots: Mapping[str, str] | None = None) -> list[str]:
        """Return the tables to export, of all names; `slots` as in `whole_name`. Errors as `choose_variables`."""
        return chosen_names(names, self.tables, self.variables, "table", slots)


@dataclass(frozen=True, slots=True)
class Tensor:
    """An array to be written: its bytes are in C order, little-endian."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    item_shape: ClassVar[None] = None
    """An export has no items."""

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize


_BATCH_ELEMENTS: Final = 1 << 20
_MOST_TAKERS: Final = 4
"""Threads that make something of batches: each needs memory for what it makes."""


def batch_rows(dim: int) -> int:
    """Return how many rows of so many elements a batch has."""
    return max(_BATCH_ELEMENTS // max(dim, 1), 1)


Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table for a format of rows: batches of (int64 [n] ids in the order asked for, [n, dim] vectors).

    All batches but the last one have `batch_rows(dim)` rows, so that where one begins depends on nothing else.
    """

    name: str
    rows: int
    dim: int
    batches: Callable[[], Iterator[Batch]]

    def each(self, take: Callable[[npt.NDArray[np.int64], npt.NDArray[np.generic]], Made]) -> Iterator[Made]:
        """Yield what a function makes of each batch, in their order; several threads call it."""
        workers = min(default_workers(), _MOST_TAKERS)
        return run_parallel(lambda batch: take(*batch), self.batches(), workers, most=workers + 1)


@dataclass(frozen=True, slots=True)
class TableNote:
    """A note on a table for importers: the names of its two tensors, and the initializer of rows for new ids."""

    ids: str
    """ROWS where the ids are the numbers of the rows."""
    vectors: str
    initializer: str
    dim: int
    dtype: str
    """'' for a table without rows."""
    companion_of: str = ""
    """The table of the same export whose ids it has; '' for a table of its own."""
    slot: str = ""

    def to_json(self) -> dict[str, str | int]:
        """Return what an export says of a table; of companions only where it is one."""
        own = {"ids": self.ids, "vectors": self.vectors, "initializer": self.initializer}
        kind = {"companion_of": self.companion_of, "slot": self.slot} if self.companion_of else {}
        return {**own, "dim": self.dim, "dtype": self.dtype, **kind}


class ContentCounts(NamedTuple):
    """The numbers of variables, tables and rows of tables in an export."""

    variables: int
    tables: int
    rows: int


@dataclass(frozen=True, slots=True)
class ExportContent:
    """All that is exported; `metadata` are texts about the whole. `notes` are those of tables with ids and vectors.

    A format either calls `fill` with the places of all tensors in its files, or takes the batches of the tables. Then
    it calls `finish`, which returns the metadata: until then, their fingerprint is a text of the same length that means
    nothing.
    """

    tensors: Sequence[Tensor]
    tables: Sequence[TableRows]
    counts: ContentCounts
    notes: Mapping[str, TableNote]
    metadata: Mapping[str, str]
    fill: Callable[[Mapping[str, Place]], None]
    finish: Callable[[], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class FormatTraits:
    """The properties that a format declares; the registry and `export_version` ask for nothing else."""

    name: str
    endings: tuple[str, ...] = ()
    """Endings of output names that choose the format."""
    is_directory: bool = False
    """True when the output is always a directory."""
    takes_limit: bool = False
    """True for formats of one table's rows, which can be limited."""
    spools: bool = True
    """False when tensors are written to their places, so that no temporary file is needed: then rows may be
    quantized."""
    is_lossless: bool = True
    """True when the output contains every value unchanged, so that a whole export can be proved."""
    is_text: bool = False
    """True for lines of text, which a terminal may have, and a stream while they are made."""
    matrix_ending: str = ""
    """What the name of a table gets behind it as the name of a matrix, unless another name is asked for."""
    lacked_dtypes: frozenset[str] = frozenset()
    """Names of the dtypes that tables cannot have in this format."""
    keeps_matrices: bool = False
    """True for tensors: a table that is a matrix in its source goes out under its own name, without ids."""
    other_dtypes: frozenset[str] = frozenset()
    """Of the dtypes that no table has, those that variables can have in this format."""
    keeps_texts: bool = False
    """True where the output has what files of safetensors say of themselves."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """A version to export, the output, the selected part of the version, and limits."""

    version: Version
    goal: Location
    selection: Selection
    limit: int | None = None
    max_shard_bytes: int | None = None
    part_bytes: int = PART_BYTES
    reporter: Reporter = WARNINGS
    use_seal: bool = True
    """False to go on when the version does not match its seal."""
    force: bool = False
    """True to replace what the output is now."""
    cluster: ClusterExecutor | None = None
    """Whose workers do the work, where it is not this process."""
    ranks: int | None = None
    """For systems with ranks: how many; by default as many as the version has."""
    names: NameMap | None = None
    rename: tuple[tuple[str, str], ...] = ()
    """Pairs of an old name, or a glob, and a new one, behind those of the map."""
    partial: bool = False
    """True to export what can be read, where shards are missing or damaged."""
    digests: bool = False
    """True to have the digests of the version in the result, also where they take a reading of their own."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rename", several_pairs(self.rename, "rename"))


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """A file that was written."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TableErrors:
    """How far the quantized values of a table are from its own: at most, and on average."""

    name: str
    greatest: float
    mean: float


@dataclass(frozen=True, slots=True)
class ExportResult:
    """The written files; `proved` when every value went out unchanged, with the fingerprint of the source."""

    ref: str
    output: str
    format: str
    files: tuple[ExportedFile, ...]
    variables: int
    tables: int
    rows: int
    fingerprint: str
    seconds: float
    overflowed: int
    proved: bool
    forced: str | None = None
    """Why the version did not match its seal or its checksums, where `use_seal=False` went on, else None."""
    errors: tuple[TableErrors, ...] = ()
    """Of tables whose rows were quantized."""
    partial: bool = False
    """True when something could not be read; `lost` says what."""
    lost: Loss = NOTHING
    checksums: SumsCompared = NO_SUMS
    """How many checksums of the version's files were compared, and how many are of values that were not read."""
    left_out: tuple[LeftOut, ...] = ()
    """What was asked for and has no place in the format."""
    items: ItemCounts = NO_ITEMS
    content: Fingerprint | None = field(default=None, repr=False, compare=False)
    """The fingerprint of the version that was exported, with the digest of each name; None where it was not read."""
    bytes_read: int = 0
    peak_memory_bytes: int = 0

    @property
    def source(self) -> str:
        """Return what was read, as results of other operations name it: the same as `ref`."""
        return self.ref

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def bytes_written(self) -> int:
        """Return the same: each byte was written once."""
        return self.size_bytes

    @property
    def dropped(self) -> tuple[LeftOut, ...]:
        """Return what was left out, as results of other operations name it."""
        return self.left_out

    def __repr__(self) -> str:
        return describe(
            "ExportResult",
            escaped(self.ref),
            f"{self.format} in {escaped(self.output)}",
            counted(self.variables, "variable"),
            counted(self.tables, "table"),
            counted(self.rows, "row"),
        )


class WrittenContent(NamedTuple):
    """What went out: the content, the fingerprint of the checkpoint, casts that became infinite, and errors."""

    content: ExportContent
    fingerprint: Fingerprint
    overflowed: int
    errors: tuple[TableErrors, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file that would be written; `size_bytes` is None where only the values would tell."""

    path: str
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """What an export would write."""

    ref: str
    output: str
    format: str
    files: tuple[PlannedFile, ...]
    variables: int
    tables: int
    rows: int
    value_bytes: int
    """The bytes of all values that would be written, ids included."""
    bytes_read: int
    """The bytes that were read for the plan."""
    partial: bool = False
    lost: Loss = NOTHING
    left_out: tuple[LeftOut, ...] = ()
    """Both as in the result."""


class ExportFormat(ABC):
    """A way to write a version; it is made for one request, and raises UsageError for what it cannot do."""

    traits: ClassVar[FormatTraits]

    def __init__(self, request: ExportRequest) -> None:
        self.request = request
        self.lost = NOTHING
        self.left_out: tuple[LeftOut, ...] = ()
        self.compared = NO_SUMS
        """The checksums of the version's files that were compared."""
        self._bytes_read: Callable[[], int] = lambda: 0
        """Returns how many bytes were read since the version was opened."""

    @contextmanager
    def opened(self) -> Iterator[tuple[Checkpoint, Trust]]:
        """Open the version, or what can be read of it: then `lost` is what cannot."""
        request = self.request
        force = request.partial or not request.use_seal
        trust = check_trust(request.version, force=force, reporter=request.reporter)
        with open_rest(request.version, partial=request.partial) as (checkpoint, self.lost):
            for line in self.lost.lines():
                request.reporter.warn(line)
            cluster = request.cluster
            read_before = 0 if cluster is None else cluster.bytes_read()
            self._bytes_read = lambda: checkpoint.bytes_read + (cluster.bytes_read() - read_before if cluster else 0)
            yield checkpoint, trust

    @abstractmethod
    def export(self) -> ExportResult:
        """Write the output and make it visible, whole or not at all; the caller adds the seconds."""

    @abstractmethod
    def plan(self) -> ExportPlan:
        """Return what `export` would do, from headers and ids; errors are those that it raises before it writes."""

    def result(
        self,
        files: tuple[ExportedFile, ...],
        counts: ContentCounts,
        trust: Trust,
        fingerprint: Fingerprint,
        overflowed: int,
        errors: tuple[TableErrors, ...] = (),
        *,
        proved: bool,
    ) -> ExportResult:
        """Return the result with the version's fingerprint; where something is lost, or may be, nothing is proved."""
        proved = proved and not (self.request.partial and (self.lost or trust.forced))
        text = fingerprint.text
        done = ExportResult(*self._named, files, *counts, text, 0.0, overflowed, proved, trust.forced, errors)
        items = ItemCounts(done.variables + done.tables if proved else 0, left_out=len(self.left_out))
        done = replace(done, checksums=self.compared, left_out=self.left_out, items=items, content=fingerprint)
        done = replace(done, bytes_read=self._bytes_read())
        return replace(done, partial=True, lost=self.lost) if self.lost else done

    @property
    def _named(self) -> tuple[str, str, str]:
        """Return the version, the output and the format, by which results are known."""
        return self.request.version.ref, self.request.goal.url, self.traits.name
