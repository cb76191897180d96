"""A cluster that writes to a bucket: each part of an upload has one writer, and late ones change nothing."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from bucket_parts import in_bucket, killed_midway, nothing_is_left, with_parts, without_upload
from builders import write_unchecked
from checkpoints import drop_seal, only, save_large, save_mixed, save_varied, shards_of
from cluster_tasks import environment, killed_worker
from edl_ckpt.core import (
    LockedError,
    Table,
    UnsupportedError,
    execute_copy,
    execute_reshard,
    list_versions,
    plan_copy,
    prepare_reshard,
    recover,
    reshard_version,
    verify_version,
)
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.commit.sent_parts import Extent, SharedUpload, SharedUploads
from edl_ckpt.core.moving.parts import PartsPlan
from edl_ckpt.core.operations.copy.execute import CopyResult
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.parts import PartMemory
from edl_ckpt.core.storage.s3.store import S3Store
from reporters import Recorder
from s3_fixtures import Bucket
from s3_proxy import Fault, status


def copy(source: str | Path, target: str, executor: Any, **options: Any) -> CopyResult:
    return execute_copy(plan_copy([only(source)], target, **options), executor=executor)


# Copies


def test_without_a_seal(s3: Bucket, tmp_path: Path, client: Any, small_parts: None) -> None:
    """A version without a seal is copied alike, and each part is sent once."""
    save_mixed(tmp_path / "run")
    drop_seal(tmp_path / "run", 7)
    copied = copy(tmp_path / "run", s3.url, client)
    assert in_bucket(s3) == shards_of(tmp_path / "run")
    assert s3.proxy.count("upload_part") > 5
    assert s3.proxy.request_bytes("upload_part") == copied.bytes_copied
    check = verify_version(only(s3.url), level="deep")
    assert check.sealed
    assert check.fingerprint == copied.copied[0].fingerprint
    nothing_is_left(s3)


@pytest.mark.parametrize("order", ["there, here", "here, there", "there, there"])
def test_goes_on(
    s3: Bucket, tmp_path: Path, client: Any, small_parts: None, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """The uploads that were finished before an interruption are not sent again, wherever each run works."""
    save_mixed(tmp_path / "run")
    monkeypatch.setattr("edl_ckpt.core.commit.publish.objects.NOTED_BYTES", 0)
    first, second = (client if name == "there" else None for name in order.split(", "))
    done: list[int] = []
    lock = threading.Lock()
    real = RemoteOutput.finish

    def finish(self: RemoteOutput, shard: int, note: list[str]) -> None:
        with lock:
            if len(done) == 2:
                raise KeyboardInterrupt
            real(self, shard, note)
            done.append(shard)

    with monkeypatch.context() as patched:
        patched.setattr(RemoteOutput, "finish", finish)
        with pytest.raises(KeyboardInterrupt):
            copy(tmp_path / "run", s3.url, first)
    assert not list_versions(s3.url).versions
    shards = only(tmp_path / "run").shards
    copied = copy(tmp_path / "run", s3.url, second).copied[0]
    assert copied.resumed_bytes == sum(shards[i].size_bytes for i in done)
    assert in_bucket(s3) == shards_of(tmp_path / "run")
    assert verify_version(only(s3.url), level="deep").sealed
    nothing_is_left(s3)


def test_killed_workers(s3: Bucket, large: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed when its first part has arrived changes nothing of the result."""
    with killed_worker(processes, monkeypatch, RemoteOutput, "take"):
        copy(large, s3.url, processes)
    assert in_bucket(s3) == shards_of(large)
    nothing_is_left(s3)


def test_a_killed_command(s3: Bucket, large: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible; the next one goes on, or `recover` drops what it left."""
    command = ["copy", str(large), s3.url, "--cluster", processes.scheduler.address]
    with environment(processes):
        for attempt in range(2):
            killed_midway(s3, *command)
            assert not list_versions(s3.url).versions
            if attempt:
                copy(large, s3.url, processes)
            else:
                recover(s3.url, drop_copies=True)
                nothing_is_left(s3)
    assert in_bucket(s3) == shards_of(large)
    nothing_is_left(s3)


# What workers are asked


def test_a_worker_without_credentials(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A worker that may not write is refused before any part is sent, and nothing is left."""
    save_mixed(tmp_path / "run")
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="put", key="token-.*-"))
    with pytest.raises(UnsupportedError, match=r"cannot read and write where .*refused") as caught:
        copy(tmp_path / "run", s3.url, client)
    assert "their own environment" in str(caught.value.hint)
    assert not s3.proxy.count("upload_part")
    nothing_is_left(s3)


