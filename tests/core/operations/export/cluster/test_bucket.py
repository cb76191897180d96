"""An export on a cluster into a bucket: each task sends a file, and the command completes all of them."""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bucket_parts import killed_midway, nothing_is_left, with_parts, without_upload
from builders import write_unchecked
from checkpoints import drop_seal, only, save_mixed, save_varied
from cluster_tasks import environment, killed_worker, note_tasks, peak_bytes, what_travels
from edl_ckpt.core import (
    CorruptError,
    EdlCkptError,
    LockedError,
    RefusedError,
    Table,
    UnsupportedError,
    save_checkpoint,
)
from edl_ckpt.core.base.ids import host_name
from edl_ckpt.core.operations.export import Selection, export_version
from edl_ckpt.core.operations.export.cluster.task import PartWork
from edl_ckpt.core.operations.export.content import variables as exported
from edl_ckpt.core.operations.export.output.target import UploadTarget
from edl_ckpt.core.storage.location import Location
from exported_parts import cut_small, same_content
from frameworks import need
from s3_fixtures import Bucket
from s3_proxy import Fault, status


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """Cut tables into files of 64 KiB, of parts of 8 KiB."""
    with_parts(monkeypatch, 8 << 10)
    cut_small(monkeypatch, 64 << 10)


