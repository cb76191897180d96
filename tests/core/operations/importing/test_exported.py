"""An empty model, and names of any length, survive export and import in every format."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import elasticdl_rules
from checkpoints import only
from edl_ckpt.core import (
    diff_versions,
    export_version,
    import_arrays,
    open_checkpoint,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.base.errors import CorruptError, NotFoundError
from edl_ckpt.core.operations.importing import as_checkpoint, import_checkpoint
from edl_ckpt.core.operations.save import Table
from edl_ckpt.proto import model_v4_pb2

OUTPUTS = ["m.safetensors", "m.npz", "m.npy", "m.ckpt", "m", "m.tf", "m.pt"]
LIBRARIES = {"m.parquet": "pyarrow"}
LONG = [
    "x" * 500,
    "x" * 499 + "y",
    "X" * 500,
    "/".join(["layer"] * 100),
    "../" * 100,
    "密集" * 100,
    "\U0001f680" * 125,
    "%2F" * 170,
    "é" * 5000,
    "..",
    ".",
    "",
    "a\0b",
    "CON",
    "con",
    "index",
    "index.json",
]


def need(output: str) -> FormatName:
    """Return the format of an output, or skip where its library is missing."""
    if output in LIBRARIES:
        other = {"torch": "tensorflow", "tensorflow": "torch"}.get(LIBRARIES[output])
        if other in sys.modules:
            pytest.skip(f"{LIBRARIES[output]} crashes in a process with {other}")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        pytest.importorskip(LIBRARIES[output], exc_type=ImportError)
    names = {"m.parquet": "parquet", "m.pt": "torch", "m.tf": "tensorflow", "m.ckpt": "checkpoint", "m": "checkpoint"}
    return cast("FormatName", names.get(output, output.partition(".")[2]))


def there_and_back(place: Path, output: str, number: int) -> None:
    """Export the version at place/run, import what came out, and compare."""
    kind = need(output)
    source = only(place / "run")
    export_version(source, str(place / output), format_name=kind)
    version = as_checkpoint(str(place / output))
    if version is None:
        import_arrays(str(place / output), str(place / "new"), number, 3, layout="elasticdl")
    else:
        assert kind == "checkpoint"
        import_checkpoint(version, str(place / "new"), number, 3, layout="elasticdl")
    assert diff_versions(source, only(place / "new")).equal
    assert elasticdl_rules.latest_valid(place / "new") == f"version-{number}"
    assert [f for f in verify_version(only(place / "new")).findings if f.severity == "error"] == []


EVERY = [
    *OUTPUTS,
    *(pytest.param(name, marks=pytest.mark.frameworks, id=f"{name}-{library}") for name, library in LIBRARIES.items()),
]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("output", EVERY)
@pytest.mark.parametrize("number", [0, 5])
def test_an_empty_model(output: str, number: int, tmp_path: Path) -> None:
    """A version without variables and tables is exported and imported, and is empty again."""
    save_checkpoint(str(tmp_path / "run"), number, 2, variables={}, tables={})
    there_and_back(tmp_path, output, number)
    for shard in only(tmp_path / "new").shards:
        model = model_v4_pb2.Model.FromString(Path(shard.path).read_bytes())
        assert (model.version, len(model.ListFields())) == (number, 1 if number else 0)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("output", EVERY)
def test_long_names(output: str, tmp_path: Path) -> None:
    """Names of 500 characters and more, and those that could be paths, survive in every format."""
    variables = {name: np.full(2, k, np.float32) for k, name in enumerate(LONG)}
    tables = {name: Table(np.array([k]), np.full((1, 2), k, np.float32)) for k, name in enumerate(LONG)}
    if output == "m.tf":  # a bundle has its header there
        variables.pop("")
    save_checkpoint(str(tmp_path / "run"), 5, 2, variables=variables, tables=tables)
    before = set(os.listdir(tmp_path))
    there_and_back(tmp_path, output, 5)
    dense = {"m.dense"} if output == "m.parquet" else set()
    assert set(os.listdir(tmp_path)) == before | {output, "new"} | dense


def test_numpy_reads_the_files_of_long_names(tmp_path: Path) -> None:
    """Numpy opens every file, the index has the true names, and no name of a file is too long for any."""
    variables = {name: np.full(2, k, np.float32) for k, name in enumerate(LONG)}
    save_checkpoint(str(tmp_path / "run"), 5, 2, variables=variables, tables={})
    folder = tmp_path / "m.npy"
    export_version(only(tmp_path / "run"), str(folder))
    names = os.listdir(folder)
    assert max(len(os.fsencode(name)) for name in names) < 255
    assert len({name.casefold() for name in names}) == len(LONG) + 1
    tensors = json.loads((folder / "index.json").read_text())["tensors"]
    assert list(tensors) == sorted(LONG)
    for name, entry in tensors.items():
        assert np.load(folder / entry["file"]).tolist() == variables[name].tolist()
    import_arrays(str(folder), str(tmp_path / "new"), 5, 2)
    assert diff_versions(only(tmp_path / "run"), only(tmp_path / "new")).equal


def test_an_archive_of_before(tmp_path: Path) -> None:
    """An .npz whose members are named like files, with `index.json` among them, is imported as it was exported."""
    tables = {"a/t": Table(np.array([3, 5]), np.ones((2, 4), np.float32), "zeros")}
    variables = {"dense/kernel:0": np.ones((2, 2)), "__edl_ckpt__": np.arange(3)}
    run = save_checkpoint(str(tmp_path / "run"), 5, 2, variables=variables, tables=tables)
    export_version(run, str(tmp_path / "m.npy"))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive:
        for file in sorted(os.listdir(tmp_path / "m.npy")):
            archive.write(tmp_path / "m.npy" / file, file)
    assert "dense%2Fkernel%3A0" in np.load(tmp_path / "m.npz").files
    imported = import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "new"), 5, 3)
    assert imported.fingerprint == run.fingerprint
    assert diff_versions(run, only(tmp_path / "new")).equal


def test_keys_of_a_foreign_archive(tmp_path: Path) -> None:
    """Names in an .npz of numpy are taken as they are; damaged notes of ours are an error (5)."""
    names: dict[str, Any] = {"a%2Fb": np.ones(2), "dense/kernel:0": np.ones(3)}
    np.savez(tmp_path / "m.npz", **names)
    import_arrays(str(tmp_path / "m.npz"), str(tmp_path / "new"), 5, 2)
    with open_checkpoint(only(tmp_path / "new")) as checkpoint:
        assert checkpoint.variable_names == ["a%2Fb", "dense/kernel:0"]
    np.savez(tmp_path / "bad.npz", a=np.ones(2), __edl_ckpt__=np.arange(5))
    with pytest.raises(CorruptError):
        import_arrays(str(tmp_path / "bad.npz"), str(tmp_path / "new"), 6, 2)


def test_nothing_is_not_taken_for_an_empty_model(tmp_path: Path) -> None:
    """A file without arrays is an empty model only if an export of an empty model wrote it."""
    save_checkpoint(str(tmp_path / "run"), 5, 2, variables={"w": np.ones(2)}, tables={})
    export_version(only(tmp_path / "run"), str(tmp_path / "m.npy"))
    (tmp_path / "m.npy/w.npy").unlink()  # lost: the index has the fingerprint of what was there
    np.savez(tmp_path / "m.npz")
    save_file({}, str(tmp_path / "m.safetensors"))
    (tmp_path / "empty").mkdir()
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf/edl-ckpt.json").write_text('{"tables": {}, "fingerprint": "edl1:"}')
    for name in ("m.npy", "m.npz", "m.safetensors", "empty", "tf"):
        with pytest.raises(NotFoundError, match="no array in it"):
            import_arrays(str(tmp_path / name), str(tmp_path / "new"), 5, 1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "index",
    [
        {"tensors": {"a": {"file": "w.npy"}, "b": {"file": "w.npy"}}},
        {"tensors": {"a": {"file": "w.npy"}}, "tables": 7},
    ],
)
def test_a_hostile_index(index: dict[str, Any], tmp_path: Path) -> None:
    """An index that has two names for a file, or damaged notes, is an error (5)."""
    (tmp_path / "m").mkdir()
    np.save(tmp_path / "m/w.npy", np.ones(2))
    (tmp_path / "m/index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptError):
        import_arrays(str(tmp_path / "m"), str(tmp_path / "new"), 5, 1)


@pytest.mark.parametrize("tensors", [7, [], {"w": 7}, {"w": {"file": 7}}, {"x": {"file": "../../etc/passwd"}}])
def test_an_index_of_something_else(tensors: Any, tmp_path: Path) -> None:
    """Entries that name no file there change nothing; no path in them is ever opened."""
    (tmp_path / "m").mkdir()
    np.save(tmp_path / "m/w.npy", np.ones(2))
    (tmp_path / "m/index.json").write_text(json.dumps({"tensors": tensors}))
    import_arrays(str(tmp_path / "m"), str(tmp_path / "new"), 5, 1)
    export_version(only(tmp_path / "new"), str(tmp_path / "m.safetensors"))
    assert load_file(str(tmp_path / "m.safetensors"))["w"].tolist() == [1, 1]
    shutil.rmtree(tmp_path / "new")
