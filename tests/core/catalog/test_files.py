"""A checkpoint in one file of any name is read wherever a version is, on disk and on S3."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builders import shard_bytes
from checkpoints import files_of, only, save_small
from edl_ckpt.core import (
    Latest,
    Policy,
    diff_versions,
    export_version,
    import_arrays,
    list_versions,
    look_up,
    open_checkpoint,
    parse_ref,
    prune,
    reshard_version,
    resolve,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations import annotate
from edl_ckpt.core.operations.copy.execute import execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.operations.importing import as_checkpoint, import_checkpoint
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.operations.verify.check import seal_version
from oracle import Model, combined, read_model
from oracle import Table as Rows
from places import GOLDEN
from s3_fixtures import Bucket

MODEL = Model(
    110,
    {"w": ("float32", (3,), np.arange(3, dtype=np.float32).tobytes())},
    {"t": Rows(2, "uniform", "float32", {i: np.full(2, i, np.float32).tobytes() for i in range(7)})},
)
BARE = shard_bytes(MODEL, 0, 1, "v4")


def at(path: Path | str) -> Version:
    """Return the version that a reference on the command line names."""
    return resolve(parse_ref(str(path)))


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """One merged shard under a free name."""
    path = tmp_path / "merged.bin"
    path.write_bytes(BARE)
    return path


GOLDEN_FILES = [
    "legacy/v0d/model_v33.chkpt",
    "legacy/v1/model_v33.chkpt",
    "current/ps1/version-120/variables-0-of-1.ckpt",
]


@pytest.mark.parametrize("case", GOLDEN_FILES)
def test_golden_files_under_free_names(case: str, tmp_path: Path, expected: Any) -> None:
    """Files that ElasticDL wrote are the same versions under any name: content, number, fingerprint."""
    known = only((GOLDEN / case).parent if "legacy" in case else (GOLDEN / case).parents[1])
    path = tmp_path / "mnist_functional_api_model_v110.chkpt"
    shutil.copy(GOLDEN / case, path)
    version = at(path)
    assert (version.ref, version.version, version.ps_num) == (str(path), known.version, 1)
    assert verify_version(version, level="deep").fingerprint == verify_version(known, level="deep").fingerprint
    assert diff_versions(version, known).equal
    done = reshard_version(version, 3, output=str(tmp_path / "out"))
    assert (done.ref, done.source, done.version) == (f"{tmp_path / 'out'}@{known.version}", str(path), known.version)
    new = only(tmp_path / "out")
    generation = case.split("/")[1] if "legacy" in case else "v4"
    before = read_model([path], "v0" if generation == "v0d" else generation)
    after = read_model([Path(shard.path) for shard in new.shards])
    assert combined(before) == combined(after)


def test_every_reader_takes_a_file(bare: Path, tmp_path: Path) -> None:
    """The library reads and looks up rows, exports, compares and imports it, with its values."""
    version = at(bare)
    assert version.version == 110
    with open_checkpoint(str(bare)) as checkpoint:
        assert checkpoint.variable("w").tolist() == [0, 1, 2]
    assert look_up(version, "t", [5]).vectors.tolist() == [[5, 5]]
    export_version(version, str(tmp_path / "m.npz"))
    with np.load(tmp_path / "m.npz") as arrays:
        assert arrays["t.vectors"].tolist() == [[i, i] for i in range(7)]
    export_version(version, str(tmp_path / "again.ckpt"))
    assert diff_versions(version, at(tmp_path / "again.ckpt")).equal
    source = as_checkpoint(str(bare))
    assert source is not None
    import_checkpoint(source, str(tmp_path / "run"), 7, 2)
    assert diff_versions(version, only(tmp_path / "run")).equal
    assert read_model([Path(shard.path) for shard in only(tmp_path / "run").shards]).version == 7


@pytest.mark.parametrize(
    ("version", "name", "number"),
    [(110, "x_v7.chkpt", 110), (0, "x_v7.chkpt", 7), (0, "model-v12", 12), (0, "v7x.chkpt", 0)],
)
def test_the_number(version: int, name: str, number: int, tmp_path: Path) -> None:
    """The number is the model's; a model without one has that of its name, and what is made of it too."""
    path = tmp_path / name
    path.write_bytes(shard_bytes(Model(version, MODEL.dense, MODEL.tables), 0, 1, "v4"))
    assert at(path).version == number
    reshard_version(at(path), 2, output=str(tmp_path / "out"))
    new = only(tmp_path / "out")
    assert new.version == number
    assert verify_version(new).findings == ()


