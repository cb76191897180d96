"""A file as a reference: what names one file, a prefix or an index works in every verb that takes FILE."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checkpoints import files_of
from edl_ckpt.core import convert_version, list_versions, open_checkpoint
from foreign import SYSTEMS
from program import document, edl
from reporters import Recorder

FILES = {
    "one file": ("safetensors/checkpoint-200", "alone.safetensors"),
    "an index of a set": ("safetensors/checkpoint-200", "model.safetensors.index.json"),
    "a prefix": ("bundle/partitioned", "model.ckpt-30"),
    "an index of a bundle": ("bundle/partitioned", "model.ckpt-30.index"),
    "a bundle of several files": ("bundle/deeprec", "model.ckpt-100"),
    ".metadata": ("dcp/torchrec/step_2", ".metadata"),
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a file that names a checkpoint; a Saver's `.meta` lies next to a bundle."""
    folder, name = FILES[request.param]
    shutil.copytree(SYSTEMS / folder, tmp_path / "in")
    if folder.startswith("bundle"):
        (tmp_path / "in" / f"{name.removesuffix('.index')}.meta").write_bytes(b"graph")
    if request.param == "one file":
        first = tmp_path / "in" / "model-00001-of-00003.safetensors"
        first.rename(tmp_path / "in" / name)
        for other in (tmp_path / "in").glob("model*"):
            other.unlink()
    return tmp_path / "in" / name


def names_in(place: Path) -> list[str]:
    """Return the names of all tables and variables of the only version of a location."""
    (version,) = list_versions(str(place)).versions
    assert document("verify", version.ref, "--deep")["ok"]
    with open_checkpoint(version) as checkpoint:
        return sorted([*checkpoint.table_names, *checkpoint.variable_names])


def test_a_file_is_edited(file: Path, tmp_path: Path) -> None:
    """An edit drops and renames; a dry run of it writes nothing; the source stays as it is."""
    with open_checkpoint(str(file)) as checkpoint:
        names = sorted(checkpoint.variable_names)
    before = files_of(tmp_path)
    kept, dropped = names[-1], names[0]
    changes: list[str | Path] = ["--rename", f"{kept}=zzz.embedding_bags.z.weight", "--output", tmp_path / "out"]
    changes += ["--drop", dropped] if len(names) > 1 else []
    assert edl("edit", file, *changes, "--dry-run").returncode == 0
    assert files_of(tmp_path) == before
    done = edl("edit", file, *changes)
    assert done.returncode == 0, done.stderr
    after = names_in(tmp_path / "out")
    assert "zzz.embedding_bags.z.weight" in after
    assert not {kept, dropped} & set(after)
    assert {path: data for path, data in files_of(tmp_path).items() if path in before} == before


def test_a_file_is_resharded(file: Path, tmp_path: Path) -> None:
    """A reshard writes the same names in other files."""
    with open_checkpoint(str(file)) as checkpoint:
        names = sorted([*checkpoint.variable_names, *checkpoint.table_names])
    how = ["--max-shard-size", "1KB"] if "safetensors" in file.name else ["--ranks", "2"]
    done = edl("reshard", file, *how, "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "out") == names


def test_a_file_is_exported_and_imported(file: Path, tmp_path: Path) -> None:
    """Exports of each kind, and an import as ElasticDL's shards, take the file."""
    for output in ("out.safetensors", "out.npz"):
        done = edl("export", file, tmp_path / output)
        assert done.returncode == 0, done.stderr
    done = edl("import", file, f"{tmp_path / 'run'}@7", "--ps", "2", "--layout", "elasticdl")
    assert done.returncode == 0, done.stderr
    (version,) = list_versions(str(tmp_path / "run")).versions
    with open_checkpoint(version) as checkpoint:
        assert checkpoint.variable_names


def test_a_file_cannot_be_changed_in_place(file: Path, tmp_path: Path) -> None:
    """Without --output, a checkpoint by itself stays: a location is missing (16)."""
    before = files_of(tmp_path)
    how = ["--max-shard-size", "1KB"] if "safetensors" in file.name else ["--ranks", "2"]
    done = edl("reshard", file, *how)
    assert (done.returncode, "Traceback" in done.stderr) == (16, False), done.stderr
    assert files_of(tmp_path) == before


def test_a_file_of_the_current_directory(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is known by its name alone in its own directory, in each verb that writes."""
    monkeypatch.chdir(file.parent)
    how = {"most_file_bytes": 1024} if "safetensors" in file.name else {"ranks": 2}
    convert_version(file.name, output=str(tmp_path / "out"), reporter=Recorder(), **how)  # type: ignore[arg-type]
    assert names_in(tmp_path / "out")
