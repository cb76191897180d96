"""The guard around every command finds what would disturb ElasticDL's scan, and no command escapes it."""

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
    """Whatever a command does to the scan at one of its locations, its test fails."""
    message, disturb = FAULTS[name]
    save_small(tmp_path / "run", 10, 20)
    with pytest.raises(AssertionError, match=message), scan_guard(["tag", "add", "run@20", "x"], tmp_path):
        disturb(tmp_path / "run")


def test_what_a_command_is_for(tmp_path: Path) -> None:
    """An import may publish, a prune may delete, and neither may do what the other does."""
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
    """Tests run commands through `program`; only these files start the program in other ways."""
    starts = re.compile(r"\bPROGRAM\b|\bapp\.run\(|cli\.(app|options\.program) import .*\b(main|run)\b")
    found = {str(p.relative_to(TESTS)) for p in TESTS.rglob("*.py") if starts.search(p.read_text(encoding="utf-8"))}
    assert found == {
        "bench/measure.py",  # measures
        "test_packaging.py",  # looks at what a start imports
        "cli/browse/test_terminal.py",  # on a terminal; it compares all files before and after
        "cli/commands/test_commands.py",  # lists what a start imports
        "cli/completion/test_completions.py",  # a shell runs it
        "cli/commands/test_copy_command.py",  # under strace, which kills it
        "cli/commands/test_after_commit.py",  # with a signal after the commit, in this process
        "cli/commands/test_edit.py",  # interrupts it
        "cli/commands/test_doctor.py",  # with a disk that fails, in this process
        "cli/terminal/test_edges.py",  # a shell runs it, or a terminal
        "cli/terminal/test_pager.py",  # on a terminal
        "cli/options/test_guesses.py",  # a shell runs it
        "cli/commands/test_prune_permissions.py",  # on a terminal
        "core/cluster/test_fault_sweep.py",  # beside a cluster that fails
        "core/cluster/test_reshard.py",  # kills it
        "support/bucket_parts.py",  # on S3 only, killed
        "core/commit/test_kills_on_s3.py",  # on S3 only, killed
        "cli/commands/test_many_shards.py",  # with few open files
        "cli/commands/test_recover_findings.py",  # on a terminal
        "cli/commands/test_look.py",  # with what fails while it is read, in this process
        "cli/commands/test_follow.py",  # runs until it is stopped; on a terminal, or with a command for each event
        "cli/manual/test_help.py",  # reads the help on a terminal
        "cli/options/test_hints.py",  # looks for what is meant, on a terminal too
        "support/hostile_state.py",  # with state that no scan meets, and a check of everything beside it
        "cli/options/test_last_catch.py",  # commands that fail before they have a location, or are killed
        "cli/commands/test_numbers_in_names.py",  # with little memory, where the scan itself would fail
        "cli/commands/test_retention_commands.py",  # on a terminal, or beside another process
        "cli/commands/test_salvage.py",  # ends with a document and an error; what writes has the guard
        "cli/commands/test_s3.py",  # on S3 only
        "core/commit/publish/test_objects.py",  # on S3 only, killed
        "cli/terminal/test_rows.py",  # into a pipe, line by line
        "cli/terminal/test_streams.py",  # into pipes
        "cli/commands/test_unlock.py",  # on a terminal
        "core/commit/publish/test_stopped.py",  # stopped and killed
        "core/commit/repair/test_strays.py",  # on S3 only, killed
        "core/operations/test_slices.py",  # into a pipe, in bytes
        "core/operations/prune/test_not_deleted.py",  # ends with two documents; with the guard
        "cli/commands/test_unreadable.py",  # without the capabilities of root
        "core/sources/elasticdl/test_small_messages.py",  # lists what a start imports
        "core/sources/test_toy_system.py",  # with a package that knows one more system
        "docs/console.py",  # pages
        "docs/roff.py",  # a name in man pages
        "docs/markdown_pages.py",  # the same
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
