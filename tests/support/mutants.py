"""Mutated shards: a small corpus, what a fuzzer does to it, and what is done with each mutant.

A mutant is its number and nothing else: `mutant(n)` gives the same bytes in every process, so a fault is told by a
number. About half of the mutations put the lengths around the changed bytes right again, or few mutants would get
past the first length.
"""

from __future__ import annotations

import functools
import os
import resource
import signal
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from builders import message, shard_bytes, table_shard
from edl_ckpt.core import EdlCkptWarning, list_versions, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.model.tables import ShardIndex
from edl_ckpt.core.model.versions import ShardFile, Version
from edl_ckpt.core.operations.lookup.rows import look_up
from edl_ckpt.core.operations.statistics import tensor_stats
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from edl_ckpt.core.sources.elasticdl.generations import draft_shard
from edl_ckpt.core.sources.elasticdl.indexing import index_shards
from edl_ckpt.core.sources.elasticdl.wire import BYTES, VARINT, Cursor, tag
from edl_ckpt.core.storage.interface import RangeReader
from oracle import Model, Table
from places import GOLDEN

SECONDS = 1.0
"""Of processor time, for everything that is done with one mutant."""
PEAK_BYTES, PEAK_BYTES_PER_BYTE = 4 << 20, 256
"""Of memory, whatever the file is, and for each byte of the file, every two of which may be a field.

A restore reads with several threads, and each may hold a batch of 1 MiB when another one does.
"""
MUTANT_BYTES = 40 << 10
"""No mutant is larger: repeating what was repeated would soon fill any memory by itself."""
VERSION = 33
_BYTE_VALUES = (0x00, 0x01, 0x7F, 0x80, 0xFF)
_LENGTHS = (127, 128, 2**16, 2**31 - 1, 2**31, 2**32, 2**60, 2**63 - 1, 2**63, 2**64 - 1)
_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 16, 17, 18, 1000, 2**29 - 1, 2**29)


class MemoryReader(RangeReader):
    """A shard in memory: counts what is read of it, and fails when it is asked for bytes that it does not have."""

    def __init__(self, data: bytes, path: str = "mutant") -> None:
        self.path = path
        self.size_bytes = len(data)
        self.bytes_read = 0
        self._data = data

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        assert 0 <= offset <= offset + size <= self.size_bytes, (offset, size)
        self.bytes_read += size
        return self._data[offset : offset + size]


@functools.cache
def corpus() -> tuple[bytes, ...]:
    """Return whole shards of all generations: what ElasticDL saved, tiny ones, ids unpacked, and one of 24 KiB."""
    saved = [p.read_bytes() for s in ("legacy/**/*", "current/ps4/**/*") for p in sorted(GOLDEN.glob(s)) if p.is_file()]
    rows = {i: np.arange(2 * i, 2 * i + 2, dtype="<f4").tobytes() for i in (0, 1, 2**40, 300, -1)}
    tiny = Model(VERSION, {"d": ("float32", (2, 1), b"\0\0\x80?" * 2), "s": ("int64", (), b"\1" * 8)})
    tiny.tables = {"t": Table(2, "uniform", "float32", rows), "n": Table(3, "zeros", "", {})}
    made = [shard_bytes(tiny, 0, 1, generation) for generation in ("v0", "v1", "v2", "v3", "v4")]
    large = Model(VERSION, {"w": ("float64", (16, 8), bytes(1024))})
    large.tables = {"e": Table(2, "", "float32", {i * 37: bytes(8) for i in range(2200)})}
    return (*saved, *made, _unpacked_v4(), _unpacked_v2(), shard_bytes(large, 0, 1, "v4"))


def _unpacked_v4() -> bytes:
    """A table whose ids are unpacked, packed, and unpacked again."""
    ids = b"\x10" + varint(7) + b"\x10" + varint(-5) + message(2, varint(300), varint(2)) + b"\x10" + varint(9)
    return table_shard(ids, 5, version=VERSION)


def _unpacked_v2() -> bytes:
    """The same with the numbers of v2."""
    ids = b"\x20\x04\x20" + varint(-3) + b"\x20" + varint(2**33)
    table = message(2, message(1, b"t"), message(2, b"\x03\x01"), message(3, bytes(12)), ids, b"\x28\x01")
    return b"\x08" + varint(VERSION) + table + message(3, message(1, b"t"), b"\x10\x01")


Mutation = Callable[[Random, bytearray], None]


def _stretch_of(chance: Random, data: bytearray) -> slice:
    """Return a range of the data, mostly a short one."""
    at = chance.randrange(len(data) + 1)
    size = chance.randint(0, chance.choice((1, 4, 16, 64, len(data))))
    return slice(at, min(at + size, len(data)))


