"""A fingerprint of the content of a checkpoint: the same for any shard count, row order and wire generation.

It proves that a reshard, a copy or an export lost nothing. docs/fingerprint.md specifies it, so that anybody can
compute it again, and has the test vectors to which this module is held.

A row is multiplied by a key of its id, and the products are summed modulo 2**32 (`bulk.sketch_rows`). The sum is
linear, so rows may come in any order and from any number of workers.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

import numpy as np

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.kernel import bulk, routing
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.tables import ShardIndex, TableInfo
from edl_ckpt.core.reading.reader import Checkpoint

PREFIX: Final = "edl1:"
_DOMAIN: Final = b"edl-ckpt fingerprint 1\n"
_OTHERS: Final = b"edl-ckpt others 1\n"
_PLUS: Final = "+"
_VARIABLES_AT_ONCE: Final = 64
"""Variables whose sums are made at a time: those of one may take 64 KiB."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of a checkpoint and the digest of each of its parts, which shows the part that differs."""

    text: str
    variables: dict[str, bytes]
    tables: dict[str, bytes]

    def differing(self, other: Fingerprint) -> list[str]:
        """Return the names of the variables and tables that differ."""
        names: set[str] = set()
        for own, others in ((self.variables, other.variables), (self.tables, other.tables)):
            names.update(name for name in own.keys() | others.keys() if own.get(name) != others.get(name))
        return sorted(names)

    def __repr__(self) -> str:
        return describe(
            "Fingerprint", self.text, counted(len(self.variables), "variable"), counted(len(self.tables), "table")
        )


@dataclass(slots=True)
class _TableForm:
    """What is known of a table so far; its dim and its dtype are those of the first info and of the first rows."""

    info: TableInfo | None = None
    dim: int = 0
    dtype: str = ""
    """Of its first rows; '' where it has none so far."""
    rows: int = 0


def agrees(sealed: str, found: str) -> bool:
    """Say whether content with a fingerprint is what a seal says; older seals do not say what tables cannot hold.

    >>> agrees("edl1:00", "edl1:00+11"), agrees("edl1:00+22", "edl1:00+11")
    (True, False)
    """
    return sealed in {found, of_tables(found)}


def of_tables(text: str) -> str:
    """Return the part of a fingerprint that says what tables can hold, which is the same in every system.

    >>> of_tables("edl1:00+22"), of_tables("edl1:00")
    ('edl1:00', 'edl1:00')
    """
    return text.partition(_PLUS)[0]


def has_others(checkpoint: Checkpoint) -> bool:
    """Say whether a checkpoint has items, or variables of dtypes that no table has."""
    return any(not entry.dtype.is_ours for shard in checkpoint.shards for entry in shard.variables)


def blank_text(*, others: bool) -> str:
    """Return a text as long as a fingerprint, with zeros: with `others`, as long as one of content with such."""
    return PREFIX + "0" * 64 + (_PLUS + "0" * 32 if others else "")


