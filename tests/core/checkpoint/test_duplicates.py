"""Ids that occur twice are found whichever way their range lets them be looked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builders import write_checkpoint
from checkpoints import at
from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.checkpoint import duplicates
from edl_ckpt.core.checkpoint.duplicates import check_unique_ids
from edl_ckpt.core.errors import CorruptError
from edl_ckpt.proto import model_v4_pb2
from oracle import Model, Table


@pytest.mark.parametrize("step", [1, 7, 2**40 + 1], ids=["dense", "spread", "sparse"])
@pytest.mark.parametrize("lowest", [0, -50])
def test_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, lowest: int) -> None:
    """12.4: shuffled ids pass, and one that is there twice is named, by marks or by sorting."""
    marked: list[int] = []
    real = duplicates._are_unique

    def noted(checkpoint: object, pieces: object, rows: int, low: int, span: int) -> bool:
        marked.append(span)
        return real(checkpoint, pieces, rows, low, span)  # type: ignore[arg-type]

    monkeypatch.setattr(duplicates, "_are_unique", noted)
    ids = [int(i) * step + lowest for i in np.random.default_rng(5).permutation(100)]
    table = Table(1, "uniform", "float32", dict.fromkeys(ids, b"\x00\x00\x00\x00"))
    path = write_checkpoint(tmp_path, Model(7, {}, {"t": table}), 2)
    with open_checkpoint(at(tmp_path)) as checkpoint:
        check_unique_ids(checkpoint, workers=1)
    shard = next(path.glob("variables-1-*"))
    model = model_v4_pb2.Model.FromString(shard.read_bytes())
    again = model.embedding_tables["t"].ids
    again[3] = again[30]
    shard.write_bytes(model.SerializeToString())
    with open_checkpoint(at(tmp_path)) as checkpoint, pytest.raises(CorruptError, match=str(again[30])):
        check_unique_ids(checkpoint, workers=1)
    assert bool(marked) is (step < 2**40)
