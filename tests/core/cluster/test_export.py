"""An export on a cluster: the same bytes in every file, in pieces of any size, whatever happens to workers."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from builders import models, write_checkpoint, write_unchecked
from checkpoints import only, save_large, save_mixed
from cluster_tasks import renewed
from edl_ckpt.core import CorruptError, EdlCkptError, Table, UnsupportedError, open_checkpoint, save_checkpoint
from edl_ckpt.core.commit.shared_files import SharedFiles
from edl_ckpt.core.operations.export import Selection, export_version, spread
from edl_ckpt.core.operations.export import runs as runs_module
from edl_ckpt.core.operations.export.spans import WriteWork
from edl_ckpt.core.parallel import RESULT_BYTES
from frameworks import need
from oracle import Model


def files_below(path: Path) -> dict[str, bytes]:
    """Return the content of all files below a directory, hidden ones too."""
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def same_export(source: Path, client: Any, tmp: Path, name: str, **options: Any) -> None:
    """Export the only version of a location here and on a cluster; compare every byte, and the results."""
    results = []
    for where, executor in (("here", None), ("there", client)):
        (tmp / where).mkdir(exist_ok=True)
        results.append(export_version(only(source), tmp / where / name, executor=executor, **options))
    here, there = results
    assert files_below(tmp / "there") == files_below(tmp / "here")
    assert not [each for each in (tmp / "there").iterdir() if each.name.startswith(".")]
    for each in ("fingerprint", "variables", "tables", "rows", "proved", "overflowed"):
        assert getattr(there, each) == getattr(here, each)


@pytest.fixture
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut everything into tasks of 32 KiB: tables go through dozens of runs and ranges."""
    monkeypatch.setattr(spread, "_PIECE_BYTES", 32 << 10)
    monkeypatch.setattr(runs_module, "_INDEX_BYTES", 0)


