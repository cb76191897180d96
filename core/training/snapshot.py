"""SnapshotBuffers of arrays, in memory that the next snapshot uses again: fresh memory costs more than the copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.arrays import Array, as_array
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.parallel import default_workers, run_all
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.training.content import AnyTable, TableBatches, check_names, known_table

_GROWTH: Final = 8
"""A buffer is an eighth larger than its array: tables grow from save to save."""
_PIECE_BYTES: Final = 16 << 20
_WORKERS: Final = 2
"""Threads that copy: more are not faster, because the memory is not."""


class SnapshotBuffers:
    """Takes one snapshot at a time; the one before it must not be used any more."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, str], bulk.U8] = {}
        self._used: dict[tuple[str, str], bulk.U8] = {}
        self._tasks: list[tuple[bulk.U8, bulk.U8]] = []

    def take(
        self, dense: Mapping[str, Array], tables: Mapping[str, AnyTable]
    ) -> tuple[dict[str, Array], dict[str, AnyTable]]:
        """Return copies of all arrays; UsageError for tables in batches, and for what is no array."""
        check_names(dense, tables)
        self._used, self._tasks = {}, []
        copied: dict[str, Array] = {
            name: self._copy(("variable", name), as_array(value, what=f"variable {name!r}"))
            for name, value in dense.items()
        }
        rows: dict[str, AnyTable] = {name: self._table(name, table) for name, table in tables.items()}
        self._buffers, tasks = self._used, self._tasks
        self._used, self._tasks = {}, []
        workers = min(default_workers(), _WORKERS) if sum(each.nbytes for _, each in tasks) > _PIECE_BYTES else 1
        run_all(lambda pair: np.copyto(*pair), tasks, workers)
        return copied, rows

    def _table(self, name: str, given: AnyTable) -> Table:
        table = known_table(name, given)
        if isinstance(table, TableBatches):
            raise UsageError(
                f"table {name!r}: batches cannot be copied", hint="hand everything over with copy=False, or use save"
            )
        own_ids, own_vectors = (
            self._copy((kind, name), as_array(value, what=f"{kind} of table {name!r}"))
            for kind, value in (("ids", table.ids), ("vectors", table.vectors))
        )
        return Table(own_ids, own_vectors, table.initializer)

    def _copy(self, key: tuple[str, str], array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return an array of the same content in one of our buffers; the bytes are copied later, in pieces."""
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < array.nbytes:
            buffer = np.empty(array.nbytes + array.nbytes // _GROWTH, np.uint8)
        self._used[key] = buffer
        copy: npt.NDArray[Any] = buffer[: array.nbytes].view(array.dtype).reshape(array.shape)
        if not array.flags.c_contiguous:
            np.copyto(copy, array)
        else:
            source = array.reshape(-1).view(np.uint8)
            self._tasks += [
                (buffer[start : min(start + _PIECE_BYTES, array.nbytes)], source[start : start + _PIECE_BYTES])
                for start in range(0, array.nbytes, _PIECE_BYTES)
            ]
        return copy
