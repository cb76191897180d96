"""The sums behind a fingerprint (`model/fingerprint.py`), added up from the values of a checkpoint in any order."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np

from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.model.fingerprint import Fingerprint, Forms
from edl_ckpt.core.reading.reader import Checkpoint

_VARIABLES_AT_ONCE: Final = 64
"""Variables whose sums are made at a time: those of one may take 64 KiB."""


@dataclass(slots=True)
class ContentSketch:
    """The sums behind a fingerprint; the sketches of all parts of a checkpoint add up to the sketch of the whole.

    A variable of one chunk is kept in `whole`, as its bytes: its sums take sixteen times as many, and follow from them.
    """

    variables: dict[str, bulk.U32] = field(default_factory=dict)
    tables: dict[str, bulk.U32] = field(default_factory=dict)
    whole: dict[str, bytes] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def add_rows(self, table: str, ids: bulk.I64, rows: bulk.U8) -> None:
        """Add rows uint8 [n, row_bytes] of a table with their ids int64 [n]."""
        sketch = bulk.new_sketch(rows.shape[1])
        bulk.sketch_rows(sketch, ids, rows)
        self.add_sketch(table, sketch)

    def add_sketch(self, table: str, sketch: bulk.U32) -> None:
        """Add the sketch of some rows of a table."""
        self._add(self.tables, table, sketch)

    def add_dense(self, name: str, total_bytes: int, start: int, data: bulk.U8) -> None:
        """Add bytes [start, start + len(data)) of a variable of `total_bytes`; `start` is a multiple of 4096."""
        if len(data) == total_bytes <= bulk.CHUNK_BYTES:
            with self._lock:
                if name not in self.whole:  # else a damaged checkpoint has it twice
                    self.whole[name] = data.tobytes()
                    return
        sketch = bulk.new_sketch(total_bytes)
        first, whole = start // bulk.CHUNK_BYTES, len(data) // bulk.CHUNK_BYTES
        if whole:
            chunks = np.arange(first, first + whole, dtype=np.uint64) * np.uint64(bulk.CHUNK_STEP)
            rows = data[: whole * bulk.CHUNK_BYTES].reshape(whole, bulk.CHUNK_BYTES)
            bulk.sketch_rows(sketch, chunks.view(np.int64), rows)
        rest = data[whole * bulk.CHUNK_BYTES :]
        if len(rest) or total_bytes == 0:
            bulk.sketch_rows(sketch, np.zeros(1, np.int64), rest.reshape(1, -1), first_chunk=first + whole)
        self._add(self.variables, name, sketch)

    def variable_names(self) -> set[str]:
        """Return the names of all variables that have sums."""
        return self.variables.keys() | self.whole.keys()

    def take_variables(self, other: ContentSketch, names: Container[str] | None = None) -> None:
        """Take over the variables of another sketch that were read to their end: all of them, or some names."""
        self.variables.update({k: v for k, v in other.variables.items() if names is None or k in names})
        self.whole.update({k: v for k, v in other.whole.items() if names is None or k in names})

    def variable_sums(self, names: Sequence[str]) -> Iterator[tuple[str, bulk.U32]]:
        """Yield (name, sums) of these variables, in this order."""
        for first in range(0, len(names), _VARIABLES_AT_ONCE):
            some = names[first : first + _VARIABLES_AT_ONCE]
            by_size: dict[int, list[str]] = {}
            for name in some:
                if name in self.whole:
                    by_size.setdefault(len(self.whole[name]), []).append(name)
            found = dict(self._sums_of_whole(by_size))
            for name in some:
                more = self.variables.get(name)
                sums = found.get(name, more)
                assert sums is not None  # noqa: S101 - every variable was read
                yield name, sums if more is None or sums is more else sums + more

    def _sums_of_whole(self, by_size: dict[int, list[str]]) -> Iterator[tuple[str, bulk.U32]]:
        for size, names in by_size.items():
            rows = np.frombuffer(b"".join(self.whole[name] for name in names), np.uint8).reshape(len(names), size)
            yield from zip(names, bulk.sketch_alone(rows), strict=True)

    def add_parts(self, tables: Sequence[str], sums: bulk.U32, parts: bulk.I64) -> None:
        """Add the sketches that `routing` made of parts of these tables."""
        with self._lock:
            for name, sketch in zip(tables, routing.sketches(sums, parts), strict=True):
                if name in self.tables:
                    self.tables[name] += sketch
                else:
                    self.tables[name] = sketch.copy()

    def add(self, other: ContentSketch) -> None:
        """Add the sums of other parts."""
        for sums, found in ((self.variables, other.variables), (self.tables, other.tables)):
            for name, sketch in found.items():
                self._add(sums, name, sketch)
        for name, data in other.whole.items():
            self.add_dense(name, len(data), 0, np.frombuffer(data, np.uint8))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the lock."""
        return ContentSketch, (self.variables, self.tables, self.whole)

    def _add(self, sums: dict[str, bulk.U32], name: str, sketch: bulk.U32) -> None:
        with self._lock:
            if name in sums:
                sums[name] += sketch
            else:
                sums[name] = sketch


def fingerprint_of(checkpoint: Checkpoint, sketch: ContentSketch) -> Fingerprint:
    """Return the fingerprint of a checkpoint from the sketch of all its values."""
    return Forms(checkpoint.shards).fingerprint(sketch)


def value_bytes(checkpoint: Checkpoint) -> int:
    """Return the bytes of all values: those that a pass over them reports as done."""
    dense = sum(variable.size_bytes for shard in checkpoint.shards for variable in shard.variables)
    return dense + sum(table.values.size_bytes for shard in checkpoint.shards for table in shard.tables)
