"""Checksums from bytes that arrive in any order, beside the checksums of the whole file read at once."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.model.seals import Chunk
from edl_ckpt.core.proof import sealing as summing
from edl_ckpt.core.proof.sealing import ChunkSums, checksum
from edl_ckpt.core.storage.local import LocalReader

DATA = bytes(range(251)) * 40


def chunks_at(*edges: int) -> list[Chunk]:
    """Return chunks between these offsets of DATA."""
    inner = sorted({edge % len(DATA) for edge in edges} - {0})
    whole = [0, *inner, len(DATA)]
    return [Chunk("", "", k, a, b) for k, (a, b) in enumerate(pairwise(whole))]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of DATA."""
    path = tmp_path_factory.mktemp("summing") / "data"
    path.write_bytes(DATA)
    return path


@given(
    edges=st.lists(st.integers(0, 10_000), max_size=6),
    cuts=st.lists(st.integers(1, 10_000), max_size=12),
    order=st.randoms(use_true_random=False),
    left_out=st.sets(st.integers(0, 12)),
    twice=st.booleans(),
)
def test_any_order(
    file: Path, edges: list[int], cuts: list[int], order: random.Random, left_out: set[int], twice: bool
) -> None:
    """Pieces in any order, some of them missing or there twice, give the checksums of the file."""
    chunks = chunks_at(*edges)
    pieces = [(c.start, c.end) for c in chunks_at(*cuts)]
    order.shuffle(pieces)
    with LocalReader(str(file)) as reader:
        sums = ChunkSums([(reader, chunks)])
        for number, (start, end) in enumerate(pieces * (1 + twice)):
            if number % len(pieces) not in left_out:
                sums.add(reader, start, DATA[start:end])
        assert [c.sum for c in sums.finish(reader.path)] == [checksum(DATA[c.start : c.end]) for c in chunks]
        assert sums._waiting == 0 or left_out


def test_what_does_not_fit_is_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where too many bytes would wait for those before them, the chunk is read at the end, and only that chunk."""
    monkeypatch.setattr(summing, "WAITING_BYTES", 1000)
    with LocalReader(str(file)) as reader:
        sums = ChunkSums([(reader, chunks_at(5000))])
        for start in (0, 7000, 6500, 6000, 5500):
            sums.add(reader, start, DATA[start : start + (5000 if start == 0 else 500)])
        assert sums._waiting <= 1000
        found = sums.finish(reader.path)
        assert [c.sum for c in found] == [checksum(DATA[:5000]), checksum(DATA[5000:])]
        assert reader.bytes_read == len(DATA) - 5000


def test_a_changed_byte_shows(file: Path) -> None:
    """The checksum is that of the bytes that were added, and not of the file."""
    with LocalReader(str(file)) as reader:
        sums = ChunkSums([(reader, chunks_at(5000))])
        sums.add(reader, 0, b"?" + DATA[1:])
        assert sums.finish(reader.path)[0].sum == checksum(b"?" + DATA[1:5000])
        assert reader.bytes_read == 0


def test_bytes_that_come_twice_count_once(file: Path) -> None:
    """Half of a chunk twice is not the whole chunk: the other half is read."""
    with LocalReader(str(file)) as reader:
        sums = ChunkSums([(reader, chunks_at(10_000))])
        sums.add(reader, 0, DATA[:5000])
        sums.add(reader, 0, DATA[:5000])
        assert sums.finish(reader.path)[0].sum == checksum(DATA[:10_000])
