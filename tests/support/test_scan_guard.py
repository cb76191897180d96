"""12.2: the guard around every command finds what would disturb ElasticDL's scan, and no command escapes it."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from checkpoints import save_small
from places import TESTS
from scan_guard import scan_guard

FAULTS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "another layout": ("layouts are mixed", lambda run: (run / "version_30").mkdir()),
    "a file of ours": ("raises an exception", lambda run: (run / "metrics.json").touch()),
    "a temporary directory": (
        "the newest complete version is",
        lambda run: shutil.copytree(run / "version-20", run / "tmp-40"),
    ),
    "a version spoiled": ("the scan chose", lambda run: (run / "version-20" / "variables-9-of-2.ckpt").touch()),
    "a version lost": ("the scan chose", lambda run: shutil.rmtree(run / "version-20")),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(tmp_path: Path, name: str) -> None:
    """12.2: whatever a command does to the scan at one of its locations, its test fails."""
    message, disturb = FAULTS[name]
    save_small(tmp_path / "run", 10, 20)
    with pytest.raises(AssertionError, match=message), scan_guard(["tag", "add", "run@20", "x"], tmp_path):
        disturb(tmp_path / "run")


def test_what_a_command_is_for(tmp_path: Path) -> None:
    """12.2: an import may publish, a prune may delete, and neither may do what the other does."""
    save_small(tmp_path / "run", 10)
    with scan_guard(["import", "m.npz", "run@20"], tmp_path):
        save_small(tmp_path / "run", 20)
    with scan_guard(["prune", "run"], tmp_path):
        shutil.rmtree(tmp_path / "run" / "version-20")
    with pytest.raises(AssertionError, match="the scan chose"), scan_guard(["prune", "run"], tmp_path):
        save_small(tmp_path / "run", 20)
    with pytest.raises(AssertionError, match="the scan chose"), scan_guard(["import", "m.npz", "run@30"], tmp_path):
        shutil.rmtree(tmp_path / "run" / "version-20")


def test_no_command_escapes() -> None:
    """12.2: tests run commands through `program`; only these files start the program in other ways."""
    starts = re.compile(r"\bPROGRAM\b|\bapp\.run\(|cli\.app import (main|run)")
    found = {str(p.relative_to(TESTS)) for p in TESTS.rglob("*.py") if starts.search(p.read_text(encoding="utf-8"))}
    assert found == {
        "bench/measure.py",  # measures
        "cli/browse/test_terminal.py",  # on a terminal; it compares all files before and after
        "cli/test_commands.py",  # lists what a start imports
        "cli/test_completions.py",  # a shell runs it
        "cli/test_copy_command.py",  # under strace, which kills it
        "cli/test_after_commit.py",  # with a signal after the commit, in this process
        "cli/test_doctor.py",  # with a disk that fails, in this process
        "cli/test_edges.py",  # a shell runs it, or a terminal
        "cli/test_guesses.py",  # a shell runs it
        "cli/test_prune_permissions.py",  # on a terminal
        "core/cluster/test_fault_sweep.py",  # beside a cluster that fails
        "core/cluster/test_reshard.py",  # kills it
        "support/bucket_parts.py",  # on S3 only, killed
        "cli/test_follow.py",  # runs until it is stopped; on a terminal, or with a command for each event
        "cli/test_help.py",  # reads the help on a terminal
        "cli/test_hints.py",  # looks for what is meant, on a terminal too
        "support/hostile_state.py",  # with state that no scan meets, and a check of everything beside it
        "cli/test_last_catch.py",  # commands that fail before they have a location, or are killed
        "cli/test_numbers_in_names.py",  # with little memory, where the scan itself would fail
        "cli/test_retention_commands.py",  # on a terminal, or beside another process
        "cli/test_s3.py",  # on S3 only
        "core/commit/test_remote.py",  # on S3 only, killed
        "cli/test_rows.py",  # into a pipe, line by line
        "cli/test_streams.py",  # into pipes
        "cli/test_unlock.py",  # on a terminal
        "core/commit/test_stopped.py",  # stopped and killed
        "core/commit/test_strays.py",  # on S3 only, killed
        "core/operations/test_slices.py",  # into a pipe, in bytes
        "core/operations/prune/test_not_deleted.py",  # ends with two documents; with the guard
        "cli/test_unreadable.py",  # without the capabilities of root
        "docs/console.py",  # pages
        "docs/test_ci.py",  # a shell runs it, in place of a runner
        "support/fault_sweep.py",  # compares the scan itself, at every call
        "support/fork_server.py",  # what `program` runs commands in
        "support/program.py",
        "support/racers.py",  # two writers at once
        "support/shim_sweep.py",  # compares the scan itself, at every call
        "support/story_actor.py",  # compares the scan itself, after every step
        "support/training_job.py",  # scans itself, while everybody works
        "support/waiting.py",  # stops on the way, or is killed
    }
