"""Verification on a cluster: the same result as on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_unchecked
from checkpoints import only, save_large, save_mixed
from edl_ckpt.core import Table, verify_and_seal, verify_version
from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store


def same_on_both(location: Path | str, client: Any, level: Level = "deep") -> None:
    """Compare the verification of the only version of a location here and on a cluster.

    When it was done may differ, and so whether the files were old enough then for its verdict to be remembered.
    """
    here, there = (verify_version(only(location), level=level, executor=executor) for executor in (None, client))
    there, here = (replace(each, bytes_read=0, checks=(), begun=0.0, files="") for each in (there, here))
    assert there == here


@pytest.mark.parametrize("level", ["quick", "default"])
def test_whole(tmp_path: Path, client: Any, level: Level) -> None:
    """A sealed version with variables and tables of several kinds verifies alike, at the levels that read no values."""
    save_mixed(tmp_path)
    same_on_both(tmp_path, client, level)


def test_faults(tmp_path: Path, client: Any) -> None:
    """Repeated, negative and misplaced ids, odd values, a flipped bit and a truncated shard give the same findings."""
    ids = np.array([*range(0, 4000, 2), 8, 10, 8, -3], np.int64)
    rows = np.zeros((len(ids), 2), np.float32)
    rows[7], rows[9] = np.nan, np.inf
    directory = write_unchecked(tmp_path / "ids", 5, 2, {"t": Table(ids, rows)})
    first, second = (directory / f"variables-{i}-of-2.ckpt" for i in (0, 1))
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    same_on_both(tmp_path / "ids", client)
    save_mixed(tmp_path / "bits")
    shard = sorted((tmp_path / "bits" / "version-7").iterdir())[1]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 4
    shard.write_bytes(data)
    same_on_both(tmp_path / "bits", client)
    shard.write_bytes(data[: len(data) // 2])
    same_on_both(tmp_path / "bits", client)


def test_many_pieces(tmp_path: Path, processes: Any) -> None:
    """A table in several tasks has the sums of its chunks; values are read once, but for the ends of tasks."""
    save_large(tmp_path)
    executor = ClusterExecutor(processes)
    sealed = verify_and_seal(only(tmp_path), executor=executor)
    seal = read_seal(open_store(str(tmp_path)), 7)
    assert sealed.ok
    assert seal is not None
    assert verify_version(only(tmp_path), level="deep").ok  # the seal that a cluster made
    same_on_both(tmp_path, executor)
    again = verify_version(only(tmp_path), level="deep", executor=executor)
    assert again.bytes_read < 1.3 * only(tmp_path).size_bytes  # ids twice, and four ends of 2 MiB
