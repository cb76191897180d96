"""The proof of a written version: it is read back, and its fingerprint must be that of its source."""

from __future__ import annotations

from edl_ckpt.core.checkpoint.blocks import VALUE_BATCH_BYTES
from edl_ckpt.core.checkpoint.fingerprint import (
    ContentSketch,
    Fingerprint,
    fingerprint_checkpoint,
    fingerprint_of,
    value_bytes,
)
from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.checkpoint.scan import PIECE_BYTES
from edl_ckpt.core.checkpoint.sealing import make_seal
from edl_ckpt.core.errors import EdlCkptError
from edl_ckpt.core.format.model import Version
from edl_ckpt.core.progress import SILENT, Reporter
from edl_ckpt.core.state.seal import Seal


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
        proof = fingerprint_checkpoint(
            checkpoint, workers=workers, batch_bytes=batch_bytes, piece_bytes=piece_bytes, reporter=reporter
        )
        expected = fingerprint_of(checkpoint, source) if isinstance(source, ContentSketch) else source
        if proof.text != expected.text:
            names = ", ".join(map(repr, proof.differing(expected)[:5]))
            raise EdlCkptError(
                f"the written version differs from its source ({names}); nothing was published",
                path=written.path,
                hint="check the memory and the disk of this machine",
            )
        return make_seal(checkpoint, proof.text, workers=workers, reporter=reporter)
