"""A reshard on a cluster: the same bytes in every file, whatever happens to workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import write_unchecked
from checkpoints import at, only, save_large, save_varied, shards_of
from cluster_tasks import hold_writes, peak_bytes, renewed, signal_writer, write_again
from edl_ckpt.core import (
    CorruptError,
    LockedError,
    Table,
    UnsupportedError,
    list_versions,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.ids import kernel_id
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit import writers
from edl_ckpt.core.commit.meeting import TOKEN
from edl_ckpt.core.commit.writers import StagedTargets, Writers
from edl_ckpt.core.storage.beneath import Directory
from program import PROGRAM
from waiting import wait_until


def test_in_place(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version with several tasks for each shard is replaced in place, and nothing is left behind."""
    save_large(tmp_path)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 20)
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.TASKS_A_THREAD", 64)
    reshard_version(only(tmp_path), 3, output=tmp_path / "other")
    executor = ClusterExecutor(processes)
    reshard_version(only(tmp_path), 3, executor=executor)
    assert shards_of(tmp_path / "other") == {
        name: data for name, data in shards_of(tmp_path).items() if not name.startswith("other")
    }
    assert not list(tmp_path.glob(".edl-ckpt-0/stage-0/*"))


def test_an_id_twice(tmp_path: Path, client: Any) -> None:
    """An id that a table has twice is the same error, and nothing is written."""
    ids = np.array([*range(300_000, 0, -1), 7])
    write_unchecked(tmp_path, 5, 2, {"t": Table(ids, np.ones((len(ids), 2), np.float32))})
    for executor in (None, client):
        with pytest.raises(CorruptError, match="7") as caught:
            reshard_version(only(tmp_path), 3, output=tmp_path / "out", executor=executor)
        assert caught.value.code == "duplicate-id"
    assert not (tmp_path / "out").exists()


