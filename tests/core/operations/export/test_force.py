"""`export --force` replaces an earlier export, and never what somebody else has in its place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, save_small
from edl_ckpt.core import export_version, list_versions
from edl_ckpt.core.base.errors import LockedError, RefusedError
from edl_ckpt.core.commit.publish import single_file
from edl_ckpt.core.storage.files import exchange_names
from raw_trees import raw_tree
from s3_fixtures import Bucket
from system_runs import step_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A location with a version."""
    save_small(tmp_path / "run", 3)
    return tmp_path / "run"


@pytest.mark.parametrize("name", [".git/HEAD", "thesis.tex", "photos/2021.jpg", "own.npy", "sub/.hidden"])
def test_a_directory_with_anything_else_stays(run: Path, tmp_path: Path, name: str) -> None:
    """A directory with a file that no export makes is refused with its name, and stays as it is."""
    out = tmp_path / "out"
    export_version(at(run, 3), out, format_name="npy")
    (out / name).parent.mkdir(parents=True, exist_ok=True)
    (out / name).write_text("mine")
    before = raw_tree(out)
    with pytest.raises(RefusedError, match=name.partition("/")[0].replace(".", r"\.")) as refused:
        export_version(at(run, 3), out, format_name="npy", force=True)
    assert (refused.value.exit_code, raw_tree(out)) == (16, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_an_empty_directory_and_a_link_of_others_stay(run: Path, tmp_path: Path) -> None:
    """An empty directory in it, and a link, are of somebody too."""
    for name in ("empty", "link"):
        out = tmp_path / f"out-{name}"
        export_version(at(run, 3), out, format_name="npy")
        if name == "empty":
            (out / name).mkdir()
        else:
            (out / name).symlink_to("/")
        before = raw_tree(out)
        with pytest.raises(RefusedError, match="no file of such an export"):
            export_version(at(run, 3), out, format_name="npy", force=True)
        assert raw_tree(out) == before


@pytest.mark.parametrize(("format_name", "is_directory"), [("npz", True), ("npy", False)])
def test_a_file_never_becomes_a_directory(run: Path, tmp_path: Path, format_name: str, is_directory: bool) -> None:
    """A single file takes no directory's place, and a directory no file's: both are refused before the export."""
    out = tmp_path / "out"
    if is_directory:
        out.mkdir()
        (out / "x").write_text("mine")
    else:
        out.write_text("mine")
    with pytest.raises(RefusedError, match="this output is"):
        export_version(at(run, 3), out, format_name=format_name, force=True)  # type: ignore[arg-type]
    assert (out / "x" if is_directory else out).read_text() == "mine"


def test_a_version_of_a_location_stays(run: Path, tmp_path: Path) -> None:
    """The directory of a step is refused, although its files have the names that the export would write."""
    place = step_run(tmp_path / "steps", (4, 5))
    before = raw_tree(place)
    with pytest.raises(RefusedError, match="is a version of a location"):
        export_version(at(run, 3), place / "step_4", format_name="dcp", force=True)
    assert raw_tree(place) == before
    assert [version.version for version in list_versions(place).versions] == [4, 5]


def test_a_file_of_a_version_stays(run: Path, tmp_path: Path) -> None:
    """A file that a step consists of is refused, also by another path to it; one that only lies there is replaced."""
    place = step_run(tmp_path / "steps", (4, 5))
    (place / "step_4/model").mkdir()
    (place / "step_4/model/notes.npz").write_text("an export, perhaps")
    before = raw_tree(place)
    for name in ("__0_0.distcp", "model/../.metadata", "huggingface/config.json"):
        with pytest.raises(RefusedError, match=r"is a file of .*steps@4"):
            export_version(at(run, 3), place / "step_4" / name, format_name="npz", force=True)
    assert raw_tree(place) == before
    export_version(at(run, 3), place / "step_4/model/notes.npz", format_name="npz", force=True)
    assert (place / "step_4/model/notes.npz").read_bytes()[:2] == b"PK"


def test_a_version_on_object_storage_stays(s3: Bucket, run: Path, tmp_path: Path) -> None:
    """What is no output on a disk is none on object storage."""
    place = step_run(tmp_path / "steps", (4, 5))
    s3.upload(place)
    before = s3.objects()
    for target, format_name in (("step_4", "npy"), ("step_4/__0_0.distcp", "npz")):
        with pytest.raises(RefusedError, match=r"is a (version of a location|file of)"):
            export_version(at(run, 3), f"{s3.url}/{target}", format_name=format_name, force=True)  # type: ignore[arg-type]
    assert s3.objects() == before


@pytest.mark.parametrize("has_exchange", [True, False])
def test_what_comes_between_the_look_and_the_exchange_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_exchange: bool
) -> None:
    """A file that comes after the last look at the directory brings it back, also on a file system without exchange."""
    out = tmp_path / "out"
    export_version(at(run, 3), out, format_name="npy")
    real, calls = exchange_names, list[str]()

    def exchange(one: str, other: str, **more: Any) -> bool:
        if not calls:
            (out / "thesis.tex").write_text("mine")
        calls.append(one)
        return has_exchange and real(one, other, **more)

    monkeypatch.setattr(single_file, "exchange_names", exchange)
    before = raw_tree(out)
    with pytest.raises(RefusedError, match=r"thesis\.tex") as refused:
        export_version(at(run, 3), out, format_name="npy", force=True)
    assert str(refused.value.path) == str(out)
    assert (out / "thesis.tex").read_text() == "mine"
    assert {name: entry.content for name, entry in before.items()}.items() <= {
        name: entry.content for name, entry in raw_tree(out).items()
    }.items()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_a_directory_that_a_job_makes_in_the_gap_stays(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without exchange there is a moment without the directory: one that is made then stays, and the old one too."""
    out = tmp_path / "out"
    export_version(at(run, 3), out, format_name="npy")
    before = raw_tree(out)
    monkeypatch.setattr(single_file, "exchange_names", lambda *_, **__: False)
    real = os.rename

    def rename(old: Any, new: Any, **more: Any) -> None:
        if new == str(out) and not out.exists():
            out.mkdir()
            (out / "mine").write_text("mine")
        real(old, new, **more)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(LockedError, match="the earlier output is in"):
        export_version(at(run, 3), out, format_name="npy", force=True)
    assert [path.name for path in out.iterdir()] == ["mine"]
    (kept,) = (path for path in tmp_path.iterdir() if path.name.startswith("out."))
    assert raw_tree(kept) == before


def test_an_earlier_export_is_replaced(run: Path, tmp_path: Path) -> None:
    """The same export, with fewer or more files, replaces the earlier one."""
    for parts in (2, 3, 1):
        result = export_version(at(run, 3), tmp_path / "out", format_name="dcp", ranks=parts, force=True)
        assert sorted(str(tmp_path / "out" / n) for n in raw_tree(tmp_path / "out")) == sorted(
            file.path for file in result.files
        )


def test_objects_of_others_stay(s3: Bucket, run: Path) -> None:
    """On object storage no key below the output goes that the export would not have."""
    target = f"{s3.url}/out"
    export_version(at(run, 3), target, format_name="npy")
    s3.put("run/out/thesis.tex", b"mine")
    with pytest.raises(RefusedError, match="thesis"):
        export_version(at(run, 3), target, format_name="npy", force=True)
    assert s3.get("run/out/thesis.tex") == b"mine"
