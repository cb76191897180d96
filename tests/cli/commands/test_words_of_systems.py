"""A stranger without ElasticDL meets no word of ElasticDL's; a directory without a checkpoint says what is in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from builders import write_checkpoint
from checkpoints import save_small
from oracle import Model
from program import edl
from system_runs import step_run

FOREIGN = ("bin", "epoch=3.ckpt", "notes.txt", "checkpoint-500")
"""Names that ElasticDL's scan would stop at, or take for a version."""


def _model() -> Model:
    return Model(7, {"d": ("float32", (2, 1), b"\0\0\x80?" * 2)})


def test_a_wrong_directory_is_described(tmp_path: Path) -> None:
    """`list` of a directory without a checkpoint names what is in it, and other commands do in their hint."""
    (tmp_path / "empty").mkdir()
    place = tmp_path / "work"
    place.mkdir()
    for name in FOREIGN:
        (place / name).touch()
    assert edl("list", place).stdout == f"{place}  no checkpoint; it contains {', '.join(sorted(FOREIGN))}\n"
    assert edl("list", place).stderr == ""
    assert edl("list", tmp_path / "empty").stdout == f"{tmp_path / 'empty'}  no checkpoint; it is empty\n"
    for command in ("inspect", "verify", "copy"):
        failed = edl(command, place, *[tmp_path / "other"] * (command == "copy"))
        assert failed.returncode == 10
        assert f"is this the right directory? it contains {', '.join(sorted(FOREIGN))}" in failed.stderr


@pytest.mark.parametrize(
    "command", [["list"], ["inspect"], ["prune", "--keep", "2", "--dry-run"], ["report"], ["watch"]]
)
def test_no_word_of_elasticdl(command: list[str], tmp_path: Path) -> None:
    """Next to steps of torch, no name is judged by the rules of ElasticDL's scan."""
    run = step_run(tmp_path / "run")
    for name in FOREIGN:
        (run / name).touch()
    more = {"report": ["--output", str(tmp_path / "page.html")], "watch": ["--timeout", "1s"]}.get(command[0], [])
    done = edl(command[0], run, *command[1:], *more)
    assert "ElasticDL" not in done.stdout + done.stderr
    assert "layout" not in done.stdout + done.stderr


def test_its_own_versions_are_warned_of(tmp_path: Path) -> None:
    """Next to a version of ElasticDL, the names are told at which its start from the directory fails."""
    save_small(tmp_path, 1)
    (tmp_path / "notes.txt").touch()
    assert f"{tmp_path}: ElasticDL cannot start from this directory: it stops at" in edl("list", tmp_path).stderr


def test_only_old_generations_are_named(tmp_path: Path) -> None:
    """`inspect` names the generation of a file only where it is not the one that ElasticDL writes today."""
    write_checkpoint(tmp_path / "new", _model(), 2)
    write_checkpoint(tmp_path / "old", _model(), 2, generation="v1")
    assert "generation" not in edl("inspect", "new", cwd=tmp_path).stdout
    assert ", generation v1, design layout" in edl("inspect", "old", cwd=tmp_path).stdout


def test_one_shard_has_no_balance(tmp_path: Path) -> None:
    """The rows of several shards are drawn; those of one shard say nothing, and have no column."""
    save_small(tmp_path / "one", 1, ps_num=1)
    save_small(tmp_path / "two", 1, ps_num=2)
    assert "balance" not in edl("inspect", "one", cwd=tmp_path).stdout
    assert "balance" in edl("inspect", "two", cwd=tmp_path).stdout
