"""Proving a version by reading it back."""

from __future__ import annotations

from collections.abc import Mapping

from edl_ckpt.core.checkpoint.fingerprint import ContentSketch, Fingerprint, fingerprint_checkpoint, fingerprint_of
from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES, VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.sealing import make_seal
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.progress import SILENT, Progress
from edl_ckpt.core.state.seal import Seal


def prove_version(
    written: Version,
    read: Fingerprint | ContentSketch,
    *,
    staged: bool,
    workers: int,
    batch_bytes: int = VALUE_BATCH_BYTES,
    piece_bytes: int = PIECE_BYTES,
    storage_options: Mapping[str, str] | None = None,
    progress: Progress = SILENT,
) -> Seal:
    """Read back what was written and return its seal; EdlCkptError when its fingerprint is not that of what was read.

    What was read is told by its fingerprint, or, where it was no checkpoint, by the sketch of its values.
    """
    with open_checkpoint(written, staged=staged, storage_options=storage_options) as checkpoint:
        progress.start("proving", written.size_bytes)
        proof = fingerprint_checkpoint(
            checkpoint, workers=workers, batch_bytes=batch_bytes, piece_bytes=piece_bytes, progress=progress
        )
        expected = fingerprint_of(checkpoint, read) if isinstance(read, ContentSketch) else read
        if proof.text != expected.text:
            names = ", ".join(map(repr, proof.differing(expected)[:5]))
            raise EdlCkptError(
                f"what was written is not what was read ({names}); nothing was published",
                path=written.path,
                hint="suspect the memory or the disk of this machine",
            )
        return make_seal(checkpoint, proof.text, workers=workers, progress=progress)
