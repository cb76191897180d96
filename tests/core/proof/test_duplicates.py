"""Ids that occur twice are found whichever way their range lets them be looked for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from builders import write_checkpoint, write_unchecked
from checkpoints import at
from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.parallel import Threads
from edl_ckpt.core.kernel.buckets import Buckets
from edl_ckpt.core.operations.save import Table as SavedTable
from edl_ckpt.core.proof import duplicates, repeated_ids
from edl_ckpt.core.proof.duplicates import check_unique, check_unique_ids
from edl_ckpt.core.proof.id_order import order_of
from edl_ckpt.core.reading.blocks import read_piece
from edl_ckpt.core.reading.pieces import ids_at
from edl_ckpt.proto import model_v4_pb2
from oracle import Model, Table


@pytest.mark.parametrize("step", [1, 7, 2**40 + 1], ids=["dense", "spread", "sparse"])
@pytest.mark.parametrize("lowest", [0, -50])
def test_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, lowest: int) -> None:
    """Shuffled ids pass, and one that is there twice is named, by marks or by sorting."""
    buckets = Mock(wraps=Buckets)
    monkeypatch.setattr(repeated_ids, "Buckets", buckets)
    monkeypatch.setattr(repeated_ids, "SORTED_ROWS", 0)
    ids = [int(i) * step + lowest for i in np.random.default_rng(5).permutation(100)]
    table = Table(1, "uniform", "float32", dict.fromkeys(ids, b"\x00\x00\x00\x00"))
    path = write_checkpoint(tmp_path, Model(7, {}, {"t": table}), 2)
    with open_checkpoint(at(tmp_path)) as checkpoint:
        check_unique_ids(checkpoint, Job.here(1))
    assert buckets.called is (step == 2**40 + 1)  # the range of these ids is too wide for a mark each
    shard = next(path.glob("variables-1-*"))
    model = model_v4_pb2.Model.FromString(shard.read_bytes())
    again = model.embedding_tables["t"].ids
    again[3] = again[30]
    shard.write_bytes(model.SerializeToString())
    with open_checkpoint(at(tmp_path)) as checkpoint, pytest.raises(CorruptError, match=str(again[30])):
        check_unique_ids(checkpoint, Job.here(1))


@pytest.mark.parametrize("max_memory_bytes", [None, 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_in_buckets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, max_memory_bytes: int | None
) -> None:
    """Of many ids in no order, in one turn and in several, one that is there twice is counted and named."""
    monkeypatch.setattr(duplicates, "SORTED_AT_ONCE", 30_000)
    monkeypatch.setattr(repeated_ids, "SORTED_AT_ONCE", 30_000)
    monkeypatch.setattr(duplicates, "LEAST_AT_ONCE", 2000)
    ids = np.random.default_rng(5).permutation(np.arange(-50_000, 50_000) * 7_919_000_001)
    for ps_num, repeated in ((1, 0), (2, 0), (1, 1), (1, 40_000)):
        place = tmp_path / f"{ps_num}-{repeated}"
        every = np.concatenate([ids, ids[:repeated]])
        write_unchecked(place, 7, ps_num, {"t": SavedTable(every, np.zeros((len(every), 1), np.int8))})
        with open_checkpoint(at(place)) as checkpoint:
            places = list(ids_at(checkpoint, 0, values=False, piece_bytes=90_000))
            pieces = [place.piece(checkpoint) for place in places]
            orders = [order_of(read_piece(checkpoint, piece).ids, piece.shard.file) for piece in pieces]
            job = Job(Threads(workers), workers, max_memory_bytes)
            check = partial(check_unique, checkpoint, job, places, orders)
            if not repeated:
                check()
                continue
            more = rf" \(and {repeated - 1} more\)" if repeated > 1 else ""
            with pytest.raises(CorruptError, match=rf"id {ids[:repeated].min()} occurs twice{more}\n"):
                check()