@pytest.mark.parametrize("order", ["id", "stored"])
def test_the_same_files(tmp_path: Path, client: Any, order: str) -> None:
    """Wide rows, narrow rows, no rows and variables are written alike; safetensors itself reads the values."""
    save_mixed(tmp_path / "run")
    options: dict[str, Any] = {"selection": Selection(order=order), "max_shard_bytes": 1 << 20}
    same_export(tmp_path / "run", client, tmp_path, "m.safetensors", **options)
    weights = json.loads((tmp_path / "there/m.safetensors/model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(weights.values())) > 1
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        found = {n: load_file(tmp_path / "there/m.safetensors" / f)[n] for n, f in weights.items()}
        assert np.array_equal(found["w"], checkpoint.variable("w"))
        ids, rows = (np.concatenate(parts) for parts in zip(*checkpoint.table("wide"), strict=True))
        sought = np.argsort(ids)
        back = np.argsort(found["wide.ids"])
        assert np.array_equal(found["wide.ids"][back], ids[sought])
        assert np.array_equal(found["wide.vectors"][back], rows[sought])


@pytest.mark.parametrize("order", ["id", "stored"])
@pytest.mark.parametrize("name", ["one.safetensors", "arrays.npy", "m.parquet"])
def test_many_tasks(tmp_path: Path, client: Any, small_tasks: None, name: str, order: str) -> None:
    """However small the pieces are, the files are those of one machine."""
    if name == "m.parquet":
        need("pyarrow")
    save_mixed(tmp_path / "run")
    same_export(tmp_path / "run", client, tmp_path, name, selection=Selection(order=order))


@settings(max_examples=3)
@given(
    model=models(dtypes=st.sampled_from(["float32", "float64", "int8", "int64", "bool"])),
    ps_num=st.integers(1, 4),
    form=st.sampled_from(["safetensors", "npy"]),
    dtype=st.sampled_from([None, "float16", "bfloat16"]),
    order=st.sampled_from(["id", "stored"]),
)
def test_any_model(
    tmp_path_factory: pytest.TempPathFactory,
    client: Any,
    model: Model,
    ps_num: int,
    form: str,
    dtype: str | None,
    order: str,
) -> None:
    """Any model on any number of servers is exported alike, also with its floats cast."""
    tmp = tmp_path_factory.mktemp("any")
    write_checkpoint(tmp / "run", model, ps_num)
    same_export(tmp / "run", client, tmp, "out", format_name=form, selection=Selection(dtype=dtype, order=order))


@settings(max_examples=2)
@given(model=models(dtypes=st.sampled_from(["float32", "float16", "int64"])), ps_num=st.integers(1, 4))
def test_any_model_in_parquet(tmp_path_factory: pytest.TempPathFactory, client: Any, model: Model, ps_num: int) -> None:
    """Any model is the same Parquet, which pyarrow reads: file by file, for tables may differ in their dtypes."""
    need("pyarrow")
    tmp = tmp_path_factory.mktemp("any")
    write_checkpoint(tmp / "run", model, ps_num)
    same_export(tmp / "run", client, tmp, "out", format_name="parquet")
    rows = sum(len(table.rows) for table in model.tables.values())
    files = [file for file in (tmp / "there/out", *(tmp / "there").rglob("out/*.parquet")) if file.is_file()]
    assert sum(need("pyarrow.parquet").read_table(file).num_rows for file in files) == rows


def test_a_part(tmp_path: Path, client: Any, small_tasks: None) -> None:
    """A part of a version, cast: what is left out is read for the fingerprint by workers too."""
    save_mixed(tmp_path / "run")
    same_export(tmp_path / "run", client, tmp_path, "m.safetensors", selection=Selection(("wide",), (), "float16"))


def test_killed_workers(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is killed while runs are written changes nothing of the result, and nothing is left."""
    save_large(tmp_path / "run")
    monkeypatch.setattr(spread, "_PIECE_BYTES", 1 << 18)
    pids = sorted(processes.run(os.getpid).values())
    real = spread.SpreadReader._write_runs

    def write_runs(*arguments: Any) -> None:
        killer = threading.Timer(0.1, os.kill, (pids[0], signal.SIGKILL))
        killer.start()
        real(*arguments)
        killer.join()

    monkeypatch.setattr(spread.SpreadReader, "_write_runs", write_runs)
    try:
        same_export(tmp_path / "run", processes, tmp_path, "m.safetensors")
    finally:
        renewed(processes, pids[0])


def test_an_id_twice(tmp_path: Path, client: Any, small_tasks: None) -> None:
    """An id that a table has twice, far apart, is the error of one machine, and nothing is left."""
    ids = np.array([*range(30_000, 0, -1), 7])
    write_unchecked(tmp_path / "run", 5, 2, {"t": Table(ids, np.ones((len(ids), 2), np.float32))})
    (tmp_path / "out").mkdir()
    for executor in (None, client):
        with pytest.raises(CorruptError, match="id 7 occurs twice") as caught:
            export_version(only(tmp_path / "run"), tmp_path / "out/m.safetensors", executor=executor)
        assert caught.value.code == "duplicate-id"
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("output", "options", "says"),
    [
        ("m.csv", {"selection": Selection(tables=("wide",))}, "a cluster cannot export as csv"),
        ("m.npz", {}, "a cluster cannot export as npz"),
        ("m.npy", {"selection": Selection(dense_rows="auto")}, "not as a matrix"),
        ("memory://out/m.safetensors", {}, "to S3, or to a file system that all of its workers share"),
        ("-", {"format_name": "safetensors"}, "cannot write into a stream"),
    ],
)
def test_refused(tmp_path: Path, client: Any, output: str, options: dict[str, Any], says: str) -> None:
    """What a cluster cannot write is refused, and nothing is left."""
    save_mixed(tmp_path / "run")
    (tmp_path / "out").mkdir()
    goal = output if output.startswith("memory:") else "/dev/stdout" if output == "-" else tmp_path / "out" / output
    with pytest.raises(UnsupportedError, match=says) as caught:
        export_version(only(tmp_path / "run"), goal, executor=client, **options)
    assert caught.value.exit_code == 15
    assert not list((tmp_path / "out").iterdir())


def test_a_late_write(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another machine that goes on after the commit writes into a file that nobody has."""
    save_mixed(tmp_path / "run")
    late: list[int] = []
    real = SharedFiles.end

    def end(self: SharedFiles) -> None:
        """Stand for a worker that opened a file, and then was stopped."""
        Path(self.targets.writers, "stopped").write_text(json.dumps({"kernel": "another", "pid": 1, "targets": [0]}))
        late.append(os.open(self.targets.names[0], os.O_WRONLY))
        real(self)

    monkeypatch.setattr(SharedFiles, "end", end)
    same_export(tmp_path / "run", client, tmp_path, "m.safetensors")
    assert os.pwrite(late[0], b"late" * 100, 0) == 400
    assert os.fstat(late[0]).st_nlink == 0
    os.close(late[0])
    assert files_below(tmp_path / "there") == files_below(tmp_path / "here")


@pytest.mark.parametrize(
    ("name", "kind", "dtype", "back"),
    [
        ("m.safetensors", "table", None, 9),
        ("m.parquet", "table", None, 9),
        ("m.safetensors", "table", "float16", 9),
        ("m.safetensors", "variable", "float16", 9),
        ("m.npy", "variable", None, 0),
    ],
)
def test_a_byte_that_changed(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, dtype: str | None, back: int
) -> None:
    """A byte that is not the one that was written is found before anything is visible: cast values and heads, too."""
    if name == "m.parquet":
        need("pyarrow")
    rows = np.random.default_rng(2).random((900, 4))
    is_table = kind == "table"
    variables, tables = {} if is_table else {"w": rows}, {"t": Table(np.arange(900), rows)} if is_table else {}
    save_checkpoint(tmp_path / "run", 7, 2, variables=variables, tables=tables)
    (tmp_path / "out").mkdir()
    real = SharedFiles.end

    def end(self: SharedFiles) -> None:
        real(self)
        path = Path(self.targets.names[0])
        with path.open("r+b") as file:
            file.seek(path.stat().st_size - back if back else 3)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))

    monkeypatch.setattr(SharedFiles, "end", end)
    selection = Selection(dtype=dtype)
    with pytest.raises(EdlCkptError, match="nothing was published"):
        export_version(only(tmp_path / "run"), tmp_path / "out" / name, selection=selection, executor=client)
    assert not list((tmp_path / "out").iterdir())


def test_sums_of_casts_are_small_results(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that casts gives back two sums of each table or variable, and still no more than a small result."""
    rows = np.random.default_rng(3).random((9, 100))
    tables = {f"t{k}": Table(np.arange(9), rows) for k in range(20)}
    save_checkpoint(tmp_path / "run", 7, 2, variables={f"w{k}": rows[:5] for k in range(20)}, tables=tables)
    sizes: list[int] = []
    real = WriteWork.do

    def do(self: WriteWork, opened: Any, task: Any, advance: Any) -> Any:
        found = real(self, opened, task, advance)
        sizes.append(len(pickle.dumps(found)))
        return found

    monkeypatch.setattr(WriteWork, "do", do)
    same_export(tmp_path / "run", client, tmp_path, "m.safetensors", selection=Selection(dtype="float32"))
    assert RESULT_BYTES // 4 < max(sizes) < 64 << 10


def test_a_killed_command(tmp_path: Path) -> None:
    """What a command that was killed left beside its output, the next one removes: the work of others too."""
    (tmp_path / "out").mkdir()
    code = (
        "import os, sys\nfrom edl_ckpt.core.commit.single_file import StagedOutput\n"
        "staged = StagedOutput(sys.argv[1], is_directory=True, force=False).__enter__()\n"
        "open(os.path.join(staged.share(), 'runs'), 'w').close()\nos._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out/m.npy")], check=False)
    assert len(list((tmp_path / "out").iterdir())) == 2
    save_mixed(tmp_path / "run")
    export_version(only(tmp_path / "run"), tmp_path / "out/m.npy")
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["m.npy"]
