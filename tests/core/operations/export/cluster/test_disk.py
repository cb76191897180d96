"""An export on a cluster to a file system that all share: a file for each task, with the content of one machine."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import models, write_checkpoint, write_unchecked
from checkpoints import only, save_large, save_mixed
from cluster_tasks import note_tasks, renewed
from edl_ckpt.core import CorruptError, EdlCkptError, Table, UnsupportedError, save_checkpoint
from edl_ckpt.core.base.parallel import RESULT_BYTES
from edl_ckpt.core.operations.export import Selection, export_version, plan_export
from edl_ckpt.core.operations.export.cluster.task import PartWork
from edl_ckpt.core.operations.export.formats.parquet_file import TableFile
from edl_ckpt.core.operations.export.output.places import OutputFile
from edl_ckpt.core.operations.export.output.target import LocalTarget
from edl_ckpt.core.storage.files import PreallocatedFile
from examples import examples
from exported_parts import cut_small, same_content, tables, tensors
from frameworks import need
from oracle import Model

FORMATS = ["m.safetensors", "m.parquet"]


def same_export(source: Path, client: Any, tmp: Path, name: str, **options: Any) -> Path:
    """Export the only version of a location here and on a cluster; compare content and results, return the directory.

    Nothing is left next to it.
    """
    if name.endswith("parquet"):
        need("pyarrow")
    results = []
    for where, executor in (("here", None), ("there", client)):
        (tmp / where).mkdir(exist_ok=True)
        results.append(export_version(only(source), tmp / where / name, executor=executor, **options))
    here, there = results
    same_content(tmp / "here" / name, tmp / "there" / name)
    assert not [each for each in (tmp / "there").iterdir() if each.name.startswith(".")]
    for each in ("fingerprint", "variables", "tables", "rows", "proved", "overflowed"):
        assert getattr(there, each) == getattr(here, each)
    written = {str(path) for path in (tmp / "there").rglob("*") if path.is_file()}
    assert written == {file.path for file in there.files}
    return tmp / "there" / name


@pytest.mark.parametrize("order", ["id", "stored"])
@pytest.mark.parametrize("name", FORMATS)
def test_one_file(tmp_path: Path, client: Any, name: str, order: str) -> None:
    """What is small is one file of each table, or of all tensors: wide rows, narrow rows, no rows and variables."""
    save_mixed(tmp_path / "run")
    there = same_export(tmp_path / "run", client, tmp_path, name, selection=Selection(order=order))
    assert there.is_dir()
    assert len(list(there.glob("*.safetensors"))) <= 1


@pytest.mark.parametrize("order", ["id", "stored"])
@pytest.mark.parametrize("name", FORMATS)
def test_many_files(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, name: str, order: str) -> None:
    """A table that is larger than a file is several files, which ascend in ids; the plan names all of them."""
    cut_small(monkeypatch, 64 << 10)
    save_mixed(tmp_path / "run")
    options: dict[str, Any] = {"selection": Selection(order=order)}
    (tmp_path / "there").mkdir()
    plan = plan_export(only(tmp_path / "run"), tmp_path / "there" / name, executor=client, **options)
    assert not list((tmp_path / "there").iterdir())
    there = same_export(tmp_path / "run", client, tmp_path, name, **options)
    sizes = {str(path): path.stat().st_size for path in (tmp_path / "there").rglob("*") if path.is_file()}
    assert {file.path for file in plan.files} == set(sizes)
    assert all(file.size_bytes in (None, sizes[file.path]) for file in plan.files)
    assert len(list(there.iterdir())) > 6


def test_a_data_set(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pandas and pyarrow take the directory of a table for one table, in the order of its ids."""
    cut_small(monkeypatch, 16 << 10)
    save_mixed(tmp_path / "run")
    there = same_export(tmp_path / "run", client, tmp_path, "m.parquet", selection=Selection(("narrow",)))
    assert len(list(there.glob("narrow-*.parquet"))) > 5
    ids, vectors = tables(tmp_path / "here/m.parquet")["narrow"]
    assert need("pyarrow.dataset").dataset(there).to_table()["id"].to_pylist() == ids
    read = need("pandas").read_parquet(there)
    assert read["id"].tolist() == ids == sorted(ids)
    assert np.stack(read["vector"].to_list()).tolist() == vectors


