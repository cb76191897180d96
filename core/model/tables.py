"""The contents of a shard: variables and tables, and the extents of their bytes."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, replace
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import counted, describe, escaped
from edl_ckpt.core.model.dtypes import DTYPES, TF_DTYPES, DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.versions import ShardFile


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes [start, end) of a file of a shard."""

    start: int
    end: int
    file: int = field(default=0, kw_only=True)
    """The number of the file: first those of `ShardFile.files`, then those of `ShardIndex.gathered`."""

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


class Encoding(enum.StrEnum):
    """How ids are stored: whole numbers by numpy's name for them, and others."""

    VARINT = "varint"
    """Varints of 64 bits, back to back."""
    TAGGED = "tagged"
    """The same, each after a varint of its own that is no id."""
    INT64 = "<i8"
    UINT64 = "<u8"
    """As the int64 of the same bits."""
    INT32 = "<i4"
    ROWS = "rows"
    """Row numbers, which are stored nowhere: the extent only counts them, as if each had eight bytes."""

    @property
    def itemsize(self) -> int:
        """Return the bytes of one id; 0 where they differ in length."""
        return _ID_BYTES.get(self, 8)


_ID_BYTES: Final = {Encoding.VARINT: 0, Encoding.TAGGED: 0, Encoding.INT32: 4}
"""Where they are not 8."""


@dataclass(frozen=True, slots=True)
class IdRun(Extent):
    """Where ids lie, and how."""

    encoding: Encoding = Encoding.VARINT
    first: int = 0
    """The id of the first row, where ids are row numbers."""

    @property
    def tagged(self) -> bool:
        """Return True when it is only read as a whole: nothing tells an id from what is before it."""
        return self.encoding is Encoding.TAGGED

    @property
    def is_stored(self) -> bool:
        """Return False for row numbers, which have no bytes."""
        return self.encoding is not Encoding.ROWS


@dataclass(frozen=True, slots=True)
class Box:
    """`row_bytes` of each of some rows: those of row `first + k` are at `extent.start + k * row_bytes`.

    They are the bytes of the row from `column` on. With `steps`, pairs of (count, bytes), the rows are counted by
    several numbers, the last one fastest, and each moves on by its bytes: so an array with strides is read in C order.
    """

    extent: Extent
    row_bytes: int
    rows: int
    first: int = 0
    column: int = 0
    steps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """Rows that files have in pieces or in another order; they are read like a file that has them one after the other.

    The boxes tile the rows, in the order of their first rows. The files of a box are those of its shard, then those
    that `ShardIndex.borrowed` names. With an order, row k is row `order[k] - order.first` of the boxes: so a remap of
    ids is an order.
    """

    rows: int
    row_bytes: int
    boxes: tuple[Box, ...]
    order: IdRun | None = None
    """The number of the row for each id, in an encoding of fixed size."""


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A shard's description of a table, without its rows (EmbeddingTableInfo); `offset` is its place in the file."""

    name: str
    dim: int
    initializer: str
    offset: int = field(default=0, compare=False)
    dtype: int = field(default=0, compare=False)
    """The number in tensorflow.DataType that the file has, 0 for none.

    Python savers write FLOAT whatever dtype the rows have, so the dtype of rows always comes from their tensor.
    """
    companion_of: str = ""
    """The table with the same ids, of which this one has an optimizer's slot, frequencies, versions or scores."""
    slot: str = ""
    """What a companion has of its table, such as 'momentum1'."""
    total: int | None = field(default=None, compare=False)
    """The rows that all shards have together, as an index of the whole version says; None where nothing says it."""

    @property
    def named_dtype(self) -> DType | None:
        """Return the dtype that it names; None for none, or for one that is unknown here."""
        return TF_DTYPES.get(self.dtype)


def table_dtype(rows: DType | None, info: TableInfo | None) -> DType:
    """Return the dtype that a table is written with: that of its rows; without any, the one in its info or float32.

    >>> table_dtype(None, TableInfo("t", 4, "uniform", dtype=2)).name, table_dtype(None, None).name
    ('float64', 'float32')
    """
    return rows or (info.named_dtype if info else None) or DTYPES["float32"]


@dataclass(frozen=True, slots=True)
class DenseEntry:
    """A dense variable in a shard: its values are the bytes of `values`, C order, little-endian.

    So is an item, whose dtype says so: then `values` are its bytes as the system stores them.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    values: Extent
    offset: int

    @property
    def size_bytes(self) -> int:
        """Return the bytes of its values."""
        return self.values.size_bytes

    @property
    def is_item(self) -> bool:
        """Say whether it is texts, a value or the like: then it is no array."""
        return self.dtype.is_item

    @property
    def elements(self) -> int:
        """Return the number of elements; none is known of an item."""
        return 0 if self.is_item else math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """Rows of an embedding table in a shard: row k is `values[k * row_bytes :][:row_bytes]`, its id the k-th.

    Without rows, `dtype` is None and `dim` is 0. Then `empty_dtype` and `empty_dim` are those of a tensor [0, dim] of
    generation v3 or v4, and None and 0 for any other.
    """

    name: str
    dtype: DType | None
    dim: int
    rows: int
    values: Extent
    ids: tuple[IdRun, ...]
    offset: int
    empty_dtype: DType | None = None
    empty_dim: int = 0
    placement: Placement | None = None
    """The rule by which its rows belong to shards, where that is not the rule of the layout."""

    def described(self) -> TableEntry:
        """Return the entry of a tensor [rows, dim]: without rows its dtype and dim are those of an empty one."""
        return self if self.rows else replace(self, dtype=None, dim=0, empty_dtype=self.dtype, empty_dim=self.dim)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one row."""
        return self.dim * self.dtype.itemsize if self.dtype else 0

    @property
    def size_bytes(self) -> int:
        """Return the bytes of values and ids."""
        return self.values.size_bytes + sum(run.size_bytes for run in self.ids if run.is_stored)


