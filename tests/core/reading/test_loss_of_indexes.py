"""What an index of the whole version counts is not guessed: loss by boxes of torch and by parts of TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import torch_items
from bundle_files import block as bundle_block
from bundle_files import entry, masked, table
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.reading.loss import LostTable, loss_of
from edl_ckpt.core.reading.reader import open_checkpoint

ROWS = "model.ebc.embedding_bags.user.weight"
TABLE = "model.ebc.embedding_bags.item.weight"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A table over three ranks by rows, and one that the first rank has alone."""
    rng = np.random.default_rng(0)
    parts = torch_items.boxes(ROWS, rng.standard_normal((1003, 4), np.float32), [[335, 670], []], 3)
    parts += torch_items.boxes(TABLE, rng.standard_normal((211, 4), np.float32), [[], []], 3)
    torch_items.write_step(tmp_path / "run/step_9", parts)
    return tmp_path / "run"


@pytest.mark.parametrize("cut", [None, 1000])
def test_loss_is_counted_by_boxes(run: Path, cut: int | None) -> None:
    """Without the file of a rank, or without its end, exactly the rows of its boxes are lost, of no other table."""
    path = run / "step_9/__2_0.distcp"
    if cut is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:cut])
    (version,) = list_versions(run).versions
    with open_checkpoint(version, partial=True) as checkpoint:
        loss = loss_of(checkpoint)
    assert loss.tables == (LostTable(ROWS, 333, 1003, 333 / 1003, is_exact=True),)
    lines = list(loss.lines())
    assert any("333 of 1,003 rows (33 %) are lost" in line and "about" not in line for line in lines), lines


def test_loss_of_a_bundle_is_counted_by_parts(tmp_path: Path) -> None:
    """Of a table in two parts, the rows of the part whose data file is gone are lost."""
    header = b"\x08\x02\x1a\x02\x08\x01"
    pairs, data = [(b"", header)], [bytearray(), bytearray()]
    for number, rows in enumerate((30, 10)):
        for name, array in (("keys", np.arange(rows)), ("values", np.ones((rows, 4), np.float32))):
            octets = array.tobytes()
            start, dtype = len(data[number]), 9 if name == "keys" else 1
            message = entry(dtype, array.shape, start, len(octets), shard=number, crc=masked(octets))
            pairs.append((f"emb/part_{number}-{name}".encode(), message))
            data[number] += octets
    place = tmp_path / "run"
    place.mkdir()
    (place / "model.ckpt-3.index").write_bytes(table([bundle_block(pairs)]))
    (place / "model.ckpt-3.data-00000-of-00002").write_bytes(data[0])
    (version,) = list_versions(place).versions
    with open_checkpoint(version, partial=True) as checkpoint:
        assert loss_of(checkpoint).tables == (LostTable("emb", 10, 40, 0.25, is_exact=True),)
