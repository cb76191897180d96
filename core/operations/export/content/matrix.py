"""A table as a matrix: row i is that of id i, and ids that the table does not have get rows, too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.operations.export.content.casting import Casting
from edl_ckpt.core.operations.export.content.forms import ContentForms
from edl_ckpt.core.operations.export.interface import COMPACT, Tensor
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.casts import cast_floats
from edl_ckpt.core.sorting.partition import TablePart
from edl_ckpt.core.sources.elasticdl.initial_rows import initial_rows

_ROWS_AT_ONCE: Final = 8192
_GREATEST: Final = int(np.iinfo(np.int64).max)


class IdMatrix:
    """A table of a checkpoint, as a matrix with a row for each id from 0 on."""

    def __init__(self, forms: ContentForms, casting: Casting, name: str) -> None:
        self._forms, self._casting, self._name = forms, casting, name

    def tensor(self) -> Tensor:
        """Return the table as [N, dim]; UsageError for ids that are no numbers of these rows."""
        name = self._name
        is_any_size = self._forms.selection.dense_rows == "auto"
        limit = _GREATEST if is_any_size else int(self._forms.selection.dense_rows or 0)
        low, high = _GREATEST, -1
        outside = 0
        for piece in self._forms.ids[name].pieces:
            ids = read_piece(self._forms.checkpoint, piece).ids
            low, high = int(ids.min(initial=low)), int(ids.max(initial=high))
            outside += int(np.count_nonzero((ids < 0) | (ids >= limit)))
        count = high + 1 if is_any_size else limit
        if outside:
            which = f"{counted(outside, 'id')} {'is' if outside == 1 else 'are'}"
            raise UsageError(
                f"table {name!r}: {which} outside of 0 to {count - 1} (lowest {low}, highest {high})",
                hint=f"a matrix has no rows for such ids; {COMPACT}",
            )
        dtype = self._forms.target(self._forms.checkpoint.written_dtype(name))
        return Tensor(self._forms.keys(name)[1], dtype, (count, self._forms.dim(name)))

    def chunks(self, parts: Iterable[TablePart], count: int) -> Iterator[bulk.U8]:
        """Yield the bytes of all rows, from parts whose ids ascend, as they are stored."""
        start = 0
        for part in parts:
            end = int(part.ids[-1]) + 1 if len(part.ids) else start
            yield from self._rows(start, end, part.ids, part.values)
            start = end
        yield from self._rows(start, count, np.empty(0, np.int64), np.empty((0, 0), np.uint8))

    def _rows(self, first: int, end: int, ids: bulk.I64, values: bulk.U8) -> Iterator[bulk.U8]:
        """Yield rows [first, end) of a matrix: those of some ids, which ascend, and others for the ids between them."""
        dtype = self._forms.checkpoint.written_dtype(self._name)
        for start in range(first, end, _ROWS_AT_ONCE):
            stop = min(start + _ROWS_AT_ONCE, end)
            rows = self._rows_without_id(dtype, start, stop)
            if len(ids):
                inside = slice(*np.searchsorted(ids, [start, stop]))
                rows[ids[inside] - start] = values[inside]
            yield self._casting.elements(rows.reshape(-1), dtype)

    def _rows_without_id(self, dtype: DType, start: int, stop: int) -> bulk.U8:
        """Return rows [start, stop) for ids that the table does not have, uint8 [stop - start, row_bytes]."""
        dim = self._forms.dim(self._name)
        info = self._forms.checkpoint.infos.get(self._name)
        if info is None or self._forms.selection.fill != "initializer":
            return np.zeros((stop - start, dim * dtype.itemsize), np.uint8)
        is_bfloat16 = dtype.name == "bfloat16"
        drawn = np.float32 if is_bfloat16 else np.dtype(dtype.name).newbyteorder("<")
        try:
            rows = initial_rows(info, np.arange(start, stop), seed=self._forms.selection.seed, dtype=drawn)
        except UnsupportedError as error:
            error.hint = "try: --fill zeros"
            raise
        data = cast_floats(rows, "bfloat16")[0] if is_bfloat16 else rows.reshape(-1).view(np.uint8)
        return data.reshape(stop - start, dim * dtype.itemsize)