@dataclass(frozen=True, slots=True)
class Problem:
    """A fault in a shard that did not stop its indexing; `code` is the code of a finding of `verify`."""

    code: str
    subject: str
    offset: int | None
    message: str
    warning: bool = False
    """True when the finding is a warning, although its code is that of an error."""
    unread: bool = False
    """True for values that are not read, while all else is: then the finding is an error, and nothing is blocked."""


@dataclass(frozen=True, slots=True)
class LostShard:
    """A shard that cannot be read, and why; `code` is that of the finding of `verify`. `shard` may be unknown."""

    shard: int | None
    path: str
    message: str
    code: str = "missing-shard"
    offset: int | None = None

    @staticmethod
    def of(shard: int, path: str, error: EdlCkptError) -> LostShard:
        """Return the shard for which a file met an error."""
        return LostShard(shard, error.path or path, error.message, error.code or "missing-shard", error.offset)


@dataclass(frozen=True, slots=True)
class StoredSum:
    """A checksum that a file has of some bytes; `extents` are read one after the other."""

    subject: str
    kind: str
    """'crc32' or 'crc32c'."""
    value: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True)
class FileNote:
    """A text that a file has about itself, such as an entry of `__metadata__`; other values are JSON."""

    file: str
    """Its path in the version."""
    key: str
    text: str


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """One shard, there or to be written: its file, the bytes of all its files, and how many variables and rows it has.

    Rows of companions are those of their tables, and are not counted again.
    """

    ps_id: int
    path: str
    size_bytes: int
    variables: int
    rows: int


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """The contents of a shard and where they lie, from its tags alone: no value and no id was read for it."""

    file: ShardFile
    version: int
    generation: str
    """'v0', 'v1', 'v2', 'v3' or 'v4'; '' for a shard without variables, tables and infos."""
    infos: tuple[TableInfo, ...]
    variables: tuple[DenseEntry, ...]
    tables: tuple[TableEntry, ...]
    problems: tuple[Problem, ...] = ()
    unknown_fields: tuple[tuple[int, int], ...] = ()
    """(field number, byte offset) of top-level fields that no reader knows."""
    edges: tuple[int, ...] = field(default=(), repr=False, compare=False)
    """The offset of every top-level field, in order."""
    gathered: tuple[GatheredRows, ...] = field(default=(), repr=False)
    """Rows that are read like files of the shard; as files they have the numbers after the real ones."""
    borrowed: tuple[ShardFile, ...] = field(default=(), repr=False)
    """Files of other shards that boxes of gathered rows are in; for boxes they have the numbers after the own ones."""
    sums: tuple[StoredSum, ...] = field(default=(), repr=False, compare=False)
    """The checksums that the files have of their values; `verify --deep` compares them."""

    notes: tuple[FileNote, ...] = field(default=(), repr=False, compare=False)
    """What its files say of themselves."""
    text_crcs: tuple[tuple[str, int], ...] = field(default=(), repr=False, compare=False)
    """The CRC-32C of texts and variants of TensorFlow by their names, masked: lengths count in it otherwise."""

    @property
    def items(self) -> tuple[DenseEntry, ...]:
        """Return those of its variables that are texts, values and the like."""
        return tuple(entry for entry in self.variables if entry.is_item)

    @property
    def summary(self) -> ShardSummary:
        """Return what the shard contains, in numbers; items are not counted."""
        companions = {info.name for info in self.infos if info.companion_of}
        rows = sum(table.rows for table in self.tables if table.name not in companions)
        variables = sum(not entry.is_item for entry in self.variables)
        return ShardSummary(self.file.ps_id, self.file.path, self.file.all_bytes, variables, rows)

    def path(self, extent: Extent) -> str:
        """Return the file that has an extent, for gathered rows the first of them."""
        files = self.file.files
        if extent.file < len(files):
            return files[extent.file].path
        return self.sources[self.gathered[extent.file - len(files)].boxes[0].extent.file].path

    @property
    def sources(self) -> tuple[ShardFile, ...]:
        """Return the files that boxes of gathered rows number."""
        return (*self.file.files, *self.borrowed)

    def __repr__(self) -> str:
        version, problems = f"version {self.version}", counted(len(self.problems), "problem") if self.problems else ""
        variables = sum(not entry.is_item for entry in self.variables)
        content = counted(variables, "variable"), counted(len(self.tables), "table")
        return describe("ShardIndex", escaped(self.file.path), version, self.generation, *content, problems)
