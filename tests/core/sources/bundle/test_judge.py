"""Bundles that TensorFlow writes at the time of the test, in a process of its own, and what it reads from them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import open_checkpoint
from edl_ckpt.core.kernel.checksums import crc32c
from foreign import run_judge

pytestmark = pytest.mark.frameworks


def compare(out: Path, count: int, seed: int) -> None:
    """Compare names, dtypes, shapes, checksums and all bytes of a random bundle."""
    run_judge("EDL_CKPT_TEST_TENSORFLOW_PYTHON", "tensorflow_bundle.py", str(out), str(count), str(seed))
    truth = np.load(out / "truth.npz")
    with open_checkpoint(str(out / "model.ckpt-1")) as checkpoint:
        listed = [
            f"{name}\t{entry.dtype.name}\t{','.join(map(str, entry.shape))}"
            for name, entry in ((name, checkpoint.find_variable(name)[1]) for name in checkpoint.variable_names)
        ]
        assert listed == sorted(truth["names"].tolist(), key=lambda line: line.partition("\t")[0])
        assert len(listed) == count
        numbers = {line.partition("\t")[0]: k for k, line in enumerate(truth["names"].tolist())}
        for name, number in numbers.items():
            values = checkpoint.variable(name, bits=True)
            assert values.tobytes() == truth[f"v{number}"].tobytes(), name
        checked = 0
        for shard in checkpoint.shards:
            for stored in shard.sums:
                (extent,) = stored.extents
                data = checkpoint.reader(shard, extent).read(extent.start, extent.size_bytes)
                assert crc32c(data) == stored.value, stored.subject
                checked += 1
        assert checked >= count


def test_random_variables(tmp_path: Path) -> None:
    """300 variables of every dtype, whole and in slices, in three data files, are those that TensorFlow reads."""
    compare(tmp_path, 300, 1)


@pytest.mark.hours
def test_ten_thousand_variables(tmp_path: Path) -> None:
    """The same with ten thousand."""
    compare(tmp_path, 10_000, 2)