def same_export(s3: Bucket, source: Path, client: Any, tmp: Path, name: str, **options: Any) -> None:
    """Export the only version of a location here, and on a cluster into a bucket; compare content and results.

    Nothing is left next to it.
    """
    (tmp / "here").mkdir(exist_ok=True)
    here = export_version(only(source), tmp / "here" / name, **options)
    s3.proxy.reset()
    there = export_version(only(source), f"{s3.url}/{name}", executor=client, **options)
    for key in s3.objects():
        path = tmp / "there" / key.removeprefix("run/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(s3.get(key))
    same_content(tmp / "here" / name, tmp / "there" / name)
    assert {file.path: file.size_bytes for file in there.files} == {
        f"s3://{s3.name}/{key}": size for key, size in s3.objects().items()
    }
    for each in ("fingerprint", "variables", "tables", "rows", "proved", "overflowed"):
        assert getattr(there, each) == getattr(here, each)
    nothing_is_left(s3)


@pytest.mark.parametrize("order", ["id", "stored"])
@pytest.mark.parametrize("name", ["m.safetensors", "m.parquet"])
@pytest.mark.usefixtures("small_files")
def test_many_files(s3: Bucket, tmp_path: Path, client: Any, name: str, order: str) -> None:
    """Tables are cut into files, and files into parts; each byte is sent once."""
    if name == "m.parquet":
        need("pyarrow")
    save_mixed(tmp_path / "run")
    same_export(s3, tmp_path / "run", client, tmp_path, name, selection=Selection(order=order))
    assert len(s3.objects()) > 6
    assert s3.proxy.count("upload_part") > len(s3.objects())
    parts = sum(size for key, size in s3.objects().items() if not key.endswith(".json"))
    assert parts <= s3.proxy.request_bytes("upload_part") <= sum(s3.objects().values())


def test_few_files(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """What is small is one file, of one part."""
    save_varied(tmp_path / "run", 3)
    same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors")
    assert s3.proxy.count("create_upload") == s3.proxy.count("complete") <= 2


@pytest.mark.usefixtures("small_files")
def test_a_part(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A part of a version, cast: what is left out is read for the fingerprint by workers too."""
    save_mixed(tmp_path / "run")
    selection = Selection(("wide",), (), "float16")
    same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors", selection=selection)


@pytest.mark.parametrize("name", ["m.safetensors", pytest.param("m.parquet", marks=pytest.mark.slow)])
def test_a_killed_worker(
    s3: Bucket, large: Path, tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A real process that is killed when a file has arrived changes nothing of the result; memory stays bounded."""
    if name == "m.parquet":
        need("pyarrow")
    cut_small(monkeypatch, 2 << 20)
    with killed_worker(processes, monkeypatch, UploadTarget, "take"):
        same_export(s3, large, processes, tmp_path, name)
    assert max(processes.run(peak_bytes).values()) < 400 << 20


def test_a_killed_command(s3: Bucket, large: Path, tmp_path: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible, and the next export removes what it left."""
    command = ["export", str(large), f"{s3.url}/m.safetensors", "--cluster", processes.scheduler.address]
    with environment(processes):
        killed_midway(s3, *command)
        assert not [key for key in s3.objects() if key.startswith("run/m.safetensors")]
        left = f"run/.m.safetensors.20260101T000000-{host_name()}-{dead_pid()}-0a1b2c3d.edl-ckpt.work/token"
        s3.put(left, b"what a killed command had written")
        s3.abort()
        save_varied(tmp_path / "run", 2)
        same_export(s3, tmp_path / "run", processes, tmp_path, "m.safetensors")


def dead_pid() -> int:
    """Return the number of a process that has ended."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


def test_a_late_task(s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that goes on when the export is done finds no upload, and what is visible stays as it is."""
    save_varied(tmp_path / "run", 2)
    late: list[tuple[Any, Any]] = []
    with monkeypatch.context() as patched:
        note_tasks(patched, PartWork, lambda work, task, _: late.append((work, task)))
        same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors")
    before = s3.objects()
    s3.proxy.fail(Fault(without_upload, operation="upload_part", times=None))
    work, task = late[-1]
    opened = work.open()
    with pytest.raises(LockedError, match="the upload is gone"):
        work.do(opened, task, lambda _: None)
    opened.close()
    assert s3.objects() == before


def test_no_credentials_in_a_task(s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What travels has neither the key nor the secret of the command line."""
    save_varied(tmp_path / "run", 2)
    sent = what_travels(monkeypatch)
    target = Location(f"{s3.url}/m.safetensors", {"key": "nobody-else", "secret": "not-to-be-seen"})
    export_version(only(tmp_path / "run"), target, executor=client)
    assert any(b"PartWork" in data for data in sent)
    assert not [data for data in sent if b"nobody-else" in data or b"not-to-be-seen" in data]


def test_a_worker_without_credentials(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A worker that may not write is refused before anything is begun, and nothing is left."""
    save_varied(tmp_path / "run", 2)
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="put", key="token-.*-"))
    with pytest.raises(UnsupportedError, match=r"cannot read and write where .*refused"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.safetensors", executor=client)
    assert not s3.proxy.count("create_upload")
    assert not s3.objects()


@pytest.mark.usefixtures("small_files")
def test_an_id_twice(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """An id that a table has twice, far apart, is the error of one machine, and nothing is left."""
    ids = np.array([*range(30_000, 0, -1), 7])
    write_unchecked(tmp_path / "run", 5, 2, {"t": Table(ids, np.ones((len(ids), 2), np.float32))})
    with pytest.raises(CorruptError, match="id 7 occurs twice"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.safetensors", executor=client)
    assert not s3.objects()
    assert not s3.open_uploads()


def test_one_damaged_read(s3: Bucket, tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What one task writes and another one counts must be the same: a bit of one read is found, and nothing is left."""
    real, numbers = exported.read_span, count()

    def read_span(checkpoint: Any, span: Any, sketch: Any) -> Any:
        pieces = real(checkpoint, span, sketch)
        if not next(numbers):
            piece, data = pieces[0]
            data[-1] ^= 1
            sketch.variables.clear()
            sketch.whole.clear()
            sketch.add_dense(piece.entry.name, piece.entry.size_bytes, piece.start, data)
        return pieces

    monkeypatch.setattr("edl_ckpt.core.operations.export.content.reader.read_span", read_span)
    variables = {f"w{n}": np.ones(9000, np.float32) for n in range(3)}
    save_checkpoint(tmp_path / "run", 5, 2, variables=variables, tables={})
    drop_seal(tmp_path / "run", 5)
    with pytest.raises(EdlCkptError, match=r"differently the second time; nothing was published"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.safetensors", executor=client)
    nothing_is_left(s3)
    assert not s3.objects()


def test_replaced(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """An output that is there stays, unless it is forced; then files that the new one does not have are gone."""
    save_varied(tmp_path / "run", 2)
    s3.put("run/m.safetensors/old.safetensors", b"old")
    with pytest.raises(RefusedError, match="exists already"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.safetensors", executor=client)
    assert s3.objects() == {"run/m.safetensors/old.safetensors": 3}
    same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors", force=True)
