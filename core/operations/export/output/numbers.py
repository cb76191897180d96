"""The ids of a matrix as the place of a tensor: they are the numbers of its rows, so no file has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import numpy as np

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.operations.export.output.places import OpenPlace

_ID_BYTES: Final = 8


class RowNumbers:
    """Takes the ids of rows where a file would have them, and reads back the numbers that they must be."""

    def __init__(self, table: str) -> None:
        self._table = table

    @contextmanager
    def opened(self) -> Iterator[OpenPlace]:
        """Return this place, which needs no file."""
        yield OpenPlace(self, self._bytes)

    def write(self, at: int, data: bulk.U8) -> None:
        """Compare ids with the numbers of their rows; EdlCkptError when the table is no matrix after all."""
        if not np.array_equal(data.view(np.int64), self._numbers(at, data.nbytes)):
            raise EdlCkptError(
                f"table {self._table!r}: its ids are not the numbers of its rows; nothing was published",
                hint="this is a fault of edl-ckpt: please report it",
            )

    def read_into(self, at: int, data: bulk.U8) -> None:
        """Fill uint8 [n] with the numbers of rows."""
        data[:] = self._bytes(at, data.nbytes)

    def start_flush(self, at: int, size_bytes: int) -> None:
        """Do nothing: no file has these bytes."""

    def _bytes(self, at: int, size_bytes: int) -> bulk.U8:
        return self._numbers(at, size_bytes).view(np.uint8)

    def _numbers(self, at: int, size_bytes: int) -> bulk.I64:
        return np.arange(at // _ID_BYTES, (at + size_bytes) // _ID_BYTES, dtype=np.int64)
