"""An import on a cluster into a bucket: tasks send the parts of the shards, as those of a reshard."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from safetensors.numpy import save_file

from bucket_parts import in_bucket, killed_midway, nothing_is_left, with_parts
from checkpoints import only, save_large, save_mixed, save_varied, shards_of
from cluster_tasks import environment, killed_worker, what_travels
from edl_ckpt.core import (
    CorruptError,
    NotFoundError,
    UnsupportedError,
    import_arrays,
    list_versions,
    recover,
    verify_version,
)
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.moving.parts import PartsPlan
from edl_ckpt.core.moving.settings import settings_for
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.importing import plan_arrays, source
from edl_ckpt.core.storage.location import Location
from s3_fixtures import Bucket
from s3_proxy import Fault, status


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[PartsPlan]:
    """The plans of parts that imports carry out, which have stretches of a few thousand ids."""
    found: list[PartsPlan] = []
    real = settings_for

    def noted(*arguments: Any, **options: Any) -> Any:
        chosen = real(*arguments, **options)
        found.extend([chosen.parts] if chosen.parts else [])
        return chosen

    monkeypatch.setattr(source, "settings_for", noted)
    monkeypatch.setattr("edl_ckpt.core.operations.importing.source.IDS_AT_ONCE", 1 << 11)
    return found


def same_import(s3: Bucket, source: Path | str, ps_num: int, client: Any, tmp: Path) -> None:
    """Import arrays here, and on a cluster into a bucket; compare every byte, and verify the seal."""
    here = import_arrays(source, tmp / "here", 5, ps_num)
    s3.proxy.reset()
    there = import_arrays(source, s3.url, 5, ps_num, executor=client)
    assert in_bucket(s3) == shards_of(tmp / "here")
    assert (there.fingerprint, there.rows, there.bytes_written) == (here.fingerprint, here.rows, here.size_bytes)
    assert verify_version(only(s3.url), level="deep").sealed
    nothing_is_left(s3)


def test_requests(s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None, planned: list[PartsPlan]) -> None:
    """Each part has one writer, each byte is sent once, and the requests are those of the plan."""
    save_mixed(tmp_path / "run")
    name, ps_num = "many.safetensors", 4
    order = Selection(order="stored")
    export_version(only(tmp_path / "run"), tmp_path / name, selection=order, max_shard_bytes=1 << 20)
    same_import(s3, tmp_path / name, ps_num, client, tmp_path)
    (parts,) = planned
    assert parts.strategy == "direct"
    assert parts.tasks > 5
    assert parts.times_read < 1.5
    assert s3.proxy.count("upload_part") == parts.parts
    shown, chosen = plan_arrays(tmp_path / name, f"s3://{s3.name}/dry", 5, ps_num, executor=client)
    assert (chosen.parts, shown.size_bytes) == (parts, sum(map(len, shards_of(tmp_path / "here").values())))
    assert not s3.keys("dry/")
    assert s3.proxy.request_bytes("upload_part") == sum(map(len, shards_of(tmp_path / "here").values()))
    assert s3.proxy.count("create_upload") == s3.proxy.count("complete") == ps_num


def test_from_a_bucket(s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None) -> None:
    """Arrays in a bucket become shards in a bucket, and no value comes to this machine but for its ids in disorder."""
    ids = np.random.default_rng(1).permutation(9_000).astype(np.int32)
    save_file({"t.ids": ids, "t.vectors": np.ones((9_000, 9), np.float32), "w": np.arange(5000.0)}, tmp_path / "m")
    s3.put("m.safetensors", (tmp_path / "m").read_bytes())
    same_import(s3, f"s3://{s3.name}/m.safetensors", 3, client, tmp_path)


def test_several_files_in_a_bucket(s3: Bucket, tmp_path: Path, client: Any, tiny_stretches: None) -> None:
    """Workers read several files with an index from a bucket."""
    save_varied(tmp_path / "run", 2)
    name = "many.safetensors"
    export_version(only(tmp_path / "run"), tmp_path / name, max_shard_bytes=1 << 12)
    for file in sorted((tmp_path / name).iterdir()):
        s3.put(str(file.relative_to(tmp_path)), file.read_bytes())
    same_import(s3, f"s3://{s3.name}/{name}", 3, client, tmp_path)


@pytest.mark.parametrize("name", ["none", "none.npz", "m.parquet"])
def test_refused_in_a_bucket(s3: Bucket, client: Any, name: str) -> None:
    """What is not there, and what one machine must unpack, is an error before any work."""
    s3.put("m.parquet", b"PAR1")
    expected = UnsupportedError if name == "m.parquet" else NotFoundError
    with pytest.raises(expected):
        import_arrays(f"s3://{s3.name}/{name}", s3.url, 5, 2, executor=client)
    assert s3.keys("") == ["m.parquet"]


@pytest.mark.slow  # a reshard tests the same in the ordinary suite
@pytest.mark.parametrize("strategy", ["spilled", "grouped"])
def test_little_memory(
    s3: Bucket,
    tmp_path: Path,
    client: Any,
    tiny_stretches: None,
    planned: list[PartsPlan],
    monkeypatch: pytest.MonkeyPatch,
    strategy: str,
) -> None:
    """Parts without memory wait on the local disk; where that has no room, the source is read for each group."""
    with_parts(monkeypatch, 64 << 10)
    monkeypatch.setattr("edl_ckpt.core.moving.parts.WORKER_PART_BYTES", 320 << 10)
    if strategy == "grouped":
        monkeypatch.setattr(ClusterExecutor, "check_temporary", Mock(side_effect=UnsupportedError("no room")))
    save_large(tmp_path / "run")
    export_version(only(tmp_path / "run"), tmp_path / "m.safetensors")
    same_import(s3, tmp_path / "m.safetensors", 8, client, tmp_path)
    (parts,) = planned
    assert parts.strategy == strategy
    assert (parts.times_read > 1.9) == (strategy == "grouped")
    assert (parts.spilled_bytes > 0) == (strategy == "spilled")


def test_an_id_twice(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """An id that a table has twice is an error before anything is sent."""
    save_file({"t.ids": np.array([3, 1, 3]), "t.vectors": np.ones((3, 2), np.float32)}, tmp_path / "m.safetensors")
    with pytest.raises(CorruptError, match="id 3 occurs twice"):
        import_arrays(tmp_path / "m.safetensors", s3.url, 5, 2, executor=client)
    assert not s3.objects()


def test_a_worker_without_credentials(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A worker that may not write is refused before any part is sent, and nothing is left."""
    save_file({"a": np.zeros(3)}, tmp_path / "m.safetensors")
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="put", key="token-.*-"))
    with pytest.raises(UnsupportedError, match=r"cannot read and write where .*refused"):
        import_arrays(tmp_path / "m.safetensors", s3.url, 5, 2, executor=client)
    assert not s3.proxy.count("create_upload")
    nothing_is_left(s3)


