"""An export on a cluster into a bucket: tasks send the parts of the files, which are those of one machine."""

from __future__ import annotations

import subprocess
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from bucket_parts import killed_midway, nothing_is_left, with_parts, without_upload
from builders import models, write_checkpoint, write_unchecked
from checkpoints import drop_seal, only, save_mixed, save_varied
from cluster_tasks import environment, killed_worker, peak_bytes, what_travels
from edl_ckpt.core import (
    CorruptError,
    EdlCkptError,
    LockedError,
    RefusedError,
    Table,
    UnsupportedError,
    save_checkpoint,
)
from edl_ckpt.core.checkpoint.scan import read_dense
from edl_ckpt.core.commit.uploads import SharedUploads
from edl_ckpt.core.ids import host_name
from edl_ckpt.core.operations.export import Selection, export_version, plan_export, send, send_tasks, spans, spread
from edl_ckpt.core.operations.export.interface import batch_rows
from edl_ckpt.core.operations.export.spans import Tables
from edl_ckpt.core.storage.location import Location
from frameworks import need
from oracle import Model
from s3_fixtures import Bucket
from s3_proxy import Fault, status


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """Cut everything into tasks of 32 KiB, of parts of 8 KiB: tables go through many runs and ranges."""
    with_parts(monkeypatch, 8 << 10)
    monkeypatch.setattr(spread, "_PIECE_BYTES", 32 << 10)


