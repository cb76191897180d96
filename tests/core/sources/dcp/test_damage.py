"""Truncated and flipped files of torch: each is a typed error or changes nothing that is read."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.sources.dcp import format as dcp
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.hostile import caused_by_bytes
from edl_ckpt.core.storage.interface import BytesReader
from torch_checkpoints import SAVED

STEPS = [SAVED / "torchrec/step_2", SAVED / "mch/step_6", SAVED / "dtensor/step_1"]
TYPED = (CorruptError, UnsupportedError)


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield truncations, flipped bits, changed bytes, and pieces that are cut out, repeated or moved."""
    rng = random.Random(seed)
    for _ in range(count):
        changed = bytearray(data)
        kind, at = rng.randrange(6), rng.randrange(len(data))
        if kind == 0:
            del changed[at:]
        elif kind == 1:
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            changed[at] = rng.choice(b"\x00\xff.}us(h\x94\x85RbXK\x95" + bytes(rng.randrange(256) for _ in range(3)))
        elif kind == 3:
            del changed[at : at + rng.randrange(1, 40)]
        elif kind == 4:
            changed[at:at] = changed[at : at + rng.randrange(1, 40)] * rng.randrange(1, 5)
        else:
            other = rng.randrange(len(data))
            changed[at : at + 8] = changed[other : other + 8]
        yield bytes(changed)


def try_index(data: bytes) -> None:
    """Read all of an index."""
    try:
        dcp.digest(BytesReader(data, ".metadata"))
        root = metadata.read(BytesReader(data, ".metadata"))
        list(metadata.tensors(root))
        list(metadata.items(root))
    except TYPED:
        pass


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.parent.name)
def test_damaged_indexes_are_typed_errors(step: Path) -> None:
    """No mutant of an index gives a traceback."""
    for data in mutants((step / ".metadata").read_bytes(), 300, seed=1):
        try_index(data)


def try_step(step: Path) -> BaseException | None:
    """Open a step, and read everything of it; return what raised the error that came out."""
    try:
        with open_checkpoint(f"{step.parent}@{step.name.rpartition('_')[2]}") as checkpoint:
            for name in checkpoint.variable_names:
                checkpoint.variable(name, bits=True)
            for name in checkpoint.table_names:
                checkpoint.table(name).to_numpy()
    except EdlCkptError as error:
        return error.__cause__
    return None


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.parent.name)
def test_damaged_items_are_typed_errors(step: Path, tmp_path: Path) -> None:
    """No mutant of a data file, and no mutant of an index next to whole data files, gives a traceback."""
    copy = Path(shutil.copytree(step, tmp_path / step.name))
    for path in sorted(copy.iterdir()):
        data = path.read_bytes()
        for changed in mutants(data, 12, seed=2):
            path.write_bytes(changed)
            assert not isinstance(try_step(copy), caused_by_bytes())  # the reader itself says what is wrong
        path.write_bytes(data)


def test_a_member_of_another_archive(tmp_path: Path) -> None:
    """A flipped bit in the directory of an item, in the archive of one member, is damage: torch does not find it."""
    copy = Path(shutil.copytree(SAVED / "dtensor/step_1", tmp_path / "step_1"))
    path = copy / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    at = data.index(b"data/0", data.index(b"PK\1\2"))
    data[at - 2] ^= 1
    path.write_bytes(data)
    result = verify_version(f"{tmp_path}@1", level="deep")
    assert not result.ok
    assert any("under another name of its archive" in finding.message for finding in result.findings)


@pytest.mark.hours
def test_a_hundred_thousand_mutants() -> None:
    """As the first of these tests, with 100,000 mutants: `pytest -n 0 -m hours tests/core/sources/dcp`."""
    for number, step in enumerate(STEPS):
        for data in mutants((step / ".metadata").read_bytes(), 33_334, seed=3 + number):
            try_index(data)