def test_no_credentials_in_a_task(s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels has neither the key nor the secret of the command line."""
    save_varied(tmp_path / "run", 2)
    export_version(only(tmp_path / "run"), tmp_path / "m.safetensors")
    sent = what_travels(monkeypatch)
    target = Location(s3.url, {"key": "nobody-else", "secret": "not-to-be-seen"})
    import_arrays(tmp_path / "m.safetensors", target, 5, 2, executor=client)
    assert any(b"move_task" in data for data in sent)
    assert not [data for data in sent if b"nobody-else" in data or b"not-to-be-seen" in data]


@pytest.mark.slow
def test_a_killed_worker(
    s3: Bucket, large: Path, tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process that is killed when parts have arrived changes nothing of the result."""
    export_version(only(large), tmp_path / "m.safetensors")
    with killed_worker(processes, monkeypatch, RemoteOutput, "take"):
        same_import(s3, tmp_path / "m.safetensors", 3, processes, tmp_path)


def test_a_killed_command(s3: Bucket, large: Path, tmp_path: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible, and the next one removes what it left."""
    export_version(only(large), tmp_path / "m.safetensors")
    command = ["import", str(tmp_path / "m.safetensors"), f"{s3.url}@5", "--ps", "3"]
    with environment(processes):
        killed_midway(s3, *command, "--cluster", processes.scheduler.address)
    assert not list_versions(s3.url).versions
    recover(s3.url)
    nothing_is_left(s3)
