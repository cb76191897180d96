"""Runs of bytes at many places of a file, near and far apart, in any order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.reading import blocks
from edl_ckpt.core.storage.local import LocalReader


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Return a sparse file of 80 MB with some bytes in it, and its content."""
    path = tmp_path_factory.mktemp("runs") / "file"
    content = np.random.default_rng(0).integers(0, 256, 1 << 20, np.uint8).tobytes() * 80
    path.write_bytes(content)
    return path, content


@pytest.mark.parametrize("kernel", [True, False])
@given(seed=st.integers(0, 1 << 32), runs=st.sampled_from([0, 1, 50, 3000]), size=st.sampled_from([1, 8, 16, 300]))
def test_runs_are_what_stands_there(file: tuple[Path, bytes], kernel: bool, seed: int, runs: int, size: int) -> None:
    """One by one or in stretches, with the kernel and without it, each run is in its place."""
    path, content = file
    starts = np.random.default_rng(seed).integers(0, len(content) - size, runs)
    with pytest.MonkeyPatch.context() as patch, LocalReader(str(path)) as reader:
        if not kernel:
            patch.setattr(bulk, "kernel", None)
        data = blocks.read_runs(reader, starts, size)
        assert data.shape == (runs, size)
        assert all(data[k].tobytes() == content[start : start + size] for k, start in enumerate(starts.tolist()))
        assert (reader.bytes_read >= runs * size) or not runs


def test_a_file_that_ends_before_a_run(file: tuple[Path, bytes]) -> None:
    """The error is that of any read, and names the file."""
    path, content = file
    starts = np.append(np.arange(0, len(content), len(content) // 2000), len(content) - 4)
    with LocalReader(str(path)) as reader, pytest.raises(LockedError, match="became shorter") as caught:
        blocks.read_runs(reader, starts, 8)
    assert caught.value.path == str(path)
