"""Tensor bundles are imported where they are: no library of TensorFlow's, and little memory."""

from __future__ import annotations

import os
import re
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle_files import write_bundle
from checkpoints import only
from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.base.errors import EdlCkptError, IncompleteError, UnsupportedError, UsageError
from edl_ckpt.core.operations.importing import NameMap, as_checkpoint, import_arrays
from forked import run_forked
from places import DATA
from s3_fixtures import Bucket

BUNDLES = DATA / "systems" / "bundle"


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow is not installed."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)


def imported(source: Path | str, target: Path, names: NameMap | None = None) -> dict[str, Any]:
    """Import a bundle; return the variables of the version, and the ids and vectors of its tables."""
    assert as_checkpoint(str(source)) is None
    import_arrays(str(source), str(target), 1, 3, names=names)
    result = verify_version(only(target), level="deep")
    assert {finding.code for finding in result.findings} <= {"unsupported-dtype"}  # in ElasticDL: float16, bool
    assert result.fingerprint
    with open_checkpoint(only(target)) as checkpoint:
        found = {name: np.asarray(checkpoint[name]) for name in checkpoint}
        for name, table in checkpoint.tables.items():
            found[f"{name}.ids"], found[f"{name}.vectors"] = table.to_numpy()
    return found


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ("objects", "objects"),
        ("partitioned/model.ckpt-30", "partitioned"),
        ("deeprec@100", "deeprec"),
        ("sharded/model.ckpt-40.index", "sharded"),
        ("tfra", "tfra"),
    ],
)
def test_values(source: str, folder: str, tmp_path: Path) -> None:
    """Every variable and every row of a table that TensorFlow saved is in the new version."""
    found = imported(BUNDLES / source, tmp_path / "run")
    with np.load(BUNDLES / "expected.npz") as arrays:
        truth = {name: arrays[name] for name in arrays if name.startswith(f"{folder}.")}
    for name, values in truth.items():
        own = name.removeprefix(f"{folder}.")
        if own.endswith((".ids", ".vectors")):
            order = np.argsort(truth[f"{folder}.{own.rpartition('.')[0]}.ids"])
            np.testing.assert_array_equal(found[own], values[order])
        elif own in found:
            np.testing.assert_array_equal(found[own], values)
        else:
            np.testing.assert_array_equal(found[f"{own}.vectors"][:, 0], values)


def test_a_dtype_that_no_shard_has_is_refused_by_name(tmp_path: Path) -> None:
    """A complex variable ends an import before anything is written: it was left out without a word."""
    with pytest.raises(UnsupportedError, match=r"cannot hold 'z/\.ATTRIBUTES/VARIABLE_VALUE' .complex64."):
        import_arrays(str(BUNDLES / "saved_model/1"), str(tmp_path / "run"), 1, 1)
    assert not list(tmp_path.iterdir())


def test_the_newest_of_a_directory(tmp_path: Path) -> None:
    """Of a directory the checkpoint that its file `checkpoint` names is imported, also after a move; else an error."""
    for number in (1, 2):
        write_bundle(tmp_path / f"old/ckpt-{number}", {"v": np.full(3, number)})
    (tmp_path / "old/checkpoint").write_text('model_checkpoint_path: "/elsewhere/ckpt-1"\n')
    os.rename(tmp_path / "old", tmp_path / "tf")
    assert imported(tmp_path / "tf", tmp_path / "run")["v"].tolist() == [1, 1, 1]
    assert imported(tmp_path / "tf/ckpt-2", tmp_path / "second")["v"].tolist() == [2, 2, 2]
    (tmp_path / "tf/ckpt-1.index").unlink()
    with pytest.raises(IncompleteError, match="TensorFlow's file checkpoint names 1"):
        import_arrays(str(tmp_path / "tf"), str(tmp_path / "gone"), 1, 1)
    (tmp_path / "tf/checkpoint").unlink()
    (tmp_path / "tf/ckpt-1.data-00000-of-00001").unlink()
    assert imported(tmp_path / "tf", tmp_path / "alone")["v"].tolist() == [2, 2, 2]


def test_a_map_of_names(tmp_path: Path) -> None:
    """A map names the arrays as the bundle has them: variables, keys and values."""
    write_bundle(
        tmp_path / "tf/model",
        {"user-keys": np.arange(4), "user-values": np.ones((4, 2)), "dense/w": np.ones(3), "dense/b": np.zeros(1)},
    )
    tables = {"u": {"ids": "user-keys", "vectors": "user-values", "initializer": "zeros"}}
    found = imported(tmp_path / "tf", tmp_path / "run", NameMap({"dense/w": "w"}, tables))
    assert sorted(found) == ["dense/b", "u.ids", "u.vectors", "w"]
    with open_checkpoint(only(tmp_path / "run")) as checkpoint:
        assert checkpoint.tables["u"].initializer == "zeros"
    with pytest.raises(UsageError, match="vectors must be"):
        import_arrays(
            str(tmp_path / "tf/model"),
            str(tmp_path / "bad"),
            1,
            1,
            names=NameMap({}, {"u": {"ids": "user-keys", "vectors": "dense/w"}}),
        )


@pytest.mark.parametrize("damage", ["index", "data", "cut", "flip"])
def test_a_damaged_bundle(damage: str, tmp_path: Path) -> None:
    """A bundle that lacks something or is damaged is refused with its name, and nothing is written."""
    shutil.copytree(BUNDLES / "objects", tmp_path / "tf")
    index, data = tmp_path / "tf/ckpt-1.index", tmp_path / "tf/ckpt-1.data-00000-of-00001"
    if damage in {"index", "data"}:
        {"index": index, "data": data}[damage].unlink()
    elif damage == "cut":
        os.truncate(data, 100)
    else:
        index.write_bytes(index.read_bytes().replace(b"ckpt", b"ckqt").replace(b"\x08\x09", b"\x08\x08", 1))
    for source in (tmp_path / "tf", tmp_path / "tf/ckpt-1"):
        with pytest.raises(EdlCkptError) as caught:
            import_arrays(str(source), str(tmp_path / "run"), 1, 1)
        assert str(tmp_path / "tf") in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_little_memory(tmp_path: Path) -> None:
    """A bundle of 96 MiB, half of it a table, is imported with 64 MiB of memory that is not a file's."""
    rows = 1 << 20
    ids = np.arange(rows)[::-1]
    write_bundle(
        tmp_path / "tf/model", {"t-keys": ids, "t-values": np.ones((rows, 10), np.float32), "v": np.ones(6 << 20)}
    )

    def act() -> None:
        used = int(re.findall(r"VmData:\s*([0-9]+)", Path("/proc/self/status").read_text())[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + (64 << 20),) * 2)
        import_arrays(str(tmp_path / "tf"), str(tmp_path / "run"), 1, 3)

    assert run_forked(act) == 0


@pytest.mark.parametrize("source", ["tf", "tf@40", "tf/model.ckpt-40.index"])
def test_a_bundle_in_a_bucket(s3: Bucket, tmp_path: Path, source: str) -> None:
    """A bundle on S3 is imported as that on a disk is, by a directory, a version and an index."""
    s3.upload(BUNDLES / "sharded", "tf")
    far = imported(s3.url.removesuffix("run") + source, tmp_path / "far")
    near = imported(BUNDLES / "sharded@40", tmp_path / "near")
    assert sorted(far) == sorted(near)
    for name, values in near.items():
        np.testing.assert_array_equal(far[name], values)