class Forms:
    """What a fingerprint says of variables and tables besides their values; shards are added in their order."""

    def __init__(self, shards: Iterable[ShardIndex] = (), *, without: Container[str] = ()) -> None:
        """Take shards, but for the items and variables `without` which the content is meant."""
        self._variables: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._others: set[str] = set()
        self._without = without
        self._tables: dict[str, _TableForm] = {}
        self._infos: tuple[TableInfo, ...] = ()
        """Those of the shard that was added last."""
        for shard in shards:
            self.add(shard)

    def add(self, shard: ShardIndex) -> None:
        """Add what a shard says."""
        for variable in shard.variables:
            if variable.name not in self._without:
                self.add_variable(variable.name, variable.dtype, variable.shape)
        if shard.infos != self._infos:  # all shards of ElasticDL have the same
            self._infos = shard.infos
            for name, info in {info.name: info for info in shard.infos}.items():
                form = self._form(name)
                form.info = form.info or info
        for entry in shard.tables:
            self._add_rows(entry.name, entry.dim, entry.rows, entry.dtype.name if entry.dtype else "")

    def add_variable(self, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
        """Add a variable, or an item, of a dtype and a shape."""
        self._variables[name] = dtype.name, shape
        if not dtype.is_ours:
            self._others.add(name)

    def add_table(self, name: str, *, dim: int, rows: int, dtype: DType, initializer: str) -> None:
        """Add a table: all its rows, each of `dim` elements."""
        self._form(name).info = TableInfo(name, dim, initializer)
        self._add_rows(name, dim, rows, dtype.name if rows else "")

    def _form(self, name: str) -> _TableForm:
        """Return what is known of a table."""
        form = self._tables.get(name)
        if form is None:
            form = self._tables[name] = _TableForm()
        return form

    def _add_rows(self, name: str, dim: int, rows: int, dtype: str) -> None:
        form = self._form(name)
        form.rows += rows
        if not form.dtype and dtype:
            form.dim, form.dtype = dim, dtype

    def fingerprint(self, sketch: ContentSketch) -> Fingerprint:
        """Return the fingerprint of all shards from the sketch of all their values."""
        digest = hashlib.blake2b(_DOMAIN, digest_size=32)
        others = hashlib.blake2b(_OTHERS, digest_size=16)

        def part(record: bytes, total: hashlib.blake2b) -> bytes:
            total.update(record)
            return hashlib.blake2b(record, digest_size=32).digest()

        # One record at a time: that of a variable may have 64 KiB, and there may be thousands.
        sums = sketch.variable_sums(_in_order(self._variables))
        dense = {
            name: part(_dense_record(name, *self._variables[name], own), others if name in self._others else digest)
            for name, own in sums
        }
        tables = {
            name: part(_table_record(name, self._tables[name], sketch.tables.get(name)), digest)
            for name in _in_order(self._tables)
        }
        end = _PLUS + others.hexdigest() if self._others else ""
        return Fingerprint(PREFIX + digest.hexdigest() + end, dense, tables)


def _in_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=name_bytes)


def _lp(data: bytes) -> bytes:
    return struct.pack("<q", len(data)) + data


def _dense_record(name: str, dtype: str, shape: tuple[int, ...], sketch: bulk.U32) -> bytes:
    sums = _lp(np.ascontiguousarray(sketch, "<u4").tobytes())
    return b"".join((b"D", _lp(name_bytes(name)), _dense_form(dtype, shape), sums))


@functools.lru_cache(1024)
def _dense_form(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return what a record has of the form of a variable: thousands may have the same."""
    return _lp(dtype.encode()) + _lp(struct.pack(f"<{len(shape)}q", *shape))


def _table_record(name: str, form: _TableForm, sketch: bulk.U32 | None) -> bytes:
    info = form.info
    dim = info.dim if info else form.dim
    sums = b"" if sketch is None else sketch.astype("<u4").tobytes()
    head = b"T" + _lp(name_bytes(name)) + _lp(name_bytes(info.initializer) if info else b"")
    return head + struct.pack("<qq", dim, form.rows) + _lp(form.dtype.encode()) + _lp(sums)


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
        """Yield (name, sums) of these variables, in this order; CorruptError for one that was not summed."""
        for first in range(0, len(names), _VARIABLES_AT_ONCE):
            some = names[first : first + _VARIABLES_AT_ONCE]
            by_size: dict[int, list[str]] = {}
            for name in some:
                if name in self.whole:
                    by_size.setdefault(len(self.whole[name]), []).append(name)
            found: dict[str, bulk.U32] = {}
            for size, alike in by_size.items():
                rows = np.frombuffer(b"".join(self.whole[name] for name in alike), np.uint8).reshape(len(alike), size)
                found |= zip(alike, bulk.sketch_alone(rows), strict=True)
            for name in some:
                more = self.variables.get(name)
                sums = found.get(name, more)
                if sums is None:  # every variable was read, unless notes of an interrupted move are wrong
                    raise CorruptError(f"variable {name!r}: its values were not summed", code="fingerprint-mismatch")
                yield name, sums if more is None or sums is more else sums + more

    def add_parts(self, tables: Sequence[str], sums: bulk.U32, parts: bulk.I64) -> None:
        """Add the sketches that `routing` made of parts of these tables."""
        with self._lock:
            for name, sketch in zip(tables, routing.sketches(sums, parts), strict=True):
                own = self.tables.get(name)
                if own is None:
                    self.tables[name] = sketch.copy()
                else:
                    own += sketch

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
