"""An import on a cluster: the same bytes in every file, from all that workers can read themselves."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from checkpoints import only, save_large, save_mixed, shards_of
from cluster_tasks import renewed
from edl_ckpt.core import (
    CorruptError,
    LockedError,
    UnsupportedError,
    import_arrays,
    open_checkpoint,
    verify_version,
)
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.moving.run import Move
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.importing import plan_arrays
from edl_ckpt.core.operations.importing.source import NamedArrays


def same_import(source: Path, ps_num: int, client: Any, tmp: Path) -> None:
    """Import arrays here and on a cluster; compare every byte, and verify the seal."""
    here, there = (
        import_arrays(source, tmp / name, 5, ps_num, executor=executor)
        for name, executor in (("here", None), ("there", client))
    )
    assert shards_of(tmp / "there") == shards_of(tmp / "here")
    assert (there.fingerprint, there.rows, there.bytes_written) == (here.fingerprint, here.rows, here.size_bytes)
    assert verify_version(only(tmp / "there"), level="deep").sealed
    assert not list((tmp / "there").glob(".edl-ckpt-0/stage-0/*"))


def test_several_files(tmp_path: Path, client: Any) -> None:
    """Several files in the stored order become the same shards, with the source's values."""
    save_mixed(tmp_path / "run")
    name, order = "many.safetensors", Selection(order="stored")
    export_version(only(tmp_path / "run"), tmp_path / name, selection=order, max_shard_bytes=1 << 20)
    same_import(tmp_path / name, 1, client, tmp_path)
    assert only(tmp_path / "there").fingerprint == only(tmp_path / "run").fingerprint


def test_arrays_of_others(tmp_path: Path, client: Any) -> None:
    """What safetensors itself wrote, with narrow ids in any order, has its rows where they belong."""
    ids = np.random.default_rng(1).permutation(70_000).astype(np.int32)
    rows = np.arange(140_000, dtype=np.float32).reshape(-1, 2)
    save_file({"t.ids": ids, "t.vectors": rows, "step": np.array([7])}, tmp_path / "m.safetensors")
    same_import(tmp_path / "m.safetensors", 3, client, tmp_path)
    with open_checkpoint(only(tmp_path / "there")) as checkpoint:
        for found, values in checkpoint.table("t"):
            assert np.array_equal(values, rows[np.argsort(ids)][found])


def test_work_before(tmp_path: Path, client: Any) -> None:
    """An import, and the plan of one, count the bytes that they read, not those that their executor read before."""
    arrays: dict[str, Any] = {"t.ids": np.arange(900), "t.vectors": np.ones((900, 2), np.float32)}
    save_file(arrays, tmp_path / "m.safetensors")
    used, source = ClusterExecutor(client), tmp_path / "m.safetensors"
    planned = [plan_arrays(source, tmp_path / "out", 5, 2, executor=used)[0].survey.bytes_read for _ in range(2)]
    made = [import_arrays(source, tmp_path / "out", number, 2, executor=used).bytes_read for number in (5, 6)]
    assert planned[0] == planned[1] > 900 * 8
    assert made[0] == made[1] > planned[0]
    assert verify_version(f"{tmp_path / 'out'}@6", level="deep").sealed


def test_an_id_twice(tmp_path: Path, client: Any) -> None:
    """An id that a table has twice is the same error, and nothing is written."""
    ids = np.array([*range(90_000, 0, -1), 7])
    save_file({"t.ids": ids, "t.vectors": np.ones((len(ids), 2), np.float32)}, tmp_path / "m.safetensors")
    errors = []
    for executor in (None, client):
        with pytest.raises(CorruptError) as caught:
            import_arrays(tmp_path / "m.safetensors", tmp_path / "out", 5, 3, executor=executor)
        errors.append(str(caught.value))
        assert not (tmp_path / "out").exists()
    assert errors[0] == errors[1]
    assert "id 7 occurs twice" in errors[0]


@pytest.mark.slow
def test_killed_workers(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed while it writes changes nothing of the result."""
    save_large(tmp_path / "run")
    export_version(only(tmp_path / "run"), tmp_path / "m.safetensors")
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 18)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.TASKS_A_THREAD", 64)
    pids = sorted(processes.run(os.getpid).values())
    real = Move.hand_out

    def hand_out(*arguments: Any) -> Any:
        killer = threading.Timer(0.1, os.kill, (pids[0], signal.SIGKILL))
        killer.start()
        try:
            return real(*arguments)
        finally:
            killer.join()

    monkeypatch.setattr(Move, "hand_out", hand_out)
    try:
        same_import(tmp_path / "m.safetensors", 3, processes, tmp_path)
    finally:
        renewed(processes, pids[0])


def test_a_file_that_changes(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that are replaced while they are counted are an error, and nothing becomes visible."""
    arrays: dict[str, Any] = {"t.ids": np.arange(900), "t.vectors": np.ones((900, 2), np.float32)}
    save_file(arrays, tmp_path / "m.safetensors")
    real = NamedArrays.open

    def replace(self: NamedArrays) -> Any:
        save_file(arrays, tmp_path / "new")
        os.replace(tmp_path / "new", tmp_path / "m.safetensors")
        return real(self)

    monkeypatch.setattr(NamedArrays, "open", replace)
    with pytest.raises(LockedError, match="another file"):
        import_arrays(tmp_path / "m.safetensors", tmp_path / "out", 5, 2, executor=client)
    assert not (tmp_path / "out").exists()


def test_an_archive_with_a_wrong_byte(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksums of an archive are compared by workers, in pieces, as this machine compares them."""
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 16)
    np.savez(tmp_path / "m.npz", a=np.arange(3), w=np.random.default_rng(5).random(40_000))
    same_import(tmp_path / "m.npz", 2, client, tmp_path)
    data = bytearray((tmp_path / "m.npz").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "m.npz").write_bytes(data)
    errors = []
    for executor in (None, client):
        with pytest.raises(CorruptError, match=r"'w': the values have the crc32 \w+, and the file says \w+") as caught:
            import_arrays(tmp_path / "m.npz", tmp_path / "out", 5, 3, executor=executor)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["m.npz", "m.parquet"])
def test_refused(tmp_path: Path, client: Any, name: str) -> None:
    """What this machine must unpack is refused before any work, and so is a bucket."""
    np.savez_compressed(tmp_path / "m.npz", a=np.zeros(3))
    (tmp_path / "m.parquet").write_bytes(b"PAR1")
    refused = {"m.npz": r"'a.npy' is compressed.*stored", "m.parquet": r"import checkpoints, \.safetensors, and"}
    with pytest.raises(UnsupportedError, match=refused[name]) as caught:
        import_arrays(tmp_path / name, tmp_path / "out", 5, 2, executor=client)
    assert caught.value.exit_code == 15
    save_file({"a": np.zeros(3)}, tmp_path / "m.safetensors")
    with pytest.raises(UnsupportedError, match="S3, or to a file system that all of its workers share"):
        import_arrays(tmp_path / "m.safetensors", "memory://out", 5, 2, executor=client)
    assert not (tmp_path / "out").exists()
