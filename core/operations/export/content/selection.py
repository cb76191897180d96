"""Which part of a version is exported, in which dtype, and whether tables go out as ids and vectors or as matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant
from edl_ckpt.core.model.dtypes import DTYPES, DType
from edl_ckpt.core.operations.export.content.quantizing import QUANTIZED, Quantized
from edl_ckpt.core.reading.names import chosen_names

CASTS: Final = ("float16", "bfloat16", "float32")
FILLS: Final = ("zeros", "initializer")
STORED: Final = "stored"
COMPACT: Final = "the compact form is NAME.ids and NAME.vectors; for one row for each id, and its ids, try: --remap"
WEIGHT: Final = ".weight"
"""Ends the name of the parameter that a `torch.nn.Embedding` or `EmbeddingBag` has."""
ORDERS: Final = ("id", STORED)
_FLOATS: Final = {"float16", "bfloat16", "float32", "float64"}


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
        return DTYPES[self.dtype] if self.dtype and dtype.name in _FLOATS else dtype

    def quantizes(self, dtype: DType) -> Quantized | None:
        """Return how rows of a dtype are stored in bits; None for rows as they are."""
        return QUANTIZED[self.quantize] if self.quantize and dtype.name in _FLOATS else None

    def choose_variables(self, names: Sequence[str]) -> list[str]:
        """Return the variables to export, of all names; NotFoundError when a glob matches nothing."""
        return chosen_names(names, self.variables, self.tables, "variable")

    def choose_tables(self, names: Sequence[str], slots: Mapping[str, str] | None = None) -> list[str]:
        """Return the tables to export, of all names; `slots` as in `whole_name`. Errors as `choose_variables`."""
        return chosen_names(names, self.tables, self.variables, "table", slots)
