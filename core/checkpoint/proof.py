"""The proof of a written version: it is read back, and its fingerprint must be that of its source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.fingerprint import (
    ContentSketch,
    Fingerprint,
    fingerprint_checkpoint,
    fingerprint_of,
    value_bytes,
)
from edl_ckpt.core.checkpoint.reader import Checkpoint, open_checkpoint, openings
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, Bundle, bundles
from edl_ckpt.core.checkpoint.sealing import cut, seal_of_chunks
from edl_ckpt.core.checkpoint.summing import ChunkSums
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.parallel import run_parallel
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.seal import Seal
from edl_ckpt.core.storage import open_store


def prove_version(
    written: Version,
    source: Fingerprint | ContentSketch,
    *,
    staged: bool,
    workers: int,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    reporter: Reporter = SILENT,
) -> Seal:
    """Read back a written version and return its seal; EdlCkptError when its content is not that of the source.

    `source` is the fingerprint of the source, or the sketch of its values when the source is not a checkpoint.
    """
    with open_checkpoint(written, staged=staged) as checkpoint:
        reporter.start("proving", value_bytes(checkpoint))
        sums = _sums_to_make(checkpoint, bundles(checkpoint, min(PIECE_BYTES, batch_bytes)))
        proof = fingerprint_checkpoint(
            checkpoint, workers=workers, batch_bytes=batch_bytes, piece_bytes=piece_bytes, reporter=reporter, sums=sums
        )
        expected = fingerprint_of(checkpoint, source) if isinstance(source, ContentSketch) else source
        if proof.text != expected.text:
            names = ", ".join(map(repr, proof.differing(expected)[:5]))
            raise EdlCkptError(
                f"the written version differs from its source ({names}); nothing was published",
                path=written.path,
                hint="check the memory and the disk of this machine",
            )
        done = [sums.finish(checkpoint.reader(shard).path, workers=workers) for shard in checkpoint.shards]
        return seal_of_chunks(checkpoint, proof.text, done)


def _sums_to_make(checkpoint: Checkpoint, small: Iterable[Bundle]) -> ChunkSums:
    """Cut the shards into chunks, whose bytes are summed as they are read for the proof."""
    workers = openings(open_store(checkpoint.version.location))
    readers = [checkpoint.reader(shard) for shard in checkpoint.shards]
    pairs = list(zip(checkpoint.shards, readers, strict=True))
    chunks = run_parallel(lambda pair: cut(*pair), pairs, workers)
    sums = ChunkSums(zip(readers, chunks, strict=True))
    others: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for bundle in small:
        others[bundle.shard.file.ps_id].append((bundle.start, bundle.end))
    readers_of = {shard.file.ps_id: reader for shard, reader in pairs}
    sums.add_rest(checkpoint.shards, readers_of, workers=workers, others=others)
    return sums
