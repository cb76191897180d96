"""Checksums in framing are found without a question to the format, and filled in as the format does."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints import at
from edl_ckpt.core import Changes, open_checkpoint
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.moving.conversion import plan_conversion
from edl_ckpt.core.moving.extents import Span
from edl_ckpt.core.moving.sealed import SealedBytes, sealed_framing
from foreign import SYSTEMS


class Known(Crc32):
    """A checksum of so many bytes that has a value without them."""

    def __init__(self, value: int, size_bytes: int) -> None:
        super().__init__()
        self.take({0: (size_bytes, value)})


@pytest.mark.parametrize(
    ("folder", "number", "system"),
    [("dcp/everything", 3, "dcp"), ("dcp/torchrec", 2, "torch-checkpointing"), ("bundle/deeprec", 100, "tensorflow")],
)
def test_what_is_filled_in_is_what_the_format_writes(folder: Path, number: int, system: str) -> None:
    """Whatever the checksums are; an index with checksums of itself is left out."""
    with open_checkpoint(at(SYSTEMS / folder, number)) as source:
        job = Job.here(1, reporter=SILENT)
        destination = plan_conversion(source, system, 2, Changes(), job, number=number).destination
        sums, crcs = dict[tuple[str, int], int](), dict[tuple[int, int], Crc32]()
        for count, (key, file, offset, size_bytes) in enumerate(destination.summed):
            sums[key] = (count + 1) * 77_777_777 % (1 << 32) if size_bytes else 0
            if size_bytes:
                crcs[file, offset] = Known(sums[key], size_bytes)
        written = {(file, offset): data for file, offset, data in destination.literals(sums)}
        found = {(some.file, some.offset): some.filled(crcs) for some in sealed_framing(destination)}
    assert found.items() <= written.items()
    left = {destination.number(name) for name in destination.files if name.endswith(".index")}
    assert {file for file, _ in written.keys() - found.keys()} == left


def test_checksums_of_other_files_are_left_out() -> None:
    """A task knows the values of its own parts, and not those of other files."""
    summed = [(("a", 0), 0, 10, 4), (("b", 0), 1, 10, 4)]

    def literals(sums: Any) -> Any:
        yield 0, 14, b"x" + sums["a", 0].to_bytes(4, "little") + b"y"
        yield 0, 30, sums["b", 0].to_bytes(4, "little")
        yield 1, 0, b"%d" % sums["b", 0]
        yield 1, 50, b"z"

    destination: Any = SimpleNamespace(summed=summed, computed=(), literals=literals)
    found = list(sealed_framing(destination))
    assert [(some.file, some.offset) for some in found] == [(0, 14), (1, 50)]
    assert found[0].sums == ((1, Span(10, 14)),)
    assert found[0].filled({(0, 10): Known(0x01020304, 4)}) == b"x\x04\x03\x02\x01y"
    assert found[1] == SealedBytes(1, 50, b"z")