def test_not_to_object_storage(tmp_path: Path, client: Any) -> None:
    """What workers cannot write together is refused before any work."""
    save_varied(tmp_path, 2)
    with pytest.raises(UnsupportedError, match="a file system that all of its workers share"):
        reshard_version(only(tmp_path), 3, output="memory://out", executor=client)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location with a version of 80 MB on four servers, `run`, and its reshard to six, `here`."""
    place = tmp_path_factory.mktemp("wide")
    random = np.random.default_rng(3)
    ids = np.arange(600_000) * 5
    tables = {"t": Table(ids, random.standard_normal((len(ids), 32), np.float32))}
    save_checkpoint(place / "run", 7, 4, variables={}, tables=tables)
    reshard_version(only(place / "run"), 6, output=place / "here")
    return place


def test_a_killed_command(wide: Path, tmp_path: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible, and the next one removes what it left; workers may go on."""
    there = tmp_path / "there"
    command = [
        "reshard",
        str(wide / "run"),
        "--ps",
        "6",
        "--output",
        str(there),
        "--cluster",
        processes.scheduler.address,
    ]
    processes.run(hold_writes, str(tmp_path / "gate"))
    try:
        first = subprocess.Popen([*PROGRAM, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: any(there.glob(".edl-ckpt-0/stage-0/*/writers/*")) or first.poll() is not None, seconds=60)
        first.kill()
        first.wait()
    finally:
        (tmp_path / "gate").touch()
        processes.run(write_again, on_error="ignore")
    assert not list_versions(there).versions
    reshard_version(only(wide / "run"), 6, output=there, executor=processes)
    assert shards_of(there) == shards_of(wide / "here")
    assert not list(there.glob(".edl-ckpt-0/stage-0/*"))


def test_killed_workers(wide: Path, tmp_path: Path, processes: Any) -> None:
    """A worker that is killed while it writes changes nothing of the result."""
    marker = tmp_path / "killed"
    processes.run(signal_writer, signal.SIGKILL, str(marker))
    try:
        reshard_version(only(wide / "run"), 6, output=tmp_path / "there", executor=ClusterExecutor(processes))
    finally:
        processes.run(write_again, on_error="ignore")
        renewed(processes, int(marker.read_text()))
    assert shards_of(tmp_path / "there") == shards_of(wide / "here")


@pytest.mark.parametrize("rows", [100_000, pytest.param(8_000_000, marks=pytest.mark.hours)])
def test_memory(tmp_path: Path, processes: Any, rows: int) -> None:
    """A worker has at most 400 MiB in memory, and the command 300, also where the version has 2 GB."""
    random = np.random.default_rng(3)
    tables = {"t": Table(random.permutation(rows) * 3, random.standard_normal((rows, 64), np.float32))}
    save_checkpoint(tmp_path / "run", 7, 4, variables={}, tables=tables)
    command = ["reshard", str(tmp_path / "run"), "--ps", "8", "--output", str(tmp_path / "out"), "--json"]
    command += ["--cluster", processes.scheduler.address]
    done = subprocess.run([*PROGRAM, *command], capture_output=True, check=True)
    assert 0 < json.loads(done.stdout)["peak_memory_bytes"] < 300 << 20
    peaks = processes.run(peak_bytes)
    assert len(peaks) == 2
    assert max(peaks.values()) < 400 << 20


# The fence


@pytest.fixture
def staged(tmp_path: Path) -> tuple[Writers, StagedTargets]:
    """Return the records of a staging directory with three files of eight bytes."""
    directory = tmp_path / "version-7"
    directory.mkdir()
    for name in "abc":
        (directory / name).write_bytes(bytes(8))
    records = Writers(Directory.open(str(tmp_path)))
    return records, StagedTargets(str(directory), ("a", "b", "c"), str(tmp_path / "writers"), kernel_id())


def test_an_attempt_that_ended(staged: tuple[Writers, StagedTargets]) -> None:
    """An attempt that closed its files leaves no record; behind the fence none begins."""
    records, targets = staged
    with targets.opened([1]) as files:
        files[1].write(2, b"xx")
    assert records.end() == set()
    with pytest.raises(LockedError, match="is over"), targets.opened([1]):
        pass


def test_a_token_is_no_attempt(staged: tuple[Writers, StagedTargets]) -> None:
    """What a worker has left that went before tokens were removed holds up nobody, and lets no file be copied."""
    records, targets = staged
    targets.place.write(f"{TOKEN}left", b"x")
    assert records.end() == set()
    assert not Path(targets.writers).exists()


def test_an_attempt_that_goes_on(staged: tuple[Writers, StagedTargets]) -> None:
    """The files of an attempt that has not ended are named."""
    records, targets = staged

    def attempt() -> None:
        with targets.opened([0, 2]) as files:
            files[2].write(0, b"xx")
            assert records.end() == {0, 2}

    with pytest.raises(FileNotFoundError):  # its record is gone when it ends
        attempt()


def test_an_attempt_without_its_record(staged: tuple[Writers, StagedTargets]) -> None:
    """An attempt that opens a file behind the fence may have the new one, and writes nothing."""
    records, targets = staged

    def attempt() -> None:
        with targets.opened([0]) as files:
            assert records.end() == {0}
            files[0].write(0, b"late")

    with pytest.raises(LockedError, match="is over"):
        attempt()
    assert Path(targets.directory, "a").read_bytes() == bytes(8)


@pytest.mark.parametrize("record", ["", "{", "[]", "{}", '{"targets": 3}'])
def test_a_record_that_says_nothing(staged: tuple[Writers, StagedTargets], record: str) -> None:
    """Of an attempt that was about to write its record, every file may be open."""
    records, targets = staged
    Path(targets.writers, "x").write_text(record)
    assert records.end() is None


@pytest.mark.parametrize("here", [True, False])
def test_an_attempt_of_a_process_that_is_gone(
    staged: tuple[Writers, StagedTargets], monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """A process of this machine that is gone writes no more; of another machine nothing is known."""
    records, targets = staged
    process = writers._process()
    process["started"] = "1"
    if not here:
        process["kernel"] = "another"
    Path(targets.writers, "x").write_text(json.dumps({**process, "targets": [1]}))
    assert records.end() == (set() if here else {1})


def test_a_late_write(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that wakes up after the commit, with a published file open, writes into a file that nobody has."""
    save_varied(tmp_path / "run", 2)
    reshard_version(only(tmp_path / "run"), 3, output=tmp_path / "here")
    late: list[int] = []
    real = Writers.end

    def end(self: Writers) -> set[int] | None:
        """Stand for a worker that opened a file, and then was stopped."""
        stage = next((tmp_path / "there").glob(".edl-ckpt-0/stage-0/*"))
        (stage / "writers" / "stopped").write_text(json.dumps({"kernel": "another", "pid": 1, "targets": [1]}))
        late.append(os.open(next(stage.glob("version*/*1-of-3*")), os.O_WRONLY))
        return real(self)

    monkeypatch.setattr(Writers, "end", end)
    reshard_version(only(tmp_path / "run"), 3, output=tmp_path / "there", executor=client)
    assert os.pwrite(late[0], b"late" * 100, 0) == 400
    assert os.fstat(late[0]).st_nlink == 0
    os.close(late[0])
    assert shards_of(tmp_path / "there") == shards_of(tmp_path / "here")
    assert verify_version(at(tmp_path / "there"), level="deep").ok
