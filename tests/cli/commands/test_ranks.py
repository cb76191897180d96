"""One word for the number of ranks or servers: --ranks, in every command; its old names work and are not shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from checkpoints import files_but_verdicts, save_small
from program import document, edl
from system_runs import step_run


@pytest.mark.parametrize("command", ["reshard", "export", "import", "verify"])
def test_help_shows_one_name(command: str) -> None:
    """The help has --ranks, and no old name of it; no help has a variable, and the longest fit a screen or two."""
    shown = edl(command, "--help", COLUMNS="80").stdout
    assert "--ranks N" in shown
    assert "--ps" not in shown
    assert "--world-size" not in shown
    assert "[env: " not in shown


@pytest.mark.parametrize(("command", "most"), [("prune", 70), ("verify", 60), ("export", 60)])
def test_help_is_short(command: str, most: int) -> None:
    """The help of the largest commands is read at a glance."""
    assert len(edl(command, "--help", COLUMNS="80").stdout.splitlines()) <= most


def test_old_names_work(tmp_path: Path) -> None:
    """--ps, EDL_CKPT_PS and EDL_CKPT_RANKS say the number of servers, and --world-size that of ranks."""
    save_small(tmp_path, 1)
    for more, env in (
        (["--ranks", "3"], {}),
        (["--ps", "3"], {}),
        ([], {"EDL_CKPT_PS": "3"}),
        ([], {"EDL_CKPT_RANKS": "3"}),
    ):
        done = edl("reshard", tmp_path, *more, "--dry-run", cwd=None, **env)
        assert "2 PS -> 3 PS" in done.stdout
        assert "sets nothing" not in done.stderr
    run = step_run(tmp_path / "steps", (10,))
    for flag in ("--ranks", "--world-size"):
        assert document("verify", run, "--loader", "torchrec", flag, "3")["loader"]["world_size"] == 3


def test_the_number_that_is_there_is_kept(tmp_path: Path) -> None:
    """A reshard in place to the number that is there changes no file; --force rewrites it."""
    save_small(tmp_path, 1)
    before, times = files_but_verdicts(tmp_path), os.stat(tmp_path / "version-1").st_mtime_ns
    done = edl("reshard", tmp_path, "--ranks", "2")
    assert (done.returncode, "has 2 shards already: nothing to do" in done.stdout) == (0, True)
    assert (files_but_verdicts(tmp_path), os.stat(tmp_path / "version-1").st_mtime_ns) == (before, times)
    assert "proved" in edl("reshard", tmp_path, "--ranks", "2", "--force").stdout


def test_torch_needs_no_reshard(tmp_path: Path) -> None:
    """A reshard of a step of torch says that its job can load it as it is."""
    run = step_run(tmp_path / "run", (10,))
    done = edl("reshard", run, "--ranks", "3", "--dry-run")
    assert "torch loads a DCP checkpoint with any number of ranks" in done.stderr


def test_parameters_are_of_the_model(tmp_path: Path) -> None:
    """The rows of optimizers are no parameters of a model: TorchRec's tables count once."""
    summary = document("inspect", step_run(tmp_path / "run", (10,)))
    assert summary["parameters"] == 211 * 8 + 1003 * 16 + 1 + 24
    assert [t["title"].rpartition(":")[2] for t in summary["tables"]][1::2] == ["momentum1"] * 2