def test_a_worker_that_sees_another_bucket(
    s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker whose token this process does not find is refused."""
    save_mixed(tmp_path / "run")
    monkeypatch.setattr("edl_ckpt.core.commit.meeting.SharedPrefix.has", lambda *_: False)
    with pytest.raises(UnsupportedError, match="cannot read and write where this machine does"):
        copy(tmp_path / "run", s3.url, client)
    nothing_is_left(s3)


def test_credentials_of_the_command_line(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """Credentials that only the command has are warned of, once."""
    save_mixed(tmp_path / "run")
    recorder = Recorder()
    target = Location(s3.url, {"key": "nobody", "secret": "nothing"})
    execute_copy(plan_copy([only(tmp_path / "run")], target), executor=client, reporter=recorder)
    assert [text for text in recorder.warnings if "--storage-option key" in text] == recorder.warnings


# The store contract with two writers


def a_part(s3: Bucket, upload_id: str, size_bytes: int) -> SharedUploads:
    """Return an upload of the bucket as tasks get it."""
    return SharedUploads(Location(s3.url), {0: SharedUpload("object", size_bytes, upload_id)}, 5 << 20)


@pytest.mark.parametrize("end", ["completed", "aborted"])
def test_two_writers(s3: Bucket, end: str) -> None:
    """Two processes send the same parts: the object is whole; whoever comes later finds no upload, and changes nothing.

    One of them is late: the upload was completed, or aborted, while it was at work.
    """
    store = open_store(s3.url)
    assert isinstance(store, S3Store)
    data = np.random.default_rng(3).bytes((12 << 20) + 5)
    whole = store.new_object("object", len(data))
    whole.begin()
    uploads = a_part(s3, whole.upload_id, len(data))
    extent = Extent(0, (0, 5 << 20, 12 << 20, len(data)), 0)
    for _ in range(2):
        with uploads.opened([0], [extent], PartMemory()) as files:
            files[0].write(0, data)
            files[1].write(0, b"of another task")
        whole.take(part for _, part in files.sent)
    whole.finish()
    assert whole.verified
    s3.proxy.fail(Fault(without_upload, operation="upload_part", times=None))  # also for parts that are on their way
    before: dict[str, int] = {}

    def send_late() -> None:
        with uploads.opened([0], [extent], PartMemory()) as files:
            files[0].write(0, data[: 5 << 20])
            if end == "completed":
                whole.complete()
            else:
                whole.abort()
            before.update(s3.objects())
            files[0].write(5 << 20, bytes(len(data) - (5 << 20)))

    with pytest.raises(LockedError, match="the upload is gone"):
        send_late()
    assert s3.objects() == before
    assert not s3.open_uploads()
    if end == "completed":
        assert s3.get("run/object") == data


def test_a_part_is_missing(s3: Bucket) -> None:
    """An upload that lacks a part, in the middle or at the end, is never completed."""
    store = open_store(s3.url)
    assert isinstance(store, S3Store)
    data = bytes(11 << 20)
    for missing in (0, 1):
        whole = store.new_object("object", len(data))
        whole.begin()
        edges = (0, 5 << 20, len(data))
        other = 1 - missing
        with a_part(s3, whole.upload_id, len(data)).opened(
            [0], [Extent(0, edges[other : other + 2], other)], PartMemory()
        ) as files:
            files[0].write(0, data)
        whole.take(part for _, part in files.sent)
        with pytest.raises(Exception, match="not every byte"):
            whole.finish()
        whole.abort()
    assert not s3.objects()


# Reshards


def same_reshard(s3: Bucket, run: Path, ps_num: int, client: Any, tmp: Path, **options: Any) -> PartsPlan:
    """Reshard the only version of a location here, and on a cluster into a bucket; compare every byte and the seal."""
    here = reshard_version(only(run), ps_num, output=tmp / "here")
    plan, settings = prepare_reshard(only(run), ps_num, output=s3.url, executor=client, **options)
    there = execute_reshard(plan, settings, executor=client)
    assert in_bucket(s3) == shards_of(tmp / "here")
    assert (there.fingerprint, there.rows) == (here.fingerprint, here.rows)
    assert verify_version(only(s3.url), level="deep").sealed
    nothing_is_left(s3)
    assert settings.parts is not None
    assert s3.proxy.count("upload_part") == settings.parts.parts
    assert s3.proxy.request_bytes("upload_part") == there.size_bytes
    return settings.parts


@pytest.mark.parametrize(
    "ps_num", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("save", [save_mixed, lambda location: save_varied(location, 3)], ids=["mixed", "varied"])
def test_values_are_read_once_of_few_shards(
    s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None, save: Any, ps_num: int
) -> None:
    """Variables, wide rows, narrow rows, small tables and tables without rows are sent without parts that wait."""
    save(tmp_path / "run")
    parts = same_reshard(s3, tmp_path / "run", ps_num, client, tmp_path)
    assert parts.strategy == "direct"
    assert parts.times_read < 1.5


@pytest.mark.parametrize("strategy", [pytest.param("spilled", marks=pytest.mark.slow), "grouped"])
def test_little_memory(
    s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    """Parts without memory wait on the local disk; where that has no room, targets are taken in groups."""
    with_parts(monkeypatch, 128 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.parts.WORKER_PART_BYTES", 320 << 10)
    if strategy == "grouped":
        monkeypatch.setattr(ClusterExecutor, "check_temporary", Mock(side_effect=UnsupportedError("no room")))
    save_large(tmp_path / "run")
    parts = same_reshard(s3, tmp_path / "run", 8, client, tmp_path)
    assert parts.strategy == strategy
    assert (parts.times_read > 1.9) == (strategy == "grouped")
    assert (parts.spilled_bytes > 0) == (strategy == "spilled")


def test_values_are_read_once(
    s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of shards whose rows are ordered by their target, as a reshard to fewer servers leaves them."""
    with_parts(monkeypatch, 128 << 10)
    save_large(tmp_path / "first")
    reshard_version(only(tmp_path / "first"), 8, output=tmp_path / "second")
    reshard_version(only(tmp_path / "second"), 2, output=tmp_path / "run")
    parts = same_reshard(s3, tmp_path / "run", 8, client, tmp_path)
    assert parts.times_read < 1.1
    assert parts.tasks > 8


def test_misplaced_rows(s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None) -> None:
    """Rows in shards to which they do not belong are sent to where they do."""
    ids = np.arange(30_000)
    tables = {name: Table(ids, np.ones((len(ids), 4), np.float32) * k) for k, name in enumerate(("a", "b", "c"))}
    tables["small"] = Table(ids[:50], np.ones((50, 2), np.float32))
    write_unchecked(tmp_path / "run", 5, 4, tables)
    same_reshard(s3, tmp_path / "run", 6, client, tmp_path)


def test_in_place(s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None) -> None:
    """A version in a bucket is replaced in place by a cluster."""
    save_mixed(tmp_path / "run")
    s3.upload(tmp_path / "run")
    reshard_version(only(tmp_path / "run"), 5, output=tmp_path / "here")
    reshard_version(only(s3.url), 5, executor=client)
    assert in_bucket(s3) == shards_of(tmp_path / "here")
    nothing_is_left(s3)


@pytest.mark.slow
def test_a_killed_worker_of_a_reshard(
    s3: Bucket, large: Path, tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed when parts have arrived changes nothing of the result."""
    with killed_worker(processes, monkeypatch, RemoteOutput, "take"):
        reshard_version(only(large), 3, output=s3.url, executor=processes)
    reshard_version(only(large), 3, output=tmp_path / "here")
    assert in_bucket(s3) == shards_of(tmp_path / "here")
    nothing_is_left(s3)


def test_a_killed_command_of_a_reshard(s3: Bucket, large: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible, and the next one removes what it left."""
    command = ["reshard", str(large), "--ps", "3", "--output", s3.url, "--cluster", processes.scheduler.address]
    with environment(processes):
        killed_midway(s3, *command)
        assert not list_versions(s3.url).versions
        recover(s3.url)
    nothing_is_left(s3)