def test_the_largest_file(tmp_path: Path, client: Any) -> None:
    """`max_shard_bytes` bounds the files of a cluster too, but for what is estimated from a sample."""
    save_large(tmp_path / "run")
    there = same_export(tmp_path / "run", client, tmp_path, "m.safetensors", max_shard_bytes=2 << 20)
    sizes = [path.stat().st_size for path in there.glob("*.safetensors")]
    assert len(sizes) >= 8
    assert max(sizes) < 3 << 20


@examples(2)
@given(
    model=models(dtypes=st.sampled_from(["float32", "float64", "int8", "int64", "bool"])),
    ps_num=st.integers(1, 4),
    dtype=st.sampled_from([None, "float16", "float32"]),
    order=st.sampled_from(["id", "stored"]),
)
def test_any_model(
    tmp_path_factory: pytest.TempPathFactory,
    client: Any,
    monkeypatch: pytest.MonkeyPatch,
    model: Model,
    ps_num: int,
    dtype: str | None,
    order: str,
) -> None:
    """Any model on any number of servers is exported alike, also with its floats cast."""
    cut_small(monkeypatch, 100)
    tmp = tmp_path_factory.mktemp("any")
    write_checkpoint(tmp / "run", model, ps_num)
    options = {"selection": Selection(dtype=dtype, order=order), "format_name": "safetensors"}
    same_export(tmp / "run", client, tmp, "out", **options)


@examples(1)
@given(model=models(dtypes=st.sampled_from(["float32", "float16", "int64"])), ps_num=st.integers(1, 4))
def test_any_model_in_parquet(
    tmp_path_factory: pytest.TempPathFactory, client: Any, monkeypatch: pytest.MonkeyPatch, model: Model, ps_num: int
) -> None:
    """Any model has the same rows in Parquet."""
    cut_small(monkeypatch, 100)
    tmp = tmp_path_factory.mktemp("any")
    write_checkpoint(tmp / "run", model, ps_num)
    same_export(tmp / "run", client, tmp, "out.parquet")


def test_a_part(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of a version, cast: what is left out is read for the fingerprint by workers too."""
    cut_small(monkeypatch, 64 << 10)
    save_mixed(tmp_path / "run")
    there = same_export(
        tmp_path / "run", client, tmp_path, "m.safetensors", selection=Selection(("wide",), (), "float16")
    )
    assert tensors(there)["wide.vectors"].dtype == np.float16


@pytest.mark.parametrize("name", FORMATS)
def test_a_killed_worker(tmp_path: Path, processes: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A process that is killed when the first file is there changes nothing of the result, and nothing is left."""
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    save_large(tmp_path / "run")
    cut_small(monkeypatch, 1 << 20)
    pid = min(processes.run(os.getpid).values())
    real, killed = LocalTarget.take, list[int]()

    def take(*arguments: Any) -> None:
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)
        real(*arguments)

    monkeypatch.setattr(LocalTarget, "take", take)
    try:
        same_export(tmp_path / "run", processes, tmp_path, name)
    finally:
        renewed(processes, pid)
    assert killed


