"""What every worker is asked before any work.

`pytest -n 0 -m slow tests/core/cluster/test_preflight.py` has real `dask worker` processes that cannot work.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import at, only, save_mixed, save_small, shards_of
from cluster_tasks import another_address, forget, no_room, not_mounted, replaced, restored
from dask_processes import (
    ANOTHER_VERSION,
    BLIND,
    NO_ROOM,
    READ_ONLY,
    DaskProcesses,
    dask_processes,
    wait_for_workers,
)
from edl_ckpt.core import (
    NoSpaceError,
    Table,
    UnavailableError,
    UnsupportedError,
    diff_versions,
    execute_copy,
    plan_copy,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.progress import SILENT, Progress
from edl_ckpt.core.cluster import executor as executor_module
from edl_ckpt.core.cluster import preflight, worker
from edl_ckpt.core.cluster.address import cluster_at
from edl_ckpt.core.cluster.choice import check_target
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.cluster.messages import Seen
from edl_ckpt.core.commit.meeting import SharedDirectory
from edl_ckpt.core.operations.reshard import execute
from edl_ckpt.core.storage.location import Location
from waiting import wait_until


def can_mount() -> bool:
    """Say whether this process may give another one file systems of its own."""
    if os.geteuid() or not shutil.which("unshare"):
        return False
    tried = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "mount -t tmpfs none /mnt"]
    return not subprocess.run(tried, capture_output=True, check=False).returncode


def start_bad_workers(dask: DaskProcesses, target: Path) -> set[str]:
    """Start a worker for each thing that can be wrong with one; return their names."""
    dask.start_worker("another-version", first=ANOTHER_VERSION)
    dask.start_worker("little-memory", "--memory-limit", "64MiB")
    dask.start_worker("no-room", first=NO_ROOM)
    if can_mount():
        dask.start_worker("blind", mount=(BLIND, target.parent / "run"))
        dask.start_worker("read-only", mount=(READ_ONLY, target))
    return set(dask.workers) - {"good"}


EXPECTED = {
    "another-version": "has edl-ckpt 0.0.9, and this is",
    "little-memory": "has a memory limit of 64.0 MiB: Dask gives it no task above 51.2 MiB, and it has",
    "no-room": "has no room: ",
    "blind": "cannot read the location",
    "read-only": "read-only filesystem",
}


@pytest.mark.slow
def test_bad_workers(tmp_path: Path) -> None:
    """Each worker that cannot do the work is named with the reason, code 15, and nothing is written; then it works."""
    save_small(tmp_path / "run", 7)
    target = tmp_path / "out"
    target.mkdir()
    with dask_processes(tmp_path / "dask") as dask:
        dask.start_worker("good")
        bad = start_bad_workers(dask, target)
        with cluster_at(str(dask.file)) as executor:
            wait_for_workers(executor.client, len(dask.workers))
            while bad:
                executor = ClusterExecutor(executor.client)  # noqa: PLW2901 - it asks again
                with pytest.raises(UnsupportedError) as caught:
                    reshard_version(only(tmp_path / "run"), 3, output=target, executor=executor)
                assert caught.value.exit_code == 15
                assert caught.value.hint
                name = caught.value.message.split()[1]
                assert EXPECTED[name] in caught.value.message
                assert not list(target.iterdir())
                bad.remove(name)
                dask.stop(name)
            reshard_version(only(tmp_path / "run"), 3, output=target, executor=ClusterExecutor(executor.client))
    assert verify_version(only(target), level="deep").ok
    assert not elasticdl_rules.leftovers(target)


def test_before_the_survey(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that a worker cannot write is refused before an id is read; a directory that was made is gone again."""
    save_small(tmp_path / "run", 7)

    def survey(*_: Any, **__: Any) -> None:
        pytest.fail("ids were read")

    monkeypatch.setattr(execute, "survey_ids", survey)
    processes.run(replaced, "free_bytes", no_room)
    try:
        with pytest.raises(UnsupportedError, match=r"worker \d at tcp://.* has no room"):
            reshard_version(only(tmp_path / "run"), 3, output=tmp_path / "a" / "b", executor=processes)
        with pytest.raises(UnsupportedError, match="has no room"):
            execute_copy(plan_copy([only(tmp_path / "run")], tmp_path / "a" / "b"), executor=processes)
    finally:
        processes.run(restored, "free_bytes")
    assert not (tmp_path / "a").exists()


def test_no_room_here(tmp_path: Path, client: Any) -> None:
    """What does not fit is the error that it is on one machine."""
    with pytest.raises(NoSpaceError, match="plus a reserve of"):
        check_target(client, Location(str(tmp_path / "out")), 1 << 62, reporter=SILENT)
    assert not (tmp_path / "out").exists()


def test_what_a_dead_command_left_is_room(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged files of a command that was killed are removed first, or resumed, so they do not count as taken."""
    stage = tmp_path / ".edl-ckpt-0" / "stage-0" / "copy-7"
    stage.mkdir(parents=True)
    (stage / "shard").write_bytes(bytes(1 << 20))
    asked: list[int] = []
    monkeypatch.setattr(ClusterExecutor, "share", lambda self, directory, size_bytes=0: asked.append(size_bytes))
    check_target(client, Location(str(tmp_path)), 3 << 20, reporter=SILENT)
    assert asked == [2 << 20]
    assert (stage / "shard").exists()


def test_a_late_worker_that_sees_nothing(tmp_path: Path, processes: Any) -> None:
    """A worker that came after the others were asked looks before its first task, and is named."""
    save_small(tmp_path, 7)
    executor = ClusterExecutor(processes)
    assert verify_version(only(tmp_path), executor=executor).ok
    processes.run(forget)
    processes.run(replaced, "open_store", not_mounted)
    try:
        with pytest.raises(UnsupportedError, match=r"worker \d at tcp://.*, which came during the work, cannot read"):
            verify_version(only(tmp_path), executor=executor)
    finally:
        processes.run(restored, "open_store")
    assert verify_version(only(tmp_path), executor=executor).ok


def test_another_process_answers(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers at the address of a worker that is gone is not taken for it."""
    save_small(tmp_path, 7)
    passed = [0.0]

    def sleep(seconds: float) -> None:
        passed[0] += 1000.0

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=sleep)
    monkeypatch.setattr(executor_module, "time", clock)  # all the time is over when it would ask again
    monkeypatch.setattr(worker, "look", another_address)
    with pytest.raises(UnavailableError, match=r"worker \d at inproc:.*another process answers there: tcp://x:1"):
        verify_version(only(tmp_path), executor=client)


