"""Exports of a system's files by a cluster into a bucket: the bytes of one machine, and nothing visible before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bucket_parts import killed_midway, nothing_is_left, with_parts
from checkpoints import at, files_of, only
from cluster_tasks import environment, killed_worker, peak_bytes
from edl_ckpt.core import (
    EdlCkptError,
    Table,
    UnsupportedError,
    Version,
    export_version,
    recover,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.catalog.files import alone_at
from edl_ckpt.core.commit.publish.staged_objects import StagedObjects
from edl_ckpt.core.operations.export import Selection
from edl_ckpt.core.storage.location import Location
from foreign import SYSTEMS
from s3_fixtures import Bucket, begun_now
from s3_proxy import Fault, status

USERS = Selection(tables=("users",))


def objects_of(s3: Bucket) -> dict[str, bytes]:
    """Return the objects of the export."""
    return {key.removeprefix("run/out/"): s3.get(key) for key in s3.keys("run/out/")}


def same_export(s3: Bucket, version: Version, client: Any, tmp: Path, name: FormatName, **options: Any) -> None:
    """Export a version to a disk by threads, and to a bucket by a cluster; compare all bytes and the results."""
    tmp.mkdir(exist_ok=True)
    here = export_version(version, tmp / "out", format_name=name, **options)
    s3.proxy.reset()
    there = export_version(version, f"{s3.url}/out", format_name=name, executor=client, **options)
    found, wanted = objects_of(s3), files_of(tmp / "out")
    assert found.keys() == wanted.keys()
    assert [key for key in found if found[key] != wanted[key]] == []
    for each in ("fingerprint", "variables", "tables", "rows", "proved", "overflowed", "items", "left_out"):
        assert getattr(there, each) == getattr(here, each)
    nothing_is_left(s3)
    assert verify_version(alone_at(Location.of(f"{s3.url}/out")), level="deep").ok


def save_all(place: Path) -> None:
    """Save tables of ids 0 to n - 1 in no order, of narrow and of wide rows, and variables of several sizes."""
    random = np.random.default_rng(7)
    tables = {
        "users": Table(random.permutation(6000), random.random((6000, 8), np.float32)),
        "wide": Table(random.permutation(100), random.random((100, 250), np.float32)),
    }
    variables: dict[str, Any] = {f"small/{n}": random.random(n, np.float32) for n in range(20)}
    variables |= {"w": random.random((100, 301)), "v": random.random((300, 33), np.float32), "empty": np.zeros((0, 3))}
    save_checkpoint(place, 5, 3, variables=variables, tables=tables, layout="elasticdl")


@pytest.mark.parametrize("ranks", [3, 1])
@pytest.mark.parametrize("name", ["dcp", "tfra", "dynamicemb", "torch-checkpointing"])
@pytest.mark.usefixtures("tiny_stretches")
def test_same_bytes(
    s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, name: FormatName, ranks: int
) -> None:
    """The files of each system are those of a disk, however small the parts, and each byte is sent once."""
    with_parts(monkeypatch, 16 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.file_parts.EXACT_BYTES", 50_000)
    save_all(tmp_path / "run")
    tables = USERS if name in {"tfra", "dynamicemb"} else None
    same_export(s3, only(tmp_path / "run"), client, tmp_path / "here", name, ranks=ranks, selection=tables)
    assert s3.proxy.request_bytes("upload_part") == sum(map(len, objects_of(s3).values()))
    assert s3.proxy.count("upload_part") > 5


@pytest.mark.parametrize("name", ["dcp", "torch-checkpointing"])
@pytest.mark.usefixtures("tiny_stretches")
def test_rows_with_numbers(
    s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, name: FormatName
) -> None:
    """A matrix of a system goes out by the numbers of its rows."""
    with_parts(monkeypatch, 1 << 10)
    same_export(s3, at(SYSTEMS / "dcp/torchrec", 2), client, tmp_path / "here", name, ranks=3)


@pytest.mark.usefixtures("tiny_stretches")
def test_a_bundle(s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where groups of keys begin, and the checksums of the index, are those of one machine."""
    with_parts(monkeypatch, 1 << 10)
    same_export(s3, at(SYSTEMS / "bundle/deeprec", 100), client, tmp_path / "here", "tensorflow", ranks=2)


def test_few_bytes(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A file that is smaller than a part is an upload of one part."""
    same_export(s3, at(SYSTEMS / "tfra", 3), client, tmp_path / "here", "tfra", ranks=2)
    assert s3.proxy.count("upload_part") == s3.proxy.count("create_upload") / 2


def test_a_killed_worker(
    s3: Bucket, large: Path, tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed when the first parts have arrived changes nothing of the result; memory is bounded."""
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 1 << 20)
    with killed_worker(processes, monkeypatch, StagedObjects, "take"):
        same_export(s3, only(large), processes, tmp_path / "here", "tfra", ranks=2, selection=USERS)
    assert max(processes.run(peak_bytes).values()) < 400 << 20


def test_a_killed_command(s3: Bucket, large: Path, tmp_path: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible; `recover` removes what is left, and the next one succeeds."""
    chosen = ("--format", "dynamicemb", "--ranks", "2", "--table", "users")
    with environment(processes):
        command = ("export", f"{large}@7", f"{s3.url}/out", *chosen, "--cluster", processes.scheduler.address)
        killed_midway(s3, *command)
        assert objects_of(s3) == {}
        s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
        recover(s3.url)
        nothing_is_left(s3)
        s3.proxy.heal()
        same_export(s3, only(large), processes, tmp_path / "here", "dynamicemb", ranks=2, selection=USERS)


def test_a_part_that_does_not_arrive(s3: Bucket, client: Any) -> None:
    """Where the storage refuses a part, nothing becomes visible and nothing is left."""
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="upload_part", key="__1_0", times=None))
    with pytest.raises(EdlCkptError, match="AccessDenied"):
        export_version(at(SYSTEMS / "dcp/torchrec", 2), f"{s3.url}/out", format_name="dcp", executor=client, ranks=3)
    assert objects_of(s3) == {}
    nothing_is_left(s3)


def test_other_workers_cannot_write_there(s3: Bucket, client: Any) -> None:
    """A worker without access to the bucket is refused before any part is sent."""
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="put", key="token-.*-"))
    with pytest.raises(UnsupportedError, match="cannot read and write where"):
        export_version(at(SYSTEMS / "tfra", 3), f"{s3.url}/out", format_name="tfra", executor=client, ranks=2)
    assert not s3.proxy.count("upload_part")
    nothing_is_left(s3)
