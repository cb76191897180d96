"""S3 as a home: every command there, requests counted, generations pinned, nothing visible that is not whole."""

from __future__ import annotations

import itertools
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from checkpoints import at
from edl_ckpt.core import (
    CheckpointSaver,
    Table,
    execute_reshard,
    export_version,
    fingerprint_checkpoint,
    list_versions,
    open_checkpoint,
    prepare_reshard,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, LockedError
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.storage import Location, open_store, windows
from edl_ckpt.core.storage.parts import PartMemory
from edl_ckpt.core.storage.s3.upload import MIN_PART_BYTES
from program import edl
from s3_fixtures import Bucket
from s3_proxy import Fault, hook


def test_listing_is_cheap(s3: Bucket) -> None:
    """A thousand versions of eight shards are listed in at most ten requests, none of them a GET."""
    from moto.s3.models import s3_backends

    backend = next(b for b in s3_backends.values() if s3.name in b["aws"].buckets)["aws"]
    for version, shard in itertools.product(range(1000), range(8)):
        backend.put_object(s3.name, f"run/version-{version}/variables-{shard}-of-8.ckpt", b"x")
    listed = list_versions(s3.url).versions
    assert len(listed) == 1000
    assert all(len(v.shards) == 8 for v in listed)
    assert s3.proxy.count("list") == s3.proxy.count() <= 10


def test_looking_is_cheap(s3: Bucket, large: Path) -> None:
    """A shard of ten megabytes is inspected with a few ranged GETs, of less than a megabyte in all."""
    s3.upload(large)
    version = at(s3.url)
    s3.proxy.reset()
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.table_names == ["users"]
    for shard in version.shards:
        seen = s3.proxy.seen("get", key=shard.path.rpartition("/")[2])
        assert len(seen) <= 4
        assert all(request.range for request in seen)
    assert s3.proxy.response_bytes("get") < 1 << 20


def test_shards_are_opened_together(s3: Bucket, tmp_path: Path) -> None:
    """Eight shards are asked for at the same time; variables of 64 KiB come with the index, in a few growing reads."""
    variables = {f"dense_{v}/kernel:0": np.full((128, 128), v, np.float32) for v in range(50)}
    users = Table(np.arange(1000, dtype=np.int64), np.ones((1000, 16), np.float32))
    save_checkpoint(tmp_path, 1, 8, variables=variables, tables={"users": users})
    s3.upload(tmp_path)
    version = at(s3.url)
    s3.proxy.reset()
    together = threading.Barrier(8)
    s3.proxy.fail(Fault(hook(lambda _request: together.wait(60)), operation="get", times=8))
    with open_checkpoint(version) as checkpoint:
        assert len(checkpoint.variable_names) == 50
        deepest = max(s3.proxy.count("get", key=f"variables-{k}-of-8") for k in range(8))
        assert deepest <= 5
        before = s3.proxy.count("get")
        for name in variables:
            assert checkpoint.variable(name)[0, 0] == float(name[6:].partition("/")[0])
        assert s3.proxy.count("get") <= before + 4
        s3.proxy.heal()
        together = threading.Barrier(8)
        s3.proxy.fail(Fault(hook(lambda _request: together.wait(60)), operation="head", times=8))
        checkpoint.check_unchanged()


def test_small_shards_take_one_request_each(s3: Bucket, tmp_path: Path) -> None:
    """A shard of less than 256 KiB is read with one GET, its values included."""
    users = Table(np.arange(2000, dtype=np.int64), np.ones((2000, 16), np.float32))
    save_checkpoint(tmp_path, 1, 20, variables={}, tables={"users": users})
    s3.upload(tmp_path)
    version = at(s3.url)
    s3.proxy.reset()
    with open_checkpoint(version) as checkpoint:
        fingerprint_checkpoint(checkpoint, workers=4)
    assert s3.proxy.count() == s3.proxy.count("get") == 20


def test_a_header_takes_one_request_however_many_there_are(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shards of 300 kB, with more first bytes than memory keeps, are opened by one GET each: each as it is indexed."""
    users = Table(np.arange(60_000, dtype=np.int64), np.ones((60_000, 14), np.float32))
    save_checkpoint(tmp_path, 1, 12, variables={}, tables={"users": users})
    s3.upload(tmp_path)
    version = at(s3.url)
    assert all(256 << 10 < shard.size_bytes < 512 << 10 for shard in version.shards)
    monkeypatch.setattr(windows, "ALL_BYTES", windows._Kept.size_bytes + 1_000_000)
    s3.proxy.reset()
    with open_checkpoint(version, workers=2) as checkpoint:
        assert checkpoint.table_names == ["users"]
        assert s3.proxy.count() == s3.proxy.count("get") == 12
        assert windows._Kept.size_bytes <= windows.ALL_BYTES
    assert verify_version(version, level="deep").findings == ()


@pytest.mark.parametrize("to_s3", [False, True])
def test_each_value_is_read_once(s3: Bucket, large: Path, tmp_path: Path, to_s3: bool) -> None:
    """A reshard from S3 gets each byte of values and ids once, and little else."""
    s3.upload(large)
    version = at(s3.url)
    with open_checkpoint(version) as checkpoint:
        entries = [t for s in checkpoint.shards for t in s.tables]
        values = sum(t.values.size_bytes for t in entries)
        values += sum(v.size_bytes for s in checkpoint.shards for v in s.variables)
        ids = sum(run.end - run.start for t in entries for run in t.ids)
    s3.proxy.reset()
    output = f"s3://{s3.name}/out" if to_s3 else str(tmp_path / "out")
    reshard_version(version, 3, output=output)
    got = s3.proxy.response_bytes("get", key=r"run/version_7/")
    assert values + ids <= got < values + ids + (1 << 20)


def test_an_export_reads_once_and_uploads_together(s3: Bucket, tmp_path: Path) -> None:
    """An export from S3 gets each value once, with many parts of a table; to S3, its files go together."""
    variables = {f"dense_{v}": np.full(100_000, v, np.float32) for v in range(8)}
    users = Table(np.random.default_rng(1).permutation(40_000), np.ones((40_000, 16), np.float32))
    save_checkpoint(tmp_path, 7, 2, variables=variables, tables={"users": users})
    s3.upload(tmp_path)
    version = at(s3.url)
    s3.proxy.reset()
    together = threading.Barrier(8)
    s3.proxy.fail(Fault(hook(lambda _request: together.wait(60)), operation="complete", times=8))
    result = export_version(version, f"s3://{s3.name}/out", format_name="npy", part_bytes=300_000)
    assert (len(result.files), result.proved) == (11, True)
    assert version.size_bytes <= s3.proxy.response_bytes("get", key=r"run/version_7/") < version.size_bytes + 1_500_000


def test_checksums_and_values_are_read_in_one_pass(s3: Bucket, large: Path) -> None:
    """The proof of what was written, and verify --deep of what is sealed, get each byte once."""
    reshard_version(at(large), 3, output=s3.url)
    version = at(s3.url)
    most = version.size_bytes + 3 * (512 << 10)  # what is read ahead in each shard
    assert version.size_bytes <= s3.proxy.response_bytes("get", key="variables-") < most
    assert s3.proxy.count("get", key="variables-") < 3 * 8
    s3.proxy.reset()
    checked = verify_version(version, level="deep")
    assert (checked.sealed, checked.findings) == (True, ())
    assert version.size_bytes <= s3.proxy.response_bytes("get", key="variables-") < most


def test_verify_reads_a_seal_once(s3: Bucket, large: Path) -> None:
    """The command leaves the seal to the check itself, and finds a seal that does not match all the same."""
    reshard_version(at(large), 3, output=s3.url)
    seal = seal_file(at(s3.url).version)
    s3.proxy.reset()
    assert edl("verify", s3.url).returncode == 0
    assert s3.proxy.count("get", key=seal) == 1
    open_store(Location(s3.url)).write_small(seal, b"{}")
    assert edl("verify", s3.url).returncode == 3


def test_versions_are_deleted_together(s3: Bucket) -> None:
    """A prune of 30 versions takes a few requests to delete, in the safe order."""
    for version, shard in itertools.product(range(1, 33), range(3)):
        s3.put(f"run/version-{version}/variables-{shard}-of-3.ckpt", bytes([8, version]))
    order: list[set[str]] = []
    s3.proxy.fail(Fault(hook(lambda _request: order.append(set(s3.objects()))), operation="delete_many", times=None))
    result = prune([s3.url], Policy((Latest(2),)), now=1e10)
    assert (len(result.deleted), result.failed) == (30, ())
    assert {key.split("/")[1] for key in s3.objects()} == {"version-31", "version-32"}
    assert s3.proxy.count("delete_many") <= 5
    assert s3.proxy.count("delete", key="version-") == 0
    firsts = {f"run/version-{version}/variables-0-of-3.ckpt" for version in range(1, 31)}
    assert firsts <= order[0]
    assert not firsts & order[1]
    assert {key.replace("0-of", "1-of") for key in firsts} <= order[1]


def test_a_prune_reads_no_note_of_what_stays(s3: Bucket) -> None:
    """Notes on shards may be large: those on a version that is kept anyway are not read."""
    for version, shard in itertools.product((1, 2), range(2)):
        s3.put(f"run/version-{version}/variables-{shard}-of-2.ckpt", bytes([8, version]))
    CheckpointSaver(s3.url, ps_num=2, run="one", layout="elasticdl").save(3, {}, {})
    s3.proxy.reset()
    assert prune([s3.url], Policy((Latest(1),)), guards=Guards(grace_seconds=600)).deleted == (f"{s3.url}@1",)
    assert s3.proxy.count("get", key="shards-0") == 0


def test_open_parts_have_a_bound(s3: Bucket, large: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Parts are uploaded as they fill; those without memory wait on the disk, and a warning says so.

    Each part goes up once, however little memory there is, and the parts never take more than their memory.
    """
    caplog.set_level("INFO", logger="edl_ckpt")
    seen: list[PartMemory] = []
    real = PartMemory.close

    def close(self: PartMemory) -> None:
        seen.append(self)
        real(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartMemory, "close", close)
        plan, settings = prepare_reshard(at(large), 1, output=s3.url)
        assert (settings.warnings, settings.workers) == ((), 16)
        result = execute_reshard(plan, settings)
        assert seen[-1].peak_bytes <= settings.part_memory_bytes
        assert seen[-1].spooled_bytes == 0
        assert s3.proxy.count("upload_part") == -(-result.size_bytes // MIN_PART_BYTES)
        s3.proxy.reset()
        small, spooling = prepare_reshard(at(large), 2, output=f"s3://{s3.name}/b", max_memory_bytes=22 << 20)
        assert any("wait on the local disk" in warning for warning in spooling.warnings)
        assert execute_reshard(small, spooling).fingerprint == result.fingerprint
        assert seen[-1].peak_bytes <= spooling.part_memory_bytes == 11 << 20
        assert seen[-1].spooled_bytes > 0
        assert "went by the local disk" in caplog.text
        assert s3.proxy.count("upload_part") == sum(-(-s.size_bytes // MIN_PART_BYTES) for s in small.shards)
    assert verify_version(at(s3.url), level="deep").findings == ()
    assert verify_version(at(f"s3://{s3.name}/b"), level="deep").fingerprint == result.fingerprint


def test_one_generation(s3: Bucket, large: Path, tmp_path: Path) -> None:
    """An object that is overwritten while it is read is error 11, never a mixture; nothing is published."""
    s3.upload(large)
    name = "run/version_7/variables-0-of-2.chkpt"
    version = at(s3.url)
    other = bytes(reversed(s3.get(name)))
    for nth in (3, 5):
        s3.put(name, (large / "version_7/variables-0-of-2.chkpt").read_bytes())
        s3.proxy.fail(Fault(hook(lambda _request: s3.put(name, other)), operation="get", key="0-of-2", nth=nth))
        with pytest.raises(LockedError, match="overwritten"):
            reshard_version(version, 3, output=str(tmp_path / "out"))
        s3.proxy.heal()
    assert not (tmp_path / "out").exists() or os.listdir(tmp_path / "out") == []
    s3.delete(name)
    with pytest.raises(EdlCkptError, match="no such file"):
        open_checkpoint(version)


def test_many_shards_are_asked_together_whether_they_changed(s3: Bucket, tmp_path: Path) -> None:
    """One listing shows that forty shards are as they were opened; one that is not is asked, and found."""
    users = Table(np.arange(2000, dtype=np.int64), np.ones((2000, 4), np.float32))
    save_checkpoint(tmp_path, 1, 40, variables={}, tables={"users": users})
    s3.upload(tmp_path)
    with open_checkpoint(at(s3.url)) as checkpoint:
        s3.proxy.reset()
        checkpoint.check_unchanged()
        assert s3.proxy.count() == s3.proxy.count("list") == 1
        key = next(key for key in s3.objects() if key.endswith("variables-7-of-40.chkpt"))
        s3.put(key, s3.get(key)[:-1] + b"x")
        with pytest.raises(LockedError, match="overwritten or removed"):
            checkpoint.check_unchanged()
        assert s3.proxy.count("head") == 1