def files_below(path: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory, hidden ones too."""
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def same_export(s3: Bucket, source: Path, client: Any, tmp: Path, name: str, **options: Any) -> None:
    """Export the only version of a location here, and on a cluster into a bucket; compare every byte, and the results.

    Each byte of the files was sent once, and nothing is left beside them.
    """
    (tmp / "here").mkdir(exist_ok=True)
    here = export_version(only(source), tmp / "here" / name, **options)
    s3.proxy.reset()
    there = export_version(only(source), f"{s3.url}/{name}", executor=client, **options)
    wanted = files_below(tmp / "here")
    assert {key.removeprefix("run/"): s3.get(key) for key in s3.objects()} == wanted
    for each in ("fingerprint", "variables", "tables", "rows", "proved", "overflowed"):
        assert getattr(there, each) == getattr(here, each)
    assert [each.size_bytes for each in there.files] == [each.size_bytes for each in here.files]
    nothing_is_left(s3)


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("one.safetensors", "id"),
        ("many.safetensors", "stored"),
        pytest.param("arrays.npy", "id", marks=pytest.mark.slow),
        ("arrays.npy", "stored"),
    ],
)
def test_the_same_files(s3: Bucket, tmp_path: Path, client: Any, small_tasks: None, name: str, order: str) -> None:
    """Wide rows, narrow rows, no rows and variables are sent as this machine writes them, however small the pieces."""
    save_mixed(tmp_path / "run")
    several = {"max_shard_bytes": 1 << 20} if name.startswith("many") else {}
    options = {"selection": Selection(order=order), **several}
    plan = plan_export(only(tmp_path / "run"), f"{s3.url}/{name}", executor=client, **options)  # type: ignore[arg-type]
    assert not s3.objects()
    same_export(s3, tmp_path / "run", client, tmp_path, name, **options)
    assert {each.path: each.size_bytes for each in plan.files} == {s3_url(s3, k): n for k, n in s3.objects().items()}
    assert plan.sending is not None
    indexes = sum(key.endswith(".json") for key in s3.objects())
    assert s3.proxy.count("upload_part") == plan.sending.parts + indexes
    assert plan.sending.sorted_tables == (2 if order == "id" else 0)


def s3_url(s3: Bucket, key: str) -> str:
    """Return the URL of an object."""
    return f"s3://{s3.name}/{key}"


@pytest.mark.parametrize("name", ["one.safetensors", "arrays.npy"])
def test_few_tasks(s3: Bucket, tmp_path: Path, client: Any, name: str) -> None:
    """With parts of 5 MiB all of it is a part for each file."""
    save_varied(tmp_path / "run", 3)
    same_export(s3, tmp_path / "run", client, tmp_path, name)
    assert s3.proxy.count("upload_part") == s3.proxy.count("create_upload") == s3.proxy.count("complete")


@pytest.mark.parametrize(("order", "part_bytes"), [("id", 8 << 10), ("stored", 64 << 10), ("id", 5 << 20)])
def test_parquet(
    s3: Bucket,
    tmp_path: Path,
    client: Any,
    small_tasks: None,
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    part_bytes: int,
) -> None:
    """Each table is a file whose parts are encoded where they are sent, also where most are too small for a part."""
    need("pyarrow")
    with_parts(monkeypatch, part_bytes)
    monkeypatch.setattr("edl_ckpt.core.operations.export.interface._BATCH_ELEMENTS", 1 << 11)
    save_mixed(tmp_path / "run")
    same_export(s3, tmp_path / "run", client, tmp_path, "m.parquet", selection=Selection(order=order))
    for name in ("wide", "narrow"):
        found = need("pyarrow.parquet").read_table(pyarrow_file(s3.get(f"run/m.parquet/{name}.parquet")))
        assert found.num_rows == {"wide": 200, "narrow": 30_000}[name]
    if part_bytes < 5 << 20:
        assert s3.proxy.count("upload_part") > 20


@pytest.mark.parametrize("dim", [1, 16, 48, 1000, 1 << 21])
@pytest.mark.parametrize("piece_bytes", [1 << 20, 8 << 20, 16 << 20])
def test_encoded_rows_are_a_part(dim: int, piece_bytes: int) -> None:
    """A task encodes so many rows that they are a part of an upload, so few rows are encoded twice."""
    reader: Any = SimpleNamespace(_piece_bytes=piece_bytes, _least_bytes=5 << 20)
    form: Any = SimpleNamespace(dim=dim, width=4 * dim)
    rows = send.SendReader._aligned(reader, form)
    assert 5 << 20 <= rows * (8 + form.width) <= max(piece_bytes, 10 << 20, batch_rows(dim) * (8 + form.width))
    assert rows % batch_rows(dim) == 0


def pyarrow_file(data: bytes) -> Any:
    """Return bytes as pyarrow reads them."""
    return need("pyarrow").BufferReader(data)


@settings(max_examples=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=models(dtypes=st.sampled_from(["float32", "float16", "int64"])), ps_num=st.integers(1, 4))
def test_any_model_in_parquet(
    tmp_path_factory: pytest.TempPathFactory, s3: Bucket, client: Any, small_tasks: None, model: Model, ps_num: int
) -> None:
    """Any model is the same Parquet."""
    need("pyarrow")
    tmp = tmp_path_factory.mktemp("any")
    s3.delete(*s3.objects())
    write_checkpoint(tmp / "run", model, ps_num)
    same_export(s3, tmp / "run", client, tmp, "out", format_name="parquet")


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    model=models(dtypes=st.sampled_from(["float32", "float64", "int8", "int64", "bool"])),
    ps_num=st.integers(1, 4),
    form=st.sampled_from(["safetensors", "npy"]),
    dtype=st.sampled_from([None, "float16", "bfloat16"]),
    order=st.sampled_from(["id", "stored"]),
)
def test_any_model(
    tmp_path_factory: pytest.TempPathFactory,
    s3: Bucket,
    client: Any,
    small_tasks: None,
    model: Model,
    ps_num: int,
    form: str,
    dtype: str | None,
    order: str,
) -> None:
    """Any model on any number of servers is sent alike, also with its floats cast."""
    tmp = tmp_path_factory.mktemp("any")
    s3.delete(*s3.objects())
    write_checkpoint(tmp / "run", model, ps_num)
    same_export(s3, tmp / "run", client, tmp, "out", format_name=form, selection=Selection(dtype=dtype, order=order))


def test_a_part(s3: Bucket, tmp_path: Path, client: Any, small_tasks: None) -> None:
    """A part of a version, cast: what is left out is read for the fingerprint by workers too; safetensors reads it."""
    save_mixed(tmp_path / "run")
    selection = Selection(("wide",), (), "float16")
    same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors", selection=selection)
    (tmp_path / "back").write_bytes(s3.get("run/m.safetensors"))
    found = load_file(tmp_path / "back")
    assert found["wide.vectors"].dtype == np.float16
    assert (np.diff(found["wide.ids"]) > 0).all()


def test_parts_have_one_writer(
    s3: Bucket, tmp_path: Path, client: Any, small_tasks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of all tasks lie side by side in each file and in the runs, and each byte is sent once."""
    save_mixed(tmp_path / "run")
    ends: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    real = SharedUploads._writer

    def writer(self: SharedUploads, store: Any, extent: Any, memory: Any) -> Any:
        upload = self.uploads[extent.target]
        parts = (len(extent.edges) - 1, extent.edges[0], extent.edges[-1])
        ends.setdefault((upload.relative, upload.size_bytes), []).append((extent.first, *parts[1:]))
        assert min(np.diff(extent.edges)) >= 8 << 10 or extent.edges[-1] == upload.size_bytes
        return real(self, store, extent, memory)

    monkeypatch.setattr(SharedUploads, "_writer", writer)
    same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors", max_shard_bytes=1 << 20)
    assert len(ends) > 3
    for (_, size), found in ends.items():
        found.sort()
        assert [start for _, start, _ in found] == [0, *(end for *_, end in found[:-1])]
        assert found[-1][2] == size
    runs = 200 * (8 + 12_000) + 30_000 * (8 + 3)
    files = sum(size for key, size in s3.objects().items() if not key.endswith(".json"))
    assert sum(size for _, size in ends) == files + runs
    index = sum(size for key, size in s3.objects().items() if key.endswith(".json"))
    assert s3.proxy.request_bytes("upload_part") == files + runs + index


def test_a_killed_worker(
    s3: Bucket, large: Path, tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real process that is killed when parts have arrived changes nothing of the result; memory stays bounded."""
    monkeypatch.setattr(spread, "_PIECE_BYTES", 5 << 20)
    with killed_worker(processes, monkeypatch, send.SendReader, "_send"):
        same_export(s3, large, processes, tmp_path, "m.safetensors")
    assert max(processes.run(peak_bytes).values()) < 400 << 20


def test_a_killed_command(s3: Bucket, large: Path, tmp_path: Path, processes: Any) -> None:
    """After a command that is killed nothing is visible, and the next export removes what it left."""
    command = ["export", str(large), f"{s3.url}/m.safetensors", "--cluster", processes.scheduler.address]
    with environment(processes):
        killed_midway(s3, *command)
        assert "run/m.safetensors" not in s3.objects()
        left = f"run/.m.safetensors.20260101T000000-{host_name()}-{dead_pid()}-0a1b2c3d.edl-ckpt.work/runs-0"
        s3.put(left, b"what a killed command had put in order")
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
    late: list[tuple[Any, Any, Any]] = []
    real = send_tasks.SendWork.do

    def do(self: Any, opened: Any, task: Any, advance: Any) -> Any:
        if task.extents:
            late.append((self, opened, task))
        return real(self, opened, task, advance)

    with monkeypatch.context() as patched:
        patched.setattr(send_tasks.SendWork, "do", do)
        same_export(s3, tmp_path / "run", client, tmp_path, "m.safetensors")
    before = s3.objects()
    s3.proxy.fail(Fault(without_upload, operation="upload_part", times=None))
    work, _, task = late[-1]
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
    assert any(b"SendWork" in data for data in sent)
    assert not [data for data in sent if b"nobody-else" in data or b"not-to-be-seen" in data]


def test_a_worker_without_credentials(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A worker that may not write is refused before anything is begun, and nothing is left."""
    save_varied(tmp_path / "run", 2)
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="put", key="token-.*-"))
    with pytest.raises(UnsupportedError, match=r"cannot read and write where .*refused"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.safetensors", executor=client)
    assert not s3.proxy.count("create_upload")
    assert not s3.objects()


def test_an_id_twice(s3: Bucket, tmp_path: Path, client: Any, small_tasks: None) -> None:
    """An id that a table has twice, far apart, is the error of one machine, and nothing is left."""
    ids = np.array([*range(30_000, 0, -1), 7])
    write_unchecked(tmp_path / "run", 5, 2, {"t": Table(ids, np.ones((len(ids), 2), np.float32))})
    with pytest.raises(CorruptError, match="id 7 occurs twice"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.safetensors", executor=client)
    assert not s3.objects()
    assert not s3.open_uploads()


@pytest.mark.parametrize("damaged", ["ids", "variable", "encoded"])
def test_one_damaged_read(
    s3: Bucket, tmp_path: Path, client: Any, small_tasks: None, monkeypatch: pytest.MonkeyPatch, damaged: str
) -> None:
    """What one task sends and another one counts must be the same: a bit of one read is found, and nothing is left."""
    if damaged == "encoded":
        need("pyarrow")
        with_parts(monkeypatch, 64 << 10)  # a span is less than a part, and so it is read and encoded again
    damage = once_damaged()
    real_ids, real_dense, real_rows = Tables.ids, read_dense, spans._some_rows
    if damaged == "ids":
        monkeypatch.setattr(Tables, "ids", lambda *given: damage(real_ids(*given)))
    elif damaged == "variable":
        monkeypatch.setattr(send_tasks, "read_dense", lambda *given: damage(real_dense(*given)))
    else:
        monkeypatch.setattr(spans, "_some_rows", lambda *given: ((n, damage(rows)) for n, rows in real_rows(*given)))
    variables = {f"w{n}": np.ones(3000, np.float32) for n in range(3)} if damaged == "variable" else {}
    tables = {} if variables else {"t": Table(np.arange(3000), np.random.default_rng(1).random((3000, 3), np.float32))}
    save_checkpoint(tmp_path / "run", 5, 2, variables=variables, tables=tables)
    drop_seal(tmp_path / "run", 5)
    name = "m.parquet" if damaged == "encoded" else "m.safetensors"
    with pytest.raises(EdlCkptError, match=r"differently the second time; nothing was published"):
        export_version(only(tmp_path / "run"), f"{s3.url}/{name}", executor=client)
    nothing_is_left(s3)
    assert not s3.objects()


def once_damaged() -> Any:
    """Return a function that returns its array; the first one has one wrong bit."""
    numbers = count()

    def damage(found: Any) -> Any:
        if not next(numbers):
            found = found.copy()
            found.reshape(-1).view(np.uint8)[-1] ^= 1
        return found

    return damage


def test_replaced(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """An output that is there stays, unless it is forced; then files that the new one does not have are gone."""
    save_varied(tmp_path / "run", 2)
    s3.put("run/m.npy/old.npy", b"old")
    with pytest.raises(RefusedError, match="exists already"):
        export_version(only(tmp_path / "run"), f"{s3.url}/m.npy", executor=client)
    assert s3.objects() == {"run/m.npy/old.npy": 3}
    same_export(s3, tmp_path / "run", client, tmp_path, "m.npy", force=True)
