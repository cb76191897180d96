"""A copy on a cluster: the same bytes, the same results, and the same going on after an interruption."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl_rules
import torch_items
from builders import write_unchecked
from checkpoints import at, only, save_large, save_mixed, shards_of
from cluster_tasks import renewed
from edl_ckpt.core import (
    CorruptError,
    LockedError,
    Table,
    UnsupportedError,
    execute_copy,
    import_checkpoint,
    list_versions,
    plan_copy,
    verify_version,
)
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.writers import StagedTargets
from edl_ckpt.core.operations.copy.execute import CopyResult
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store
from system_runs import bundle_run, step_run, tree


def copy(source: Path, target: Path, executor: Any, **options: Any) -> CopyResult:
    return execute_copy(plan_copy([only(source)], target, **options), executor=executor)


def same_copies(source: Path, client: Any, tmp: Path, **options: Any) -> None:
    """Copy the only version of a location here and on a cluster; compare bytes, results and seals."""
    here, there = (
        copy(source, tmp / name, executor, **options) for name, executor in (("here", None), ("there", client))
    )
    assert shards_of(tmp / "there") == shards_of(tmp / "here")
    assert there.bytes_copied == here.bytes_copied
    assert [replace(copied, to="") for copied in there.copied] == [replace(copied, to="") for copied in here.copied]
    number = only(source).version
    one, two = (read_seal(open_store(str(tmp / name)), number) for name in ("here", "there"))
    assert one is not None
    assert two is not None
    assert one.shards == two.shards
    assert verify_version(only(tmp / "there"), level="deep").sealed
    assert not elasticdl_rules.leftovers(tmp / "there")


def test_without_a_seal(tmp_path: Path, client: Any) -> None:
    """A version without a seal is copied alike."""
    save_mixed(tmp_path / "run")
    (tmp_path / "run" / seal_file(7)).unlink()
    same_copies(tmp_path / "run", client, tmp_path)


@pytest.mark.parametrize("make", [step_run, bundle_run])
def test_systems(tmp_path: Path, client: Any, make: Callable[..., Path]) -> None:
    """The files of a version of another system are copied alike, those in sub-directories and those side by side."""
    run = make(tmp_path / "run", (10,))
    same_copies(run, client, tmp_path)
    copied = {name: data for name, data in tree(tmp_path / "there").items() if name != "checkpoint"}  # a record of ours
    assert copied == tree(run)


def test_checksums_of_the_files(tmp_path: Path, client: Any) -> None:
    """Other processes compare what the files of torch say of their values: a flipped bit ends a copy and an import."""
    torch_items.write_step(tmp_path / "run/step_3", torch_items.boxes("w", np.ones((40_000, 16), np.float32), [[], []]))
    good = copy(tmp_path / "run", tmp_path / "good", client)
    assert (good.copied[0].checksums.compared, good.copied[0].checksums.not_compared) == (1, 0)
    path = tmp_path / "run/step_3/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[2_000_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="crc32"):
        copy(tmp_path / "run", tmp_path / "there", client)
    with pytest.raises(CorruptError, match="crc32"):
        import_checkpoint(only(tmp_path / "run"), tmp_path / "new", 1, 2, executor=client)
    assert not (tmp_path / "there").exists()
    assert copy(tmp_path / "run", tmp_path / "there", client, force=True).copied[0].forced


def test_damaged(tmp_path: Path, client: Any) -> None:
    """A source that does not match its seal is the same error, and nothing is left; `force` copies it alike."""
    save_mixed(tmp_path / "run")
    shard = only(tmp_path / "run").shards[1].path
    with open(shard, "r+b") as file:
        file.seek(os.path.getsize(shard) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    errors = []
    for name, executor in (("a", None), ("b", client)):
        with pytest.raises(CorruptError) as caught:
            copy(tmp_path / "run", tmp_path / name, executor)
        errors.append((str(caught.value), caught.value.offset, caught.value.hint))
        assert not shards_of(tmp_path / name)
    assert errors[0] == errors[1]
    same_copies(tmp_path / "run", client, tmp_path, force=True)


def test_a_twin(tmp_path: Path, client: Any) -> None:
    """An unsealed version at the target is compared, and sealed, by the cluster."""
    save_mixed(tmp_path / "run")
    for name, executor in (("here", None), ("there", client)):
        copy(tmp_path / "run", tmp_path / name, None)
        (tmp_path / name / seal_file(7)).unlink()
        assert copy(tmp_path / "run", tmp_path / name, executor).copied[0].skipped
    assert only(tmp_path / "there").fingerprint == only(tmp_path / "here").fingerprint != ""


def interrupted_copy(location: Path, executor: Any, *, finished: int) -> tuple[int, ...]:
    """Begin a copy of `run` to `out`, interrupt it when more shards than some are whole; return which were finished."""
    done: list[int] = []
    lock = threading.Lock()
    real = LocalOutput.finish

    def finish(self: LocalOutput, shard: int, note: list[str]) -> None:
        with lock:
            if len(done) == finished:
                raise KeyboardInterrupt
            real(self, shard, note)
            done.append(shard)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LocalOutput, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            copy(location / "run", location / "out", executor)
    return tuple(done)


@pytest.mark.parametrize("order", ["there, here", "here, there", "there, there"])
def test_goes_on(tmp_path: Path, client: Any, order: str) -> None:
    """The shards that were finished before an interruption are not copied again, wherever each run works."""
    save_mixed(tmp_path / "run")
    first, second = (client if name == "there" else None for name in order.split(", "))
    finished = interrupted_copy(tmp_path, first, finished=2)
    assert not list_versions(tmp_path / "out").versions
    shards = only(tmp_path / "run").shards
    copied = copy(tmp_path / "run", tmp_path / "out", second).copied[0]
    assert copied.resumed_bytes == sum(shards[i].size_bytes for i in finished)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "run")
    assert verify_version(at(tmp_path / "out", 7), level="deep").sealed
    assert not elasticdl_rules.leftovers(tmp_path / "out")


def test_a_task_of_an_interrupted_copy(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task of a run that was interrupted, which wakes up in the next one, writes nothing into the files of that."""
    save_mixed(tmp_path / "run")
    shared: list[StagedTargets] = []
    real = LocalOutput.share

    def share(self: LocalOutput, **options: Any) -> StagedTargets:
        shared.append(real(self, **options))
        if len(shared) == 2:
            with pytest.raises(LockedError, match="is over"):
                files[2].write(0, b"late")
            with pytest.raises(LockedError, match="is over"), shared[0].only(1).opened([1]):
                pass
        return shared[-1]

    monkeypatch.setattr(LocalOutput, "share", share)
    interrupted_copy(tmp_path, client, finished=1)
    sleeping = shared[0].only(2).opened([2])
    files = sleeping.__enter__()  # it has made its record, and opened nothing
    copy(tmp_path / "run", tmp_path / "out", client)
    assert len(shared) == 2
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "run")
    assert not elasticdl_rules.leftovers(tmp_path / "out")