def test_a_stopped_worker(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that does not answer is named after a while, and nobody waits for ever."""
    save_small(tmp_path, 7)
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 0.5)
    address, pid = max(processes.run(os.getpid).items())
    os.kill(pid, signal.SIGSTOP)
    try:
        _wait_for_others(processes, address)
        with pytest.raises(UnavailableError) as caught:
            verify_version(only(tmp_path), executor=processes)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"{address} does not answer" in caught.value.message
    monkeypatch.undo()
    assert verify_version(only(tmp_path), executor=processes).ok


def _wait_for_others(client: Any, stopped: str) -> None:
    """Wait until the scheduler has heard of all workers, but of one that is stopped, and of that one no more."""

    def heard() -> dict[str, float]:
        workers = client.scheduler_info(n_workers=-1)["workers"]
        return {address: info["last_seen"] for address, info in workers.items()}

    for _ in range(3):  # a message of the stopped one may have been on its way
        before = heard()
        wait_until(lambda: all(at > before[address] for address, at in heard().items() if address != stopped))  # noqa: B023 - asked at once
    assert min(heard(), key=heard().__getitem__) == stopped


def test_silence_leaves_no_token(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """When no worker answers, the token that they should have read is removed again."""
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="does not answer"):
        ClusterExecutor(client).share(SharedDirectory(str(tmp_path)))
    assert not list(tmp_path.iterdir())


def test_a_worker_that_goes_leaves_no_token(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker wrote that has gone since its answer is removed too."""
    real, counts = ClusterExecutor.workers, list[int]()

    def workers(self: ClusterExecutor, *, now: bool = False) -> dict[str, Any]:
        there = real(self, now=now)
        counts.append(len(there))
        return dict(list(there.items())[: 1 if len(counts) > 1 else None])

    executor = ClusterExecutor(client)
    monkeypatch.setattr(ClusterExecutor, "workers", workers)
    executor.share(SharedDirectory(str(tmp_path)))
    assert counts[0] == 2
    assert not list(tmp_path.iterdir())


def test_no_room_for_temporary_files(tmp_path: Path, processes: Any) -> None:
    """A diff of large tables is refused where a worker lacks room for the files of its tasks."""
    ids, rows = np.arange(20_000), np.ones((20_000, 8), np.float32)
    for version in (1, 2):
        save_checkpoint(tmp_path, version, 2, variables={}, tables={"t": Table(ids, rows * version)})
    sides = at(tmp_path, 1), at(tmp_path, 2)
    processes.run(replaced, "free_bytes", no_room)
    try:
        with pytest.raises(UnsupportedError, match=r"has no room for temporary files: 1 task at a time need"):
            diff_versions(*sides, executor=processes, part_bytes=1 << 16)
    finally:
        processes.run(restored, "free_bytes")
    assert not diff_versions(*sides, executor=processes, part_bytes=1 << 16).equal


MIB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "threads", "outcome"),
    [(0, 1, ""), (4096, 16, ""), (400, 1, ""), (180, 1, "may need"), (400, 16, "may need"), (120, 1, "refused")],
)
def test_memory(limit: int, threads: int, outcome: str) -> None:
    """A worker's limit is compared with what its threads take; the figures are in the message."""
    seen = Seen("0.1.0", True, "tcp://x:1", 72 * MIB, int(limit * MIB * 0.8))
    info = {"memory_limit": limit * MIB, "nthreads": threads}
    if outcome == "refused":
        with pytest.raises(UnsupportedError, match=r"memory limit of 120.0 MiB: .* above 96.0 MiB.* has 72.0 MiB") as e:
            list(preflight.memory_warnings("worker 0", seen, info))
        assert e.value.hint == "start it with --memory-limit 290MiB or more"
    else:
        assert outcome in "".join(preflight.memory_warnings("worker 0", seen, info))


def test_little_memory_is_a_warning(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory may not be enough, the work begins with a warning."""
    save_small(tmp_path, 7)
    progress = Progress()
    monkeypatch.setattr(preflight, "memory_warnings", lambda name, *_: [f"{name} has little"])
    assert verify_version(only(tmp_path), executor=client, reporter=progress).ok
    assert sum("has little" in text for text in progress.warnings) == 1


def test_nothing_is_left(tmp_path: Path, processes: Any) -> None:
    """What the workers were asked leaves nothing at the target, in place or elsewhere."""
    save_mixed(tmp_path / "run")
    before = shards_of(tmp_path / "run")
    check_target(processes, Location(str(tmp_path / "run")), 1000, reporter=SILENT)
    check_target(processes, Location(str(tmp_path / "new" / "run")), 1000, reporter=SILENT)
    assert shards_of(tmp_path / "run") == before
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "run" / ".edl-ckpt-0" / "stage-0").exists()