def test_an_id_twice(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that a table has twice, far apart, is the error of one machine, and nothing is left."""
    cut_small(monkeypatch, 32 << 10)
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
        ("m.npy", {}, "a cluster cannot export as npy"),
        ("m.safetensors", {"selection": Selection(dense_rows="auto")}, "not as a matrix"),
        ("m.safetensors", {"selection": Selection(remap=True)}, "not as a matrix"),
        ("m.safetensors", {"rename": (("wide", "w"),)}, "quantized or renamed"),
        ("memory://out/m.safetensors", {}, "to S3, or to a file system that all of its workers share"),
        ("-", {"format_name": "safetensors"}, "cannot write into a stream"),
    ],
)
def test_refused(tmp_path: Path, client: Any, output: str, options: dict[str, Any], says: str) -> None:
    """What a cluster cannot write is refused, with the way that is left; nothing is written."""
    save_mixed(tmp_path / "run")
    (tmp_path / "out").mkdir()
    goal = output if output.startswith("memory:") else "/dev/stdout" if output == "-" else tmp_path / "out" / output
    for function in (export_version, plan_export):
        with pytest.raises(UnsupportedError, match=says) as caught:
            function(only(tmp_path / "run"), goal, executor=client, **options)
        assert caught.value.exit_code == 15
        assert "without --cluster" in str(caught.value.hint)
    assert not list((tmp_path / "out").iterdir())


def test_a_late_task(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is done again after the commit finds no place, and what is visible stays as it is."""
    save_mixed(tmp_path / "run")
    late: list[tuple[Any, Any]] = []
    with monkeypatch.context() as patched:
        note_tasks(patched, PartWork, lambda work, task, _: late.append((work, task)))
        there = same_export(tmp_path / "run", client, tmp_path, "m.safetensors")
    before = {path: path.read_bytes() for path in there.iterdir()}
    work, task = late[-1]
    opened = work.open()
    with pytest.raises(EdlCkptError):
        work.do(opened, task, lambda _: None)
    opened.close()
    assert {path: path.read_bytes() for path in there.iterdir()} == before


@pytest.mark.parametrize("dtype", [None, "float16"])
@pytest.mark.parametrize("damaged", ["values", "head", "row groups"])
def test_a_byte_that_changed(
    tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, damaged: str, dtype: str | None
) -> None:
    """A byte that is not the one that was written is found before anything is visible: cast values and heads, too."""
    rows = np.random.default_rng(2).random((900, 4))
    save_checkpoint(tmp_path / "run", 7, 2, variables={"w": rows}, tables={"t": Table(np.arange(900), rows)})
    (tmp_path / "out").mkdir()
    name = "m.safetensors"
    if damaged == "values":
        real = PreallocatedFile.write
        monkeypatch.setattr(
            PreallocatedFile,
            "write",
            lambda self, offset, data: real(self, offset, flipped(data) if len(data) > 3000 else data),
        )
    elif damaged == "head":
        written = OutputFile.write

        def write(self: OutputFile, offset: int, data: bytes) -> None:
            written(self, offset, data)
            flip(self.path, 3)

        monkeypatch.setattr(OutputFile, "write", write)
    else:
        need("pyarrow")
        name, encoded = "m.parquet", TableFile.write

        def write_batches(self: TableFile, batches: Any) -> None:
            encoded(self, batches)
            flip(self.path, -9)

        monkeypatch.setattr(TableFile, "write", write_batches)
    with pytest.raises(EdlCkptError, match="nothing was published"):
        export_version(
            only(tmp_path / "run"), tmp_path / "out" / name, selection=Selection(dtype=dtype), executor=client
        )
    assert not list((tmp_path / "out").iterdir())


def flipped(data: Any) -> bytes:
    """Return bytes with one other bit."""
    changed = bytearray(memoryview(data).cast("B"))
    changed[-1] ^= 1
    return bytes(changed)


def flip(path: str, position: int) -> None:
    """Change a byte of a file."""
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def test_results_are_small(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have many variables and tables: its task gives back no more than a small result."""
    rows = np.random.default_rng(3).random((9, 100))
    save_checkpoint(
        tmp_path / "run",
        7,
        2,
        variables={f"w{k}": rows[:5] for k in range(40)},
        tables={f"t{k}": Table(np.arange(9), rows) for k in range(40)},
    )
    sizes: list[int] = []
    note_tasks(monkeypatch, PartWork, lambda _work, _task, result: sizes.append(len(pickle.dumps(result))))
    same_export(tmp_path / "run", client, tmp_path, "m.safetensors", selection=Selection(dtype="float32"))
    assert RESULT_BYTES // 4 < max(sizes) < 64 << 10


def test_a_killed_command(tmp_path: Path) -> None:
    """What a command that was killed left beside its output, the next one removes: the work of others too."""
    (tmp_path / "out").mkdir()
    code = (
        "import os, sys\nfrom edl_ckpt.core.commit.publish.single_file import StagedOutput\n"
        "staged = StagedOutput(sys.argv[1], is_directory=True, force=False).__enter__()\n"
        "open(os.path.join(staged.share(), 'part-0'), 'w').close()\nos._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out/m.npy")], check=False)
    assert len(list((tmp_path / "out").iterdir())) == 2
    save_mixed(tmp_path / "run")
    export_version(only(tmp_path / "run"), tmp_path / "out/m.npy")
    assert [each.name for each in (tmp_path / "out").iterdir()] == ["m.npy"]
