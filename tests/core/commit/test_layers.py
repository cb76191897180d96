"""File systems that refuse: a lower layer of overlayfs cannot rename directories; a mount may be read-only."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from checkpoints import at, files_of, numbers, save_small
from edl_ckpt.core.storage import beneath
from program import inside

LOWER = ("lower", "upper", "work")


def mount(*words: str | Path) -> None:
    done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


@pytest.fixture
def layered(tmp_path: Path) -> Iterator[Path]:
    """Return a location with three sealed versions on the lower layer of an overlay."""
    disk, merged = tmp_path / "disk", tmp_path / "merged"
    disk.mkdir()
    merged.mkdir()
    mount("-t", "tmpfs", "none", disk)
    try:
        for name in LOWER:
            (disk / name).mkdir()
        save_small(disk / "lower/run", 1, 2, 3)
        layers = ",".join(f"{option}dir={disk / name}" for option, name in zip(LOWER, LOWER, strict=True))
        mount("-t", "overlay", "overlay", "-o", layers, merged)
        try:
            yield merged / "run"
        finally:
            subprocess.run(["umount", merged], check=True)
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.root
def test_overlay(layered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a real overlay: reshard in place and prune --trash say 15 and change nothing, prune deletes."""
    before = files_of(layered)
    refused = inside(capsys, "reshard", f"{layered}@3", "--ps", "3", code=15)
    assert "--output" in refused["hint"]
    assert files_of(layered) == before
    assert at(layered, 3).fingerprint
    stayed = inside(capsys, "prune", layered, "--keep", "2", "--trash", code=15)["failed"]
    assert [(f["ref"], f["code"]) for f in stayed] == [(f"{layered}@1", 15)]
    assert numbers(layered) == [1, 2, 3]
    done = inside(capsys, "prune", layered, "--keep", "1")
    assert (done["deleted"], done["failed"]) == (2, [])
    assert numbers(layered) == [3]
    assert elasticdl_rules.leftovers(layered) == []
    assert inside(capsys, "verify", f"{layered}@3", "--deep")["ok"]
    inside(capsys, "reshard", f"{layered}@3", "--ps", "3", "--output", layered.parent / "other")


@pytest.mark.root
def test_read_only(layered: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a read-only mount every command that changes ends with 12, and those that read work."""
    subprocess.run(["mount", "-o", "remount,ro", layered.parent], check=True)
    run = str(layered)
    for words in (
        ("prune", run, "--keep", "1"),
        ("reshard", f"{run}@3", "--ps", "3"),
        ("copy", f"{run}@3", f"{layered.parent}/other"),
        ("export", f"{run}@3", f"{layered.parent}/out.npz"),
        ("tag", "add", f"{run}@3", "x"),
        ("metrics", "set", f"{run}@3", "auc=0.5"),
        ("note", f"{run}@3", "x"),
        ("policy", "set", run, "--keep", "3"),
        ("verify", f"{run}@3", "--seal", "--force"),
        ("recover", run),
        ("undo", run),
    ):
        assert "read-only filesystem" in inside(capsys, *words, code=12)["message"], words
    assert len(inside(capsys, "list", run)["locations"][0]["versions"]) == 3
    assert inside(capsys, "verify", f"{run}@3", "--deep")["ok"]


def test_no_exchange_between_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same without a mount: reshard in place ends with 15, leaves all as it was, and says what helps."""
    run = tmp_path / "run"
    save_small(run, 1, 2)
    before = files_of(run)

    def failing(*_: Any) -> bool:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(beneath, "exchange_names", failing)
    refused = inside(capsys, "reshard", f"{run}@2", "--ps", "3", code=15)
    assert "--output" in refused["hint"]
    assert files_of(run) == before
    assert at(run, 2).fingerprint
    assert elasticdl_rules.leftovers(run) == []


@pytest.mark.root
def test_immutable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One version that is immutable: it stays, the others go, and the exit code is 12 because of permissions."""
    run = tmp_path / "run"
    save_small(run, 1, 2, 3)
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", run / "version-1"], check=False).returncode:
        pytest.skip("this file system knows no immutable directories")
    try:
        stayed = inside(capsys, "prune", run, "--keep", "1", code=12)["failed"]
        assert [f["ref"] for f in stayed] == [f"{run}@1"]
        assert numbers(run) == [1, 3]
    finally:
        subprocess.run(["chattr", "-i", run / "version-1"], check=True)
    inside(capsys, "prune", run, "--keep", "1")
    assert numbers(run) == [3]


@pytest.mark.root
def test_an_immutable_file_in_a_replaced_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of a replaced version that cannot be removed stays in staging; the location works on, and says so."""
    run = tmp_path / "run"
    save_small(run, 1, 2)
    file = min((run / "version-2").iterdir())
    if shutil.which("chattr") is None or subprocess.run(["chattr", "+i", file], check=False).returncode:
        pytest.skip("this file system knows no immutable files")
    try:
        failed = inside(capsys, "reshard", f"{run}@2", "--ps", "3", code=12)
        assert "version 2 is in place" in failed["hint"]
        inside(capsys, "tag", "add", f"{run}@1", "kept")
        recovered = inside(capsys, "recover", run, code=3)
        assert file.name in str(recovered["left"])
        assert not recovered["done"]
        assert inside(capsys, "verify", f"{run}@2", "--deep")["ok"]
    finally:
        moved = next(run.rglob(f"gone-*/{file.name}"))
        subprocess.run(["chattr", "-i", moved], check=True)
    assert inside(capsys, "recover", run)["done"]
    assert elasticdl_rules.leftovers(run) == []