def flip_bits(chance: Random, data: bytearray) -> None:
    for _ in range(chance.randint(1, 4) if data else 0):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def overwrite(chance: Random, data: bytearray) -> None:
    some = _stretch_of(chance, data)
    data[some] = bytes([chance.choice(_BYTE_VALUES)]) * (some.stop - some.start)


def nudge(chance: Random, data: bytearray) -> None:
    if data:
        at = chance.randrange(len(data))
        data[at] = (data[at] + chance.choice((-8, -2, -1, 1, 2, 8))) & 0xFF


def blow_up(chance: Random, data: bytearray) -> None:
    """Put a huge varint in the place of a byte."""
    at = chance.randrange(len(data) + 1)
    data[at : at + 1] = varint(chance.choice(_LENGTHS))


def pad(chance: Random, data: bytearray) -> None:
    """Write a varint of one byte in more bytes than it needs: protobuf's parsers take up to ten."""
    if data:
        at = chance.randrange(len(data))
        data[at : at + 1] = bytes([data[at] | 0x80]) + b"\x80" * chance.choice((0, 0, 1, 3, 8, 9)) + b"\x00"


def truncate(chance: Random, data: bytearray) -> None:
    del data[chance.randrange(len(data) + 1) :]


def delete(chance: Random, data: bytearray) -> None:
    del data[_stretch_of(chance, data)]


