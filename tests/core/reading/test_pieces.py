"""How values of far storage are looked at: in turns, and in memory that is used again."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import run_parallel
from edl_ckpt.core.operations.save import Table, save_checkpoint
from edl_ckpt.core.proof.values import fingerprint_checkpoint
from edl_ckpt.core.reading.blocks import IdPiece, read_piece
from edl_ckpt.core.reading.pieces import count_rows, ids_at
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.reading.row_batches import Looks, row_batches
from edl_ckpt.core.storage.local import LocalReader

ROWS = np.arange(40_000, dtype=np.float32).reshape(-1, 4)


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Return a checkpoint of 2 shards whose files are read as those of far storage: into memory, in large blocks."""
    save_checkpoint(tmp_path, 1, 2, variables={}, tables={"t": Table(np.arange(len(ROWS)), ROWS)})
    monkeypatch.setattr(LocalReader, "block_bytes", 4096)
    monkeypatch.setattr(LocalReader, "view", lambda *_: None)
    return open_checkpoint(tmp_path)


def _pieces(far: Checkpoint) -> list[IdPiece]:
    places = ids_at(far, 0, values=True, piece_bytes=1024)
    return [place.piece(far) for place in count_rows(far, places, Job.here(1), piece_bytes=1024)]


def test_no_more_look_than_cores(far: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one core, one of many threads looks at values at a time, and all of them get their own rows."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    looks, lock, looking = Looks(), threading.Lock(), set[int]()

    def add(number: int) -> None:
        piece = pieces[number]
        ids = read_piece(far, piece).ids
        for some, rows in row_batches(far, piece, len(ids), 4096, looks=looks):
            with lock:
                looking.add(number)
                assert looking == {number}
            assert np.array_equal(rows.view(np.float32), ROWS[ids[some]])
            looking.discard(number)

    with far:
        pieces = _pieces(far)
        assert len(pieces) > 8
        assert len(list(run_parallel(add, range(len(pieces)), 8))) == len(pieces)


def test_memory_is_used_again(far: Checkpoint) -> None:
    """One piece after the other has its rows in the same memory, and whoever is left early gives it back."""
    looks = Looks()
    with far:
        pieces = _pieces(far)
        first, *others = (next(row_batches(far, piece, piece.rows, 4096, looks=looks))[1] for piece in pieces)
        assert all(np.shares_memory(first, other) for other in others)
        far_text = fingerprint_checkpoint(far, workers=3).text
    with open_checkpoint(far.version) as near:
        assert fingerprint_checkpoint(near).text == far_text


def test_another_size() -> None:
    """Memory that is too small is replaced, and each name has its own."""
    memory = Looks().memory
    for size in (10, 5, 20):
        one, other, again = memory.take(size), memory.take(size, "other"), memory.take(size)
        assert one.shape == other.shape == (size,)
        assert not np.shares_memory(one, other)
        assert np.shares_memory(one, again)
