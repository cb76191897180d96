"""The proof of a written version: every byte of it is read back, and must be what was meant.

What stands besides values and ids must be that of the layout, byte by byte. Values and ids must have the fingerprint of
their source, and each id must be in its shard: a fingerprint is the same for any placement. Shards are proved some at a
time, so that memory does not depend on how many there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.fingerprint import (
    ContentSketch,
    Fingerprint,
    Forms,
    sketch_checkpoint,
)
from edl_ckpt.core.checkpoint.places import RowMarks
from edl_ckpt.core.checkpoint.planned import planned_shards
from edl_ckpt.core.checkpoint.reader import Checkpoint, openings, raise_problems
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, bundles
from edl_ckpt.core.checkpoint.sealing import cut
from edl_ckpt.core.checkpoint.summing import ChunkSums
from edl_ckpt.core.checkpoint.values import read_back_by
from edl_ckpt.core.errors import CorruptError, EdlCkptError
from edl_ckpt.core.format.literals import Literals
from edl_ckpt.core.format.model import ShardFile, Version
from edl_ckpt.core.format.shard_layout import VersionLayout
from edl_ckpt.core.parallel import Executor, run_parallel
from edl_ckpt.core.progress import WARNINGS, Reporter
from edl_ckpt.core.state.seal import Chunk, PackedChunks, Seal, SealedShard, base_name, now_text
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader

_MOST_ENTRIES: Final = 8192
"""Variables and tables, counted in each shard, whose index and checksums are in memory at a time."""
_SMALL_TIMES: Final = 8
"""So many times as large as small parts are those that are read whole on a disk: as large as the L2 cache of a core.

