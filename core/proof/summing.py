"""Checksums of chunks from bytes that other work reads: each byte is read once, for its values and for its checksum.

The pieces of workers arrive in any order, while a checksum needs the bytes of its chunk in their order. What comes too
early is copied and waits. Bytes that did not come are read at the end.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.model.seals import Chunk
from edl_ckpt.core.model.tables import Encoding, ShardIndex
from edl_ckpt.core.proof.sealing import CHUNK_BYTES, checksum, sums_of
from edl_ckpt.core.sources.elasticdl.target import Literals
from edl_ckpt.core.storage.interface import RangeReader

WAITING_BYTES: Final = 64 << 20
"""The most bytes that wait for those before them; chunks beyond that are read again."""
_LEFT_OUT: Final = (Encoding.TAGGED, Encoding.ROWS)
"""Ids that are summed with what stands between values, and those that are stored nowhere."""
_GAP_BYTES: Final = 256 << 10
"""The largest part between values and ids that is read for the sums alone."""


@dataclass(slots=True)
class _Arriving:
    """One chunk, of which the bytes up to `at` have come."""

    at: int
    sum: Any = field(default_factory=xxhash.xxh3_128)
    early: dict[int, bytes] = field(default_factory=dict)
    is_lost: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class ChunkSums:
    """The checksums of the chunks of several files, by their readers; several threads add bytes."""

    def __init__(
        self,
        files: Iterable[tuple[RangeReader, Sequence[Chunk]]],
        literals: Mapping[str, Literals] | None = None,
    ) -> None:
        """Take files with their chunks; `literals` are what must stand in them besides values and ids, by path."""
        self._literals = literals or {}
        self._compared = dict.fromkeys(self._literals, 0)
        """How many bytes of the literals were compared."""
        self._files = {reader.path: (reader, list(chunks)) for reader, chunks in files}
        self._starts = {path: [chunk.start for chunk in chunks] for path, (_, chunks) in self._files.items()}
        self._whole = {path: [""] * len(chunks) for path, (_, chunks) in self._files.items()}
        """The checksums of chunks that came in one part."""
        self._arriving: dict[str, dict[int, _Arriving]] = {path: {} for path in self._files}
        """The chunks that come in several parts, by their numbers."""
        self._waiting = 0
        self._lock = threading.Lock()

    def add(self, reader: RangeReader, offset: int, data: memoryview | bytes) -> None:
        """Add bytes of a file, in any order; they are copied when they are too early.

        Raises CorruptError for bytes that must be others.
        """
        view = memoryview(data)
        if reader.path in self._literals:
            self._compare(reader.path, offset, view)
        for number, start, end in self._among(reader.path, offset, offset + len(view)):
            part = view[start - offset : end - offset]
            chunk = self._files[reader.path][1][number]
            if len(part) == chunk.end - chunk.start and number not in self._arriving[reader.path]:
                self._whole[reader.path][number] = self._whole[reader.path][number] or checksum(part)
                continue
            state = self._state(reader.path, number)
            with state.lock:
                self._take(state, chunk, start, part)

    def _compare(self, path: str, offset: int, view: memoryview) -> None:
        """Compare bytes with the literals of their file."""
        count, wrong = self._literals[path].differing(offset, np.frombuffer(view, np.uint8))
        if wrong >= 0:
            raise CorruptError("a byte is not the one that was written", path=path, offset=wrong)
        with self._lock:
            self._compared[path] += count

    def bounds(self, numbers: Mapping[str, int]) -> dict[int, npt.NDArray[np.int64]]:
        """Return where the chunks of files begin and end, int64 [chunks, 2], by the number of each path."""
        return {
            numbers[path]: np.array([(chunk.start, chunk.end) for chunk in chunks], np.int64).reshape(-1, 2)
            for path, (_, chunks) in self._files.items()
            if path in numbers
        }

    def take(self, path: str, sums: Mapping[int, str]) -> None:
        """Take the checksums of chunks that another process has summed up, by their numbers in the file."""
        for number, text in sums.items():
            self._whole[path][number] = text

    def _state(self, path: str, number: int) -> _Arriving:
        """Return what is known of a chunk that arrives in parts."""
        with self._lock:
            states = self._arriving[path]
            if number not in states:
                states[number] = _Arriving(self._files[path][1][number].start)
            return states[number]

    def _among(self, path: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the numbers of the chunks that have some of the bytes [start, end) of a file, and which of them."""
        if path not in self._files:
            return
        chunks = self._files[path][1]
        for number in range(max(bisect_right(self._starts[path], start) - 1, 0), len(chunks)):
            chunk = chunks[number]
            if chunk.start >= end:
                return
            if start < chunk.end:
                yield number, max(start, chunk.start), min(end, chunk.end)

    def _take(self, state: _Arriving, chunk: Chunk, start: int, part: memoryview) -> None:
        if state.is_lost or start < state.at:  # what came twice is passed over
            return
        if start > state.at:
            if start in state.early:
                return
            if self._count(len(part)) <= WAITING_BYTES:
                state.early[start] = bytes(part)
                return
            self._count(-len(part))
            state.is_lost = True
            self._drop(state)
            return
        state.sum.update(part)
        state.at += len(part)
        while state.early and (early := state.early.pop(state.at, None)) is not None:
            state.sum.update(early)
            state.at += len(early)
            self._count(-len(early))
        if state.at == chunk.end:
            self._drop(state)

    def _count(self, size: int) -> int:
        with self._lock:
            self._waiting += size
            return self._waiting

    def _complete(self, reader: RangeReader, state: _Arriving, chunk: Chunk) -> bool:
        """Read the bytes of a chunk that did not come; return whether its sum has all of them now."""
        while not state.is_lost and state.at < chunk.end:
            until = min((start for start in state.early if start > state.at), default=chunk.end)
            until = min(until, state.at + CHUNK_BYTES)
            self._take(state, chunk, state.at, memoryview(reader.read(state.at, until - state.at)))
        return state.at == chunk.end

    def _drop(self, state: _Arriving) -> None:
        self._count(-sum(map(len, state.early.values())))
        state.early.clear()

    def add_rest(
        self,
        shards: Sequence[ShardIndex],
        readers: Mapping[str, RangeReader],
        *,
        workers: int,
        others: Mapping[int, Sequence[tuple[int, int]]] | None = None,
    ) -> None:
        """Read and add what lies between values and ids; call it first, so that nothing has to wait for it.

        `others` are parts of each shard that will be added too, with what is between the values and ids in them.
        """

        def add(place: tuple[ShardIndex, int]) -> None:
            shard, number = place
            reader = readers[shard.file.files[number].path]
            read_too = () if number else (others or {}).get(shard.file.ps_id, ())
            for start, end in _between(shard, number, reader.size_bytes, read_too):
                if end - start <= _GAP_BYTES or reader.path in self._literals:
                    for at in range(start, end, _GAP_BYTES):
                        self.add(reader, at, reader.read(at, min(_GAP_BYTES, end - at)))
                    continue
                for number, _, _ in self._among(reader.path, start, end):
                    self._state(reader.path, number).is_lost = True

        places = ((shard, number) for shard in shards for number in range(len(shard.file.files)))
        run_all(add, places, workers)

    def finish(self, path: str, *, workers: int = 1) -> list[Chunk]:
        """Return the chunks of a file with the checksums of its bytes; what did not come of them is read now."""
        reader, chunks = self._files[path]
        if path in self._literals and self._compared[path] != self._literals[path].size_bytes:
            raise CorruptError("not all bytes between values and ids were read back", path=path)
        found = list(self._whole[path])
        for number, state in self._arriving[path].items():
            if not found[number] and self._complete(reader, state, chunks[number]):
                found[number] = state.sum.hexdigest()
        done = [Chunk(*chunk[:-1], text) for chunk, text in zip(chunks, found, strict=True)]
        again = iter(sums_of(reader, [chunk for chunk in done if not chunk.sum], workers=workers))
        return [chunk if chunk.sum else next(again) for chunk in done]


def _between(
    shard: ShardIndex, file: int, size_bytes: int, others: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file of a shard that are neither values nor packed ids, nor in the others."""
    extents = [variable.values for variable in shard.variables]
    extents += [table.values for table in shard.tables]
    extents += [run for table in shard.tables for run in table.ids if run.encoding not in _LEFT_OUT]
    at = 0
    for start, end in sorted([*others, *((each.start, each.end) for each in extents if each.file == file)]):
        if at < start:
            yield at, start
        at = max(at, end)
    if at < size_bytes:
        yield at, size_bytes
