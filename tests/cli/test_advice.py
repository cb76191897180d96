"""Advice is run: each command that a message names parses, and does what it is named for."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import save_small
from edl_ckpt.core.state.signature import describe
from foreign import SYSTEMS
from program import edl

_COMMAND = re.compile(r"`?(edl-ckpt [a-z][^`;\n]*)")
_PLACEHOLDERS = {"NEW_LOCATION": "new", "LOCATION": "other", "NAME": "x", "NUMBER": "9", "N": "2", "REF": "run@2"}
"""What a person would put in."""


def commands_in(text: str) -> list[list[str]]:
    """Return the commands that a message names, with placeholders filled in; without one that is cut by an ellipsis."""
    found = []
    for line in _COMMAND.findall(text):
        words = shlex.split(re.split(r"(?:, (?:which|then|and)|: |\. |\.$| \(|, or | deletes it)", line)[0])
        found.append([_filled(word) for word in words[1:]])
    return found


def _filled(word: str) -> str:
    return re.sub(r"\b[A-Z][A-Z_]*\b", lambda match: _PLACEHOLDERS.get(match[0], match[0]), word)


def damaged(place: Path) -> None:
    """Flip a value in the newest version, and let verify find it."""
    shard = next((place / "run" / "version-3").glob("variables-0*"))
    data = bytearray(shard.read_bytes())
    data[-3] ^= 16
    shard.write_bytes(data)


def cut(place: Path) -> None:
    """Remove a shard of the newest version, long ago."""
    next((place / "run" / "version-3").glob("variables-1*")).unlink()
    for file in (place / "run").rglob("*"):
        os.utime(file, (time.time() - 90_000,) * 2)


def locked(place: Path) -> None:
    """Let a process on another host hold the lock."""
    lock = place / "run/.edl-ckpt-0/lock-0"
    lock.write_text(json.dumps({**describe("copy"), "host": "pod-7"}))
    os.utime(lock, (time.time() - 200,) * 2)


def parent(place: Path) -> None:
    """Put runs below a directory."""
    for name in ("a", "b"):
        shutil.copytree(place / "run", place / "jobs" / name)


def foreign(place: Path) -> None:
    """Put somebody's notes into a version of torch."""
    for number in (1, 2):
        shutil.copytree(SYSTEMS / "dcp/torchrec/step_2", place / "torch" / f"step_{number}")
        (place / "torch" / f"step_{number}" / "notes.txt").write_text("mine")
    for file in (place / "torch").rglob("*"):
        os.utime(file, (time.time() - 90_000,) * 2)


def two_of_one_tag(place: Path) -> None:
    """Leave a version alone with a tag."""
    assert edl("tag", "add", place / "run@2", "good").returncode == 0


def nothing(place: Path) -> None:
    """Leave everything as it is."""
    del place


SITUATIONS: list[tuple[str, Callable[[Path], None], list[str]]] = [
    ("damaged, deep", damaged, ["verify", "run@3", "--deep"]),
    ("damaged, all", damaged, ["verify", "run", "--all", "--deep"]),
    ("damaged, export", damaged, ["export", "run@3", "x.npz"]),
    ("damaged, reshard", damaged, ["reshard", "run@3", "--ps", "3"]),
    ("a shard is missing, verify", cut, ["verify", "run@3"]),
    ("a shard is missing, inspect", cut, ["inspect", "run@3"]),
    ("a shard is missing, export", cut, ["export", "run@3", "x.npz"]),
    ("a shard is missing, tag", cut, ["tag", "add", "run@3", "good"]),
    ("a shard is missing, prune", cut, ["prune", "run", "--keep", "1", "--dry-run"]),
    ("locked", locked, ["tag", "add", "run@2", "good", "--lock-wait", "0s"]),
    ("locked, unlock", locked, ["unlock", "run"]),
    ("locked, recover", locked, ["recover", "run", "--lock-wait", "0s"]),
    ("a parent, list", parent, ["list", "jobs"]),
    ("a parent, verify", parent, ["verify", "jobs"]),
    ("a parent, inspect", parent, ["inspect", "jobs"]),
    ("a parent, prune", parent, ["prune", "jobs", "--keep", "1"]),
    ("foreign content", foreign, ["prune", "torch", "--keep", "1", "--dry-run"]),
    ("foreign content, named", foreign, ["prune", "torch", "--delete", "1", "--yes"]),
    ("a number without @", nothing, ["inspect", "run", "--table", "nope"]),
    ("no version", nothing, ["inspect", "run@77"]),
    ("no @verified", nothing, ["inspect", "run@verified"]),
    ("no tag", nothing, ["inspect", "run@goood"]),
    ("no rule", nothing, ["prune", "run"]),
    ("a target that is there", two_of_one_tag, ["reshard", "run@2", "--ps", "3", "--output", "run"]),
    ("a newest version", nothing, ["prune", "run", "--delete", "3"]),
    ("a tagged version", two_of_one_tag, ["prune", "run", "--delete", "2", "--yes"]),
    ("tag without a version", nothing, ["tag", "add", "run", "good"]),
]


ADVISED = {
    "damaged, deep", "damaged, all", "damaged, export", "damaged, reshard", "a shard is missing, verify",
    "a shard is missing, export", "a shard is missing, tag", "a shard is missing, prune", "locked", "locked, recover",
    "no @verified", "no rule", "tag without a version",
}  # fmt: skip
"""The situations in which a message names a command to type."""


@pytest.mark.parametrize("situation", SITUATIONS, ids=[name for name, *_ in SITUATIONS])
def test_advice_can_be_followed(tmp_path: Path, situation: tuple[str, Callable[[Path], None], list[str]]) -> None:
    """No command in a message ends with a wrong usage, or with a traceback; and none deletes what is foreign."""
    name, prepare, words = situation
    save_small(tmp_path / "run", 1, 2, 3)
    prepare(tmp_path)
    said = edl(*words, cwd=tmp_path)
    assert said.returncode != 70
    advice = commands_in(said.stderr) + commands_in(said.stdout)
    assert bool(advice) == (name in ADVISED)
    notes = sorted(tmp_path.rglob("notes.txt"))
    for command in advice:
        followed = edl(*command, cwd=tmp_path)
        assert followed.returncode not in {2, 70}, (command, followed.stderr)
        assert "--with-foreign" in command or sorted(tmp_path.rglob("notes.txt")) == notes, command


def test_enough_advice_is_found() -> None:
    """The pattern finds commands in messages as they are written."""
    assert commands_in("  try: edl-ckpt verify 'my run'@latest --deep\n") == [["verify", "my run@latest", "--deep"]]
    assert commands_in("if pod-7 is gone: edl-ckpt unlock run, which works now\n") == [["unlock", "run"]]
    assert commands_in("`edl-ckpt prune run --purge`).") == [["prune", "run", "--purge"]]