@pytest.mark.slow
def test_killed_workers(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed after the first shard is finished changes nothing of the result."""
    save_large(tmp_path / "run")
    pid = min(processes.run(os.getpid).values())
    real = LocalOutput.finish

    def finish(self: LocalOutput, shard: int, note: list[str]) -> None:
        if shard == 0:
            os.kill(pid, 9)
        real(self, shard, note)

    monkeypatch.setattr(LocalOutput, "finish", finish)
    try:
        copy(tmp_path / "run", tmp_path / "out", processes)
    finally:
        renewed(processes, pid)
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "run")


def test_not_to_object_storage(tmp_path: Path, client: Any) -> None:
    """What workers cannot write together is refused before any work."""
    save_mixed(tmp_path / "run")
    with pytest.raises(UnsupportedError, match="a file system that all of its workers share"):
        execute_copy(plan_copy([only(tmp_path / "run")], "memory://out"), executor=client)


@pytest.mark.parametrize("misplaced", [False, True])
def test_ids_are_looked_at_by_workers(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, misplaced: bool
) -> None:
    """Of a version without a seal workers look for ids that a table has twice; one is the error of this machine."""
    ids = np.array([*range(30_000, 0, -1)])
    tables = {"t": Table(ids, np.ones((len(ids), 2), np.float32)), "u": Table(ids[:9], np.ones((9, 2), np.float32))}
    write_unchecked(tmp_path / "run", 5, 2, tables)
    if misplaced:
        left, right = (shard.path for shard in only(tmp_path / "run").shards)
        Path(left).rename(f"{left}.moved")
        Path(right).rename(left)
        Path(f"{left}.moved").rename(right)
    asked: list[str] = []
    real = ClusterExecutor.run

    def run(self: ClusterExecutor, work: Any, *rest: Any, **options: Any) -> Any:
        asked.append(str(work))
        return real(self, work, *rest, **options)

    monkeypatch.setattr(ClusterExecutor, "run", run)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 12)
    copy(tmp_path / "run", tmp_path / "there", client)
    assert shards_of(tmp_path / "there") == shards_of(tmp_path / "run")
    assert asked[:2] == ["read_all_ids", "find_twice"]
    monkeypatch.undo()
    tables["t"] = Table(np.array([*ids[:-1], 7]), np.ones((len(ids), 2), np.float32))
    write_unchecked(tmp_path / "bad", 5, 2, tables)
    errors = []
    for executor in (None, client):
        with pytest.raises(CorruptError) as caught:
            copy(tmp_path / "bad", tmp_path / "never", executor)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert "id 7 occurs twice" in errors[0]
