"""Keys of object storage never become paths outside of the directory that a command writes to."""

from __future__ import annotations

import io
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from checkpoints import at
from edl_ckpt.core import execute_copy, export_version, list_versions, plan_copy
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.operations.importing import import_arrays
from edl_ckpt.core.operations.importing.arrays import ArraySource
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.inside import path_inside
from s3_fixtures import Bucket
from system_runs import step_run


def npy() -> bytes:
    """Return a file of two numbers."""
    file = io.BytesIO()
    np.save(file, np.arange(2, dtype=np.float32))
    return file.getvalue()


def below(top: Path) -> set[str]:
    """Return the names of all that is below a directory."""
    return {str(path.relative_to(top)) for path in top.rglob("*")}


@pytest.mark.parametrize("name", ["", "..", "a/../../b", "/etc/passwd", "a//b", "./a", "a\0b"])
def test_a_name_that_leads_out_of_its_directory_gets_no_path(name: str) -> None:
    """One function joins names to directories, and refuses these."""
    with pytest.raises(RefusedError):
        path_inside("/tmp", name)


@pytest.mark.parametrize(
    "keys",
    [
        ("a.parquet", "../x.dense/../../../../outside/dense.safetensors"),
        ("../x.parquet.dense/../../outside/dense.safetensors", "a.parquet"),
        ("..",),
        ("w.npy", "../x/.."),
    ],
)
def test_an_import_from_a_bucket_writes_nothing_outside(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: tuple[str, ...]
) -> None:
    """Whatever keys are next to the source, files are made in the temporary directory alone."""
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(inner))
    for key in keys:
        s3.put(f"x/{key}", npy())
        s3.put(key.removeprefix("../"), npy())
    before = below(tmp_path)
    with pytest.raises(EdlCkptError):
        import_arrays(f"s3://{s3.name}/x", tmp_path / "new", 1, ps_num=1)
    assert below(tmp_path) == before


def test_the_marker_of_a_directory_is_no_file(s3: Bucket) -> None:
    """Consoles of S3 make an object whose key ends with '/': an import leaves it out."""
    s3.put("x/", b"")
    s3.put("x/w.npy", npy())
    with ArraySource(Location(f"s3://{s3.name}/x")) as source:
        assert list(source.arrays) == ["w"]


@pytest.mark.parametrize("verb", ["copy", "export"])
def test_a_file_of_a_step_in_a_bucket_stays_in_its_directory(s3: Bucket, tmp_path: Path, verb: str) -> None:
    """A copy to a disk, and an export of a system's files, write nothing for a key that leads out of the step."""
    run = step_run(tmp_path / "source", (10,))
    s3.upload(run)
    s3.put("run/step_10/../../outside.txt", b"outside")
    s3.put("run/step_10/job/../../../outside.txt", b"outside")
    (tmp_path / "a" / "b").mkdir(parents=True)
    before = below(tmp_path)
    target = tmp_path / "a" / "b" / "target"
    with suppress(EdlCkptError):
        if verb == "copy":
            execute_copy(plan_copy(list_versions(s3.url).versions, target))
        else:
            export_version(at(s3.url), target, format_name="dcp")
    assert {name for name in below(tmp_path) - before if not name.startswith("a/b/target")} == set()
    assert "outside.txt" not in {Path(name).name for name in below(target)}