Where a table has a part in each of a thousand shards, its ids would be counted, and read again, for each of them.
"""
_MOST_ELSEWHERE: Final = 1 << 16
"""The same where other processes read: all of them wait for the last task of the shards before."""


def prove_version(
    written: Version,
    layouts: VersionLayout,
    source: Fingerprint | ContentSketch,
    *,
    workers: int,
    executor: Executor | None = None,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    marks: Mapping[str, RowMarks] | None = None,
    reporter: Reporter = WARNINGS,
) -> Seal:
    """Read back a written version and return its seal; EdlCkptError when it is not what was meant.

    `layouts` are those by which it was written. `source` is the fingerprint of the source, or the sketch of its values
    when the source is not a checkpoint. The tasks of an `executor` are done in other processes. `marks` are rows whose
    places are planned, by the names of their tables: those processes look for them there, and count none first.
    """
    proof = _Proof(written, layouts, workers, executor, batch_bytes, piece_bytes, marks, reporter)
    reporter.start("proving", layouts.value_bytes)
    try:
        for numbers in _groups(layouts, _MOST_ENTRIES if executor is None else _MOST_ELSEWHERE):
            proof.read(numbers)
    except CorruptError as error:
        raise _differs(error.message, error.path or written.path, error.offset) from error
    return proof.seal(source)


def _groups(layouts: VersionLayout, most: int) -> Iterator[list[int]]:
    """Yield the numbers of shards that are proved together."""
    some: list[int] = []
    entries = 0
    for number, own in enumerate(layouts.entries.tolist()):
        if some and entries + own > most:
            yield some
            some, entries = [], 0
        some.append(number)
        entries += own
    yield some


@dataclass(slots=True)
class _Proof:
    """What was read back so far, and is right as far as the layout tells."""

    written: Version
    layouts: VersionLayout
    workers: int
    executor: Executor | None
    batch_bytes: int
    piece_bytes: int
    marks: Mapping[str, RowMarks] | None
    reporter: Reporter
    sketch: ContentSketch = field(default_factory=ContentSketch)
    forms: Forms = field(default_factory=Forms)
    sealed: list[SealedShard] = field(default_factory=list)

    def read(self, numbers: Sequence[int]) -> None:
        """Read back some shards; CorruptError where bytes differ from the layout, or ids from the rows."""
        files = [self.written.shards[number] for number in numbers]
        literals = {file.path: self.layouts.literals(number) for file, number in zip(files, numbers, strict=True)}
        shards = planned_shards(files, list(literals.values()), self.written.version)
        raise_problems(self.written, shards)
        with Checkpoint(self.written, shards, self._open(files)) as checkpoint:
            for shard, chunks in zip(shards, self._read(checkpoint, literals), strict=True):
                self.forms.add(shard)
                name, packed = base_name(shard.file.path), PackedChunks(chunks)
                self.sealed.append(SealedShard(name, shard.file.size_bytes, packed))

    def _open(self, files: Sequence[ShardFile]) -> dict[int, RangeReader]:
        """Open files, which must have their sizes."""
        store = open_store(self.written.location)
        readers: dict[int, RangeReader] = {}

        def begin(file: ShardFile) -> None:
            readers[file.ps_id] = reader = store.open(file.path)
            if reader.size_bytes != file.size_bytes:
                raise CorruptError(f"has {reader.size_bytes} bytes, expected {file.size_bytes}", path=file.path)

        try:
            for _ in run_parallel(begin, files, openings(store)):
                pass
        except BaseException:
            for reader in readers.values():
                reader.close()
            raise
        return readers

    def _read(self, checkpoint: Checkpoint, literals: Mapping[str, Literals]) -> list[list[Chunk]]:
        chunks = [cut(shard, checkpoint.reader(shard)) for shard in checkpoint.shards]
        if self.executor is not None:
            return read_back_by(
                checkpoint,
                chunks,
                self.executor,
                self.sketch,
                reporter=self.reporter,
                literals=literals,
                total_bytes=self.layouts.value_bytes,
                placed=True,
                marks=self.marks,
            )
        return read_back(
            checkpoint,
            chunks,
            self.sketch,
            workers=self.workers,
            batch_bytes=self.batch_bytes,
            piece_bytes=self.piece_bytes,
            reporter=self.reporter,
            literals=literals,
            placed=True,
        )

    def seal(self, source: Fingerprint | ContentSketch) -> Seal:
        """Return the seal of all shards; EdlCkptError when their fingerprint is not that of the source."""
        found = self.forms.fingerprint(self.sketch)
        expected = self.forms.fingerprint(source) if isinstance(source, ContentSketch) else source
        if found.text != expected.text:
            names = ", ".join(map(repr, found.differing(expected)[:5]))
            raise _differs(names, self.written.path)
        return Seal(self.written.version, found.text, tuple(self.sealed), now_text())


def _differs(what: str, path: str, offset: int | None = None) -> EdlCkptError:
    return EdlCkptError(
        f"the written version differs from its source ({what}); nothing was published",
        path=path,
        offset=offset,
        hint="check the memory and the disk of this machine",
    )


def read_back(
    checkpoint: Checkpoint,
    chunks: Iterable[Sequence[Chunk]],
    sketch: ContentSketch,
    *,
    workers: int,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    reporter: Reporter = WARNINGS,
    literals: Mapping[str, Literals] | None = None,
    placed: bool = False,
) -> list[list[Chunk]]:
    """Read every byte of an opened version once, and add its values to a sketch; return its chunks with their sums.

    `literals` are what each file must have besides values and ids, by its path. Raises what `sketch_checkpoint`
    raises, and CorruptError for a byte that is another one.
    """
    readers = {shard.file.ps_id: checkpoint.reader(shard) for shard in checkpoint.shards}
    sums = ChunkSums(zip(readers.values(), chunks, strict=True), literals)
    others: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    near = batch_bytes >= VALUE_BATCH_BYTES and not any(reader.block_bytes for reader in readers.values())
    times = _SMALL_TIMES if near else 1
    small = list(bundles(checkpoint, min(PIECE_BYTES, batch_bytes), times=times))
    for bundle in small:
        others[bundle.shard.file.ps_id].append((bundle.start, bundle.end))
    openers = openings(open_store(checkpoint.version.location))
    sums.add_rest(checkpoint.shards, readers, workers=openers, others=others)
    sketch_checkpoint(
        checkpoint,
        sketch,
        workers=workers,
        batch_bytes=batch_bytes,
        piece_bytes=piece_bytes,
        reporter=reporter,
        sums=sums,
        small=small,
        small_times=times,
        placed=placed,
    )
    return [sums.finish(reader.path, workers=workers) for reader in readers.values()]