def duplicate(chance: Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    data[at:at] = data[_stretch_of(chance, data)] * chance.choice((1, 1, 2, 40))


def swap(chance: Random, data: bytearray) -> None:
    one, two = sorted((_stretch_of(chance, data), _stretch_of(chance, data)), key=lambda s: (s.start, s.stop))
    middle = max(one.stop, two.start)
    data[:] = data[: one.start] + data[two] + data[one.stop : middle] + data[one] + data[two.stop :]


def insert_tag(chance: Random, data: bytearray) -> None:
    at = chance.randrange(len(data) + 1)
    payload = chance.choice((b"", b"\x00", b"\x01", b"\x02\x08\x01", varint(chance.choice(_LENGTHS))))
    data[at:at] = tag(chance.choice(_NUMBERS), chance.randrange(8)) + payload


def splice(chance: Random, data: bytearray) -> None:
    """Go on as another file of the corpus does."""
    other = chance.choice(corpus())
    data[chance.randrange(len(data) + 1) :] = other[chance.randrange(len(other)) :]


def graft(chance: Random, data: bytearray) -> None:
    other = bytearray(chance.choice(corpus()))
    at = chance.randrange(len(data) + 1)
    data[at:at] = other[_stretch_of(chance, other)]


def rearrange(chance: Random, data: bytearray) -> None:
    """Drop, repeat, move and renumber whole fields of a message."""
    cuts = [0, *(part.end for part in _parts(data, 0, len(data))), len(data)]
    parts = [bytes(data[a:b]) for a, b in pairwise(cuts) if b > a]
    at, to = (chance.randrange(len(parts) + 1) for _ in range(2))
    act = chance.randrange(5)
    if act == 0:
        del parts[at : at + 1]
    elif act == 1:
        parts[to:to] = parts[at : at + 1] * chance.choice((1, 1, 2, 70))
    elif act == 2:
        parts[at : at + 1], parts[to:to] = [], parts[at : at + 1]
    elif act == 3:
        parts[at:at] = [tag(chance.choice(_NUMBERS[1:]), VARINT) + varint(chance.choice(_LENGTHS))]
    elif at < len(parts):
        parts[at] = tag(chance.choice(_NUMBERS[1:]), parts[at][0] & 7) + parts[at][1:]
    data[:] = b"".join(parts)


FLAT: tuple[Mutation, ...] = (
    flip_bits, overwrite, nudge, blow_up, pad, truncate, delete, duplicate, swap, insert_tag, splice, graft,
)  # fmt: skip
INSIDE: tuple[Mutation, ...] = (*FLAT[:-2], *[rearrange] * 6)


@dataclass(frozen=True, slots=True)
class _Part:
    """A field: its tag stands at `tag`, its length, where it has one, at `length`, its payload is [start, end)."""

    tag: int
    length: int
    start: int
    end: int
    wire_type: int


def _varint_at(data: bytearray, at: int, end: int) -> tuple[int, int]:
    """Return (value, offset behind it); IndexError when there is none."""
    value = 0
    for k in range(10):
        if at + k >= end:
            break
        value |= (data[at + k] & 0x7F) << 7 * k
        if data[at + k] < 0x80:
            return value, at + k + 1
    raise IndexError(at)


def _parts(data: bytearray, start: int, end: int) -> list[_Part]:
    """Return the fields of a message up to the first that is none; not by the engine, which is what is tested."""
    found: list[_Part] = []
    at = start
    try:
        while at < end:
            begin = at
            number, at = _varint_at(data, at, end)
            length, wire_type, size = at, number & 7, {1: 8, 5: 4}.get(number & 7, 0)
            if wire_type == VARINT:
                size = _varint_at(data, at, end)[1] - at
            elif wire_type == BYTES:
                size, at = _varint_at(data, at, end)
            if size > end - at or wire_type in {3, 4, 6, 7}:
                break
            found.append(_Part(begin, length, at, at + size, wire_type))
            at += size
    except IndexError:
        pass
    return found


def _descend(chance: Random, data: bytearray) -> list[_Part]:
    """Return the way into some nested message or payload, from the outermost field on."""
    way: list[_Part] = []
    start, end = 0, len(data)
    while chance.random() < 0.88:
        inner = [part for part in _parts(data, start, end) if part.wire_type == BYTES]
        if not inner:
            break
        way.append(chance.choice(inner))
        start, end = way[-1].start, way[-1].end
    return way


def _mutate_inside(chance: Random, data: bytearray) -> None:
    """Mutate a nested message and put the lengths around it right."""
    way = _descend(chance, data)
    new = data[way[-1].start : way[-1].end] if way else bytearray(data)
    chance.choice(INSIDE)(chance, new)
    outer = [(0, len(data)), *((part.start, part.end) for part in way)]
    for part, (start, end) in zip(reversed(way), reversed(outer[:-1]), strict=True):
        new = data[start : part.length] + varint(len(new)) + new + data[part.end : end]
    data[:] = new


def mutant(number: int) -> bytes:
    """Return the bytes of a mutant: a file of the corpus with one to six mutations."""
    chance = Random(number)
    data = bytearray(chance.choice(corpus()))
    for _ in range(chance.choice((1, 1, 1, 1, 2, 2, 3, 6))):
        if chance.random() < 0.75:
            _mutate_inside(chance, data)
        else:
            chance.choice(FLAT)(chance, data)
        del data[MUTANT_BYTES:]
    return bytes(data)


@dataclass(slots=True)
class Tally:
    """What became of mutants; `faults` are those that must not be: the mutant's number and what it did."""

    mutants: int = 0
    refused: int = 0
    """Those that no index could be made of."""
    opened: int = 0
    """Those that were opened and read to the end."""
    sound: int = 0
    """Those that verify found no error in."""
    slowest: tuple[float, int] = (0.0, -1)
    """(seconds, number)"""
    largest: tuple[int, int] = (0, -1)
    """(peak bytes of one that was traced, number)"""
    most_read: tuple[float, int] = (0.0, -1)
    """(bytes read for each byte of the file while it was indexed, number)"""
    process_bytes: int = 0
    """The most memory that a process had resident."""
    faults: list[tuple[int, str]] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add what became of other mutants."""
        self.mutants += other.mutants
        self.refused += other.refused
        self.opened += other.opened
        self.sound += other.sound
        self.slowest = max(self.slowest, other.slowest)
        self.largest = max(self.largest, other.largest)
        self.most_read = max(self.most_read, other.most_read)
        self.process_bytes = max(self.process_bytes, other.process_bytes)
        self.faults += other.faults

    def __str__(self) -> str:
        return (
            f"{self.mutants} mutants: {self.refused} refused, {self.opened} opened and read whole, {self.sound} sound;"
            f" slowest {self.slowest[0] * 1000:.1f} ms (mutant {self.slowest[1]}), peak {self.largest[0] / 1024:.0f}"
            f" KiB (mutant {self.largest[1]}) and {self.process_bytes / 2**20:.0f} MiB a process, at most"
            f" {self.most_read[0]:.1f} bytes read for one of the file (mutant {self.most_read[1]})"
        )


class TooSlowError(BaseException):
    """More processor time than any mutant may take; no `except Exception` holds it up."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooSlowError in the main thread when so much processor time has gone."""

    def stop(number: int, frame: Any) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def without_kernel(wanted: bool) -> Iterator[None]:
    """Do the inner loops with numpy alone, if that is wanted."""
    kernel = bulk.kernel
    bulk.kernel = None if wanted else kernel
    try:
        yield
    finally:
        bulk.kernel = kernel


def place(directory: Path, *shards: bytes) -> Version:
    """Write shards as the only version of a location and return the version, as listed."""
    target = directory / f"version-{VERSION}"
    target.mkdir(parents=True, exist_ok=True)
    for ps_id, data in enumerate(shards):
        (target / f"variables-{ps_id}-of-{len(shards)}.ckpt").write_bytes(data)
    (version,) = list_versions(str(directory)).versions
    return version


def index_alone(data: bytes, tally: Tally, number: int = -1) -> list[ShardIndex]:
    """Index a shard in memory; a CorruptError must name a byte of it."""
    reader = MemoryReader(data)
    refused: CorruptError | None = None
    try:
        shards = index_shards([draft_shard(ShardFile(0, 1, reader.path, len(data), 0.0), Cursor(reader))], VERSION)
    except CorruptError as error:
        refused, shards = error, []
    tally.most_read = max(tally.most_read, (reader.bytes_read / max(len(data), 1), number))
    if refused is not None:
        tally.refused += 1
        assert refused.path == reader.path
        assert refused.offset is not None
        assert 0 <= refused.offset <= len(data), refused
    return shards


def use(version: Version) -> str:
    """Do what a user would with a version and return its fingerprint: open it, read and restore all, look rows up."""
    with open_checkpoint(version) as checkpoint:
        text = fingerprint_checkpoint(checkpoint).text
        tensor_stats(checkpoint)
        whole, half = checkpoint.restore(0, 1), checkpoint.restore(1, 2)
        names = checkpoint.table_names
        assert half.variables.keys() <= whole.variables.keys() == set(checkpoint.variable_names)
    for name in names:
        some = whole.tables[name].ids[:3].tolist()
        assert set(some) <= set(look_up(version, name, [*some, 5], everywhere=True).ids.tolist())
    return text


def use_all(version: Version, tally: Tally) -> None:
    """Verify a version, which raises nothing, and use it; what verify has no fault to find with must be readable."""
    result = verify_version(version, level="deep", workers=1)
    text: str | None = None
    failure = ""
    try:
        text = use(version)
    except EdlCkptError as error:
        failure = str(error)
    assert not (failure and result.ok), f"verify finds nothing, but: {failure}"
    assert failure or result.fingerprint in ((text,) if result.ok else (text, None)), result
    tally.opened += not failure
    tally.sound += result.ok


@contextmanager
def traced(wanted: bool = True) -> Iterator[None]:
    """Measure the memory of what is tried within, if that is wanted: it makes it several times slower."""
    if wanted:
        tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def try_shards(shards: Sequence[bytes], directory: Path | None, tally: Tally, *, number: int = -1) -> None:
    """Index the first shard and, with a directory, use a version of all; what must not be is added to the faults.

    Of those that cannot be indexed, which soon says all there is to say, two of sixteen are a version.
    """
    tally.mutants += 1
    tracemalloc.reset_peak()
    began, held = time.process_time(), tracemalloc.get_traced_memory()[0]
    try:
        with limited(SECONDS):
            indexed = bool(index_alone(shards[0], tally, number))
            if directory is not None and (indexed or number % 16 in {0, 4}):
                use_all(place(directory, *shards), tally)
    except (Exception, TooSlowError) as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{os.path.basename(where.filename)}:{where.lineno}"
        tally.faults.append((number, f"{type(error).__name__} in {line}: {str(error)[:300]}"))
    tally.slowest = max(tally.slowest, (time.process_time() - began, number))
    peak = tracemalloc.get_traced_memory()[1] - held
    tally.largest = max(tally.largest, (peak, number))
    if peak > PEAK_BYTES + PEAK_BYTES_PER_BYTE * sum(map(len, shards)):
        tally.faults.append((number, f"{peak} bytes of memory for files of {sum(map(len, shards))}"))


def try_mutants(numbers: Sequence[int], directory: str, *, trace_every: int) -> Tally:
    """Try mutants, every other one as a version too, half of these of two shards.

    Of each sixteen, four are tried with numpy alone. Of the calls whose first number is a multiple of `trace_every`
    the memory is measured; all else is decided by a mutant's number.
    """
    tally, own = Tally(), Path(directory) / str(os.getpid())
    with warnings.catch_warnings(), traced(numbers[0] % trace_every == 0):
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", EdlCkptWarning)  # of what is odd in a mutant
        for number in numbers:
            shards = [mutant(number)]
            if number % 4 == 0:
                shards.append(Random(number).choice(corpus()))
            where = own / str(len(shards)) if number % 2 == 0 else None
            with without_kernel(number // 4 % 4 == 3):
                try_shards(shards, where, tally, number=number)
    tally.process_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return tally


def limit_memory(more_bytes: int) -> None:
    """Let this process have so much more address space and no more: what is larger is a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