def test_state_beside_a_file_is_of_others(bare: Path, tmp_path: Path) -> None:
    """A file beside a version of the same number has not the seal, tags and metrics of that version."""
    save_small(tmp_path, 110)
    annotate.add_tag(at(f"{tmp_path}@110"), "good")
    annotate.set_metrics(at(f"{tmp_path}@110"), {"auc": 0.5})
    version = at(bare)
    assert (version.tags, dict(version.metrics), version.fingerprint) == ((), {}, "")
    result = verify_version(version, level="deep")
    assert (result.findings, result.sealed) == ((), False)
    reshard_version(version, 2, output=str(tmp_path / "out"))
    assert (only(tmp_path / "out").tags, dict(only(tmp_path / "out").metrics)) == ((), {})


REFUSED: dict[str, Callable[[Version], object]] = {
    "tag": lambda v: annotate.add_tag(v, "x"),
    "untag": lambda v: annotate.remove_tag(v, "x"),
    "note": lambda v: annotate.set_note(v, "x"),
    "metrics": lambda v: annotate.set_metrics(v, {"auc": 1}),
    "remove": lambda v: annotate.remove_metrics(v, ["auc"]),
    "seal": lambda v: seal_version(v, "edl1:"),
    "reshard": lambda v: reshard_version(v, 2),
    "copy": lambda v: execute_copy(plan_copy([v], v.path + ".out")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_has_not(case: str, bare: Path) -> None:
    """What needs a location is refused (16) with the command that helps, and nothing is written."""
    before = files_of(bare.parent), sorted(os.listdir(bare.parent))
    with pytest.raises(RefusedError) as caught:
        REFUSED[case](at(bare))
    assert "edl-ckpt import" in str(caught.value.hint) or "--output" in str(caught.value.hint)
    assert (files_of(bare.parent), sorted(os.listdir(bare.parent))) == before


def test_a_file_is_no_location(bare: Path) -> None:
    """A command on a location says that it got a file, and how a version is made of it."""
    for use in (lambda: list_versions(str(bare)), lambda: prune([str(bare)], Policy((Latest(1),)))):
        with pytest.raises(NotFoundError, match="a file, and not the directory of a location") as caught:
            use()
        assert caught.value.hint is not None
        assert f"edl-ckpt import {bare} LOCATION@VERSION --ranks N" in caught.value.hint
    with pytest.raises(UsageError, match="a file has one version"):
        at(f"{bare}@110")


def fifo(path: Path) -> None:
    """Make a pipe that nobody writes to."""
    os.mkfifo(path)


def link_to_nothing(path: Path) -> None:
    """Make a link that leads nowhere."""
    path.symlink_to("nowhere")


HOSTILE: dict[str, tuple[bytes | Callable[[Path], None], type[EdlCkptError], str]] = {
    "empty": (b"", CorruptError, "the file is empty"),
    "text": (b"# a page\n", CorruptError, "not a checkpoint"),
    "json": (b'{"a": 1}', CorruptError, "not a checkpoint"),
    "zip": (b"PK\x03\x04" + bytes(60), UnsupportedError, "this is a zip, as Keras or numpy write it"),
    "zeros": (bytes(100), CorruptError, "not a checkpoint"),
    "one byte": (b"\x08", CorruptError, "not a checkpoint"),
    "unknown fields": (b"\xc2\x3e\x02ab", CorruptError, "not a checkpoint"),
    "cut": (BARE[:-5], CorruptError, "ends after"),
    "pipe": (fifo, UsageError, "is a pipe"),
    "dangling": (link_to_nothing, NotFoundError, "no such file"),
}


@pytest.mark.parametrize("name", ["x.chkpt", "x"])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files(case: str, name: str, tmp_path: Path) -> None:
    """What is no checkpoint is one of our errors with the path, at once."""
    content, error, words = HOSTILE[case]
    path = tmp_path / name
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    with pytest.raises(error, match=words) as caught, open_checkpoint(str(path)):
        pass
    assert caught.value.path == str(path)


def test_a_directory_with_the_name_of_a_file(tmp_path: Path) -> None:
    """A directory is a location, whatever it is called."""
    (tmp_path / "x.chkpt").mkdir()
    with pytest.raises(NotFoundError, match="no checkpoint here"):
        at(tmp_path / "x.chkpt")
    save_small(tmp_path / "x.chkpt", 3)
    assert at(tmp_path / "x.chkpt").version == 3


def test_a_damaged_file_is_verified(tmp_path: Path) -> None:
    """Verify finds the faults of a file as those of any shard, with their places."""
    path = tmp_path / "x.chkpt"
    path.write_bytes(BARE[:-5])
    assert [f.code for f in verify_version(at(path)).findings] == ["truncated"]


def test_one_shard_of_several(tmp_path: Path) -> None:
    """A shard of several is not a version (4); the version that it is of is named. 1 of 1 is one."""
    save_small(tmp_path / "run", 7)
    shard = only(tmp_path / "run").shards[0].path
    with pytest.raises(IncompleteError, match="one shard of 2 is not a whole version") as caught:
        at(shard)
    assert caught.value.hint == f"name the version instead: {tmp_path}/run@7"
    with pytest.raises(IncompleteError):
        as_checkpoint(shard)
    save_small(tmp_path / "one", 7, ps_num=1)
    assert at(only(tmp_path / "one").shards[0].path).version == 7


def test_names_with_an_at_sign(tmp_path: Path) -> None:
    """The name of a file may have an '@'; a version of a location comes first."""
    save_small(tmp_path / "run", 110)
    for name in ("a@b.chkpt", "run@110", "other@110"):
        (tmp_path / name).write_bytes(BARE)
    assert at(tmp_path / "a@b.chkpt").path == f"{tmp_path}/a@b.chkpt"
    assert at(tmp_path / "other@110").path == f"{tmp_path}/other@110"
    assert at(tmp_path / "run@110").path == f"{tmp_path}/run/version-110"


def test_files_that_import_takes(tmp_path: Path) -> None:
    """Import takes a checkpoint under any name, and arrays under the names of their formats."""
    (tmp_path / "bare").write_bytes(BARE)
    (tmp_path / "m.txt").write_bytes(b"hello")
    np.savez(tmp_path / "m@1.npz", a=np.arange(3))
    assert as_checkpoint(str(tmp_path / "bare")) is not None
    for name in ("m.txt", "m@1.npz"):
        assert as_checkpoint(str(tmp_path / name)) is None
    import_arrays(str(tmp_path / "m@1.npz"), str(tmp_path / "run"), 1, 1)
    (tmp_path / "m.chkpt").write_bytes(b"hello")
    with pytest.raises(CorruptError, match="not a checkpoint"):
        as_checkpoint(str(tmp_path / "m.chkpt"))


def test_on_s3(s3: Bucket, tmp_path: Path) -> None:
    """An object is read like a file, by its URL; what is no checkpoint or is not there is an error."""
    s3.put("free/mnist_v110.chkpt", BARE)
    s3.put("free/text.ckpt", b"# a page")
    s3.put("free/empty.ckpt", b"")
    url = f"s3://{s3.name}/free/mnist_v110.chkpt"
    version = at(url)
    assert (version.ref, version.version, version.path, version.size_bytes) == (url, 110, url, len(BARE))
    assert verify_version(version, level="deep").findings == ()
    done = reshard_version(version, 2, output=str(tmp_path / "run"))
    assert done.fingerprint == only(tmp_path / "run").fingerprint
    reshard_version(version, 3, output=f"s3://{s3.name}/made")
    assert diff_versions(version, only(f"s3://{s3.name}/made")).equal
    source = as_checkpoint(url)
    assert source is not None
    with pytest.raises(RefusedError):
        annotate.add_tag(version, "x")
    with pytest.raises(CorruptError, match="not a checkpoint"):
        at(f"s3://{s3.name}/free/text.ckpt")
    with pytest.raises(CorruptError, match="the file is empty"):
        at(f"s3://{s3.name}/free/empty.ckpt")
    with pytest.raises(NotFoundError):
        at(f"s3://{s3.name}/free/none.ckpt")
    assert not any(".edl-ckpt-0" in key for key in s3.objects() if key.startswith("free/"))


def test_a_merged_version_without_rows(tmp_path: Path) -> None:
    """Version 0 with a table that has no row is exported to a file and read from it."""
    save_checkpoint(str(tmp_path / "run"), 0, 2, variables={}, tables={"t": Table(np.arange(0), np.ones((0, 2)))})
    export_version(only(tmp_path / "run"), str(tmp_path / "m.ckpt"))
    assert at(tmp_path / "m.ckpt").version == 0
    assert diff_versions(at(tmp_path / "m.ckpt"), only(tmp_path / "run")).equal
