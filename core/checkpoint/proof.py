"""The proof of a written version: it is read back, and its fingerprint must be that of its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.fingerprint import (
    ContentSketch,
    Fingerprint,
    fingerprint_checkpoint,
    fingerprint_of,
    value_bytes,
)
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint, openings
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, bundles
from edl_ckpt.core.checkpoint.sealing import cut, seal_of_chunks
from edl_ckpt.core.checkpoint.summing import ChunkSums
from edl_ckpt.core.checkpoint.values import read_back_by
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.parallel import Executor, run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.seal import Chunk, Seal
from edl_ckpt.core.storage import open_store


def prove_version(
    written: Version,
    source: Fingerprint | ContentSketch,
    *,
    staged: bool,
    workers: int,
    executor: Executor | None = None,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    reporter: Reporter = SILENT,
) -> Seal:
    """Read back a written version and return its seal; EdlCkptError when its content is not that of the source.

    `source` is the fingerprint of the source, or the sketch of its values when the source is not a checkpoint.
    """
    with open_checkpoint(written, staged=staged) as checkpoint:
        openers = openings(open_store(checkpoint.version.location))
        chunks = run_parallel(lambda shard: cut(shard, checkpoint.reader(shard)), checkpoint.shards, openers)
        if executor is not None and executor.elsewhere:
            proof, done = read_back_by(checkpoint, chunks, executor, reporter=reporter)
        else:
            proof, done = read_back(
                checkpoint, chunks, workers=workers, batch_bytes=batch_bytes, piece_bytes=piece_bytes, reporter=reporter
            )
        expected = fingerprint_of(checkpoint, source) if isinstance(source, ContentSketch) else source
        if proof.text != expected.text:
            names = ", ".join(map(repr, proof.differing(expected)[:5]))
            raise EdlCkptError(
                f"the written version differs from its source ({names}); nothing was published",
                path=written.path,
                hint="check the memory and the disk of this machine",
            )
        return seal_of_chunks(checkpoint, proof.text, done)


def read_back(
    checkpoint: Checkpoint,
    chunks: Iterable[Sequence[Chunk]],
    *,
    workers: int,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    reporter: Reporter = SILENT,
) -> tuple[Fingerprint, list[list[Chunk]]]:
    """Read every byte of an opened version once; return its fingerprint, and the chunks of its shards with their sums.

    Raises what `fingerprint_checkpoint` raises.
    """
    reporter.start("proving", value_bytes(checkpoint))
    readers = {shard.file.ps_id: checkpoint.reader(shard) for shard in checkpoint.shards}
    sums = ChunkSums(zip(readers.values(), chunks, strict=True))
    others: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    small = list(bundles(checkpoint, min(PIECE_BYTES, batch_bytes)))
    for bundle in small:
        others[bundle.shard.file.ps_id].append((bundle.start, bundle.end))
    openers = openings(open_store(checkpoint.version.location))
    sums.add_rest(checkpoint.shards, readers, workers=openers, others=others)
    found = fingerprint_checkpoint(
        checkpoint,
        workers=workers,
        batch_bytes=batch_bytes,
        piece_bytes=piece_bytes,
        reporter=reporter,
        sums=sums,
        small=small,
    )
    return found, [sums.finish(reader.path, workers=workers) for reader in readers.values()]
