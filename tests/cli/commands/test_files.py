"""The commands take a FILE wherever they take a reference."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from places import GOLDEN
from program import inside

COMMANDS = [
    ("inspect", "FILE"),
    ("inspect", "FILE", "--stats"),
    ("verify", "FILE", "--deep"),
    ("get", "FILE", "--variable", "dense/bias:0"),
    ("diff", "FILE", "FILE"),
    ("export", "FILE", "m.npz"),
    ("export", "FILE", "m.ckpt"),
    ("reshard", "FILE", "--ps", "2", "--output", "out"),
    ("reshard", "FILE", "--ps", "2", "--output", "out", "--dry-run"),
]
REFUSED = [
    ("tag", "add", "FILE", "x"),
    ("note", "FILE", "text"),
    ("metrics", "set", "FILE", "auc=1"),
    ("metrics", "remove", "FILE", "auc"),
    ("reshard", "FILE", "--ps", "2"),
    ("verify", "FILE", "--seal"),
    ("copy", "FILE", "out"),
]
NO_LOCATION = [
    ("list", "FILE"),
    ("wait", "FILE"),
    ("watch", "FILE"),
    ("prune", "FILE", "--keep", "1"),
    ("undo", "FILE"),
    ("recover", "FILE"),
    ("unlock", "FILE"),
    ("policy", "show", "FILE"),
    ("tag", "list", "FILE"),
    ("metrics", "show", "FILE"),
    ("metrics", "mode", "FILE", "auc", "max"),
    ("verify", "FILE", "--all"),
    ("copy", "--all", "FILE", "out"),
]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A single-file checkpoint of 2019 under the name that people give such files."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "legacy/v0d/model_v33.chkpt", "mnist_functional_api_model_v110.chkpt")
    return "mnist_functional_api_model_v110.chkpt"


def named(words: tuple[str, ...], file: str) -> list[str]:
    """Return the words of a command with the name of the file."""
    return [file if word == "FILE" else word for word in words]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_file_is_read(words: tuple[str, ...], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command that reads a version reads a file; what JSON says was read is the path of the file."""
    result = inside(capsys, *named(words, file))
    key = {"diff": "a", "reshard": "source"}.get(words[0], "ref")
    assert result[key] == file
    assert not os.path.exists(".edl-ckpt-0")


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_a_file_has_not_is_refused(words: tuple[str, ...], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command that changes a version in its location refuses a file (16), and names the command that helps."""
    error = inside(capsys, *named(words, file), code=16)
    assert "edl-ckpt import" in error["hint"] or "--output" in error["hint"]
    assert os.listdir(".") == [file]


@pytest.mark.parametrize("words", NO_LOCATION, ids=" ".join)
def test_a_file_is_no_location(words: tuple[str, ...], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command on a location says that it got a file (10), and how to make a version of it."""
    error = inside(capsys, *named(words, file), code=10)
    assert error["message"] == f"{file}: a file, and not the directory of a location"
    assert f"edl-ckpt import {file} LOCATION@VERSION --ranks N" in error["hint"]
    assert os.listdir(".") == [file]


def test_the_hint_works(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command in the hint makes a version with the content of the file."""
    made = inside(capsys, "import", file, "run@33", "--ps", "2")
    assert made["fingerprint"] == inside(capsys, "verify", file, "--deep")["fingerprint"]
    assert inside(capsys, "diff", file, "run@33")["equal"]
