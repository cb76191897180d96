"""What a prune deletes only if the command line asks for it in so many words, and what its advice is worth."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import Latest, Policy, list_versions, report_location, set_metrics, verify_version
from edl_ckpt.core.operations.annotate import add_tag
from program import PROGRAM, edl, inside

NONE = ("--keep-best", "0", "--metric", "auc")
"""A rule that keeps no version."""
LAST = "no complete version would remain"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location: 1 with a metric, 2 with a tag, 3 the newest complete one, and 4 without a shard, just now."""
    save_small(tmp_path / "run", 1, 2, 3, 4, sealed=False)
    set_metrics(at(tmp_path / "run", 1), {"auc": 0.5})
    add_tag(at(tmp_path / "run", 2), "serving")
    (tmp_path / "run/version-4/variables-1-of-2.ckpt").unlink()
    return tmp_path / "run"


def abandon(run: Path, version: int = 4, *, hours: int = 1) -> None:
    """Let the last change of a version be long ago."""
    past = time.time() - 3600 * hours
    for path in (run / f"version-{version}").iterdir():
        os.utime(path, (past, past))
    os.utime(run / f"version-{version}", (past, past))


def check(run: Path, *left: int) -> None:
    """Assert that these versions are left, and that the complete ones among them verify."""
    assert numbers(run) == list(left)
    for version in list_versions(run).versions:
        assert version.state != "complete" or verify_version(version, level="deep").ok


def answered(answer: str, *arguments: str | Path, **env: str) -> tuple[int, str]:
    """Run a command on a terminal, answer its question, and return its exit code and all that it showed."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execvpe(PROGRAM[0], [*PROGRAM, *map(str, arguments), "--no-color"], os.environ | env)
    seen = b""
    try:
        while data := os.read(fd, 4096):
            seen += data
            if seen.endswith(b"[y/N] "):
                os.write(fd, answer.encode() + b"\n")
    except OSError:
        pass  # the terminal's other end is closed
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), " ".join(seen.decode().split())


def test_all_has_another_name(run: Path) -> None:
    """`prune --all` is no option any more: it ends with 2, names the new one, and deletes nothing."""
    for more in (("--keep", "1"), ("-q", "--yes", "--json")):
        done = edl("prune", run, "--all", *more)
        assert (done.returncode, done.stdout, "--even-newest" in done.stderr) == (2, "", True)
    assert not re.search(r"--all\b", edl("prune", "--help").stdout)
    check(run, 1, 2, 3, 4)


@pytest.mark.parametrize("more", [(), ("--incomplete",), ("--purge",), ("--drop-tag", "serving"), ("--yes",)])
def test_even_newest_alone(run: Path, more: Sequence[str]) -> None:
    """Without a rule or --delete, --even-newest is a usage error that names the ways, also with a stored policy."""
    assert edl("policy", "set", run, "--keep-tag", "serving").returncode == 0
    done = edl("prune", run, "--even-newest", *more)
    assert (done.returncode, "--keep-best" in done.stderr, "--delete" in done.stderr) == (2, True, True)
    check(run, 1, 2, 3, 4)


@pytest.mark.parametrize("asked", [NONE, ("--max-size", "0"), ("--delete", "1", "--delete", "2", "--delete", "3")])
def test_the_last_complete_version(run: Path, asked: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A script must say --yes itself for a plan that leaves no complete version; a dry run says it first."""
    words: list[str | Path] = ["prune", run, *asked, "--even-newest", "--drop-tag", "serving"]
    dry = edl(*words, "--dry-run", "-q")
    assert (dry.returncode, dry.stderr.splitlines()[0]) == (0, f"warning: {run}: {LAST}")
    assert inside(capsys, *words, "--dry-run")["warnings"][0] == f"{run}: {LAST}"
    refused = edl(*words, "--json", EDL_CKPT_YES="1")
    assert (refused.returncode, LAST in json.loads(refused.stderr.splitlines()[-1])["message"]) == (16, True)
    check(run, 1, 2, 3, 4)
    done = edl(*words, "--yes")
    assert (done.returncode, LAST in done.stderr) == (0, True)
    check(run, 4)


def test_one_stays(run: Path) -> None:
    """A plan that leaves a complete version asks for nothing more, whichever it is."""
    done = edl("prune", run, *NONE, "--even-newest", EDL_CKPT_YES="1")
    assert (done.returncode, LAST in done.stderr) == (0, False)
    check(run, 2, 4)


def test_a_torn_version_does_not_count(run: Path) -> None:
    """A version whose files are all there and cannot be read is none that would remain."""
    shard = run / "version-3/variables-1-of-2.ckpt"
    os.truncate(shard, shard.stat().st_size // 2)
    done = edl("prune", run, "--delete", "1", "--delete", "2", "--drop-tag", "serving", "--even-newest")
    assert (done.returncode, LAST in done.stderr) == (16, True)
    assert numbers(run) == [1, 2, 3, 4]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("env", [{}, {"EDL_CKPT_YES": "1"}])
def test_the_question(run: Path, env: dict[str, str]) -> None:
    """On a terminal the question names the last complete version, whatever the environment answers."""
    words = ("prune", run, *NONE, "--even-newest", "--drop-tag", "serving")
    code, seen = answered("n", *words, **env)
    assert code == 16
    assert seen.index(LAST) < seen.index("newest") if "newest" in seen else LAST in seen
    assert re.search(r"Delete 3 versions \(\S+ \S+\), the last complete one too\? \[y/N\]", seen)
    check(run, 1, 2, 3, 4)
    assert answered("y", *words, **env)[0] == 0
    check(run, 4)


def test_scripts(run: Path) -> None:
    """Shell scripts, with `set -u` and without, in a pipe and quiet, are refused and delete nothing."""
    ours = shlex.join([*PROGRAM, "prune", str(run)])
    script = f"""
    {ours} --keep 1 --all; echo $?
    {ours} --max-size 0 --even-newest --drop-tag serving -q < /dev/null | cat; echo ${{PIPESTATUS[0]}}
    set -u
    yes | {ours} --keep-best 1 --metric acu --mode max -q --json; echo $?
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "16", "16"]
    check(run, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("rule", "there"),
    [
        (("--keep-best", "1", "--metric", "acu", "--mode", "max"), "did you mean auc? (metrics there: auc)"),
        (("--keep-experiment-best", "1", "--metric", "zz", "--mode", "max"), "metrics there: auc"),
        (("--policy", "determined", "--metric", "acu", "--mode", "min"), "did you mean auc?"),
        (("--keep-tag", "servng"), "did you mean serving? (tags there: serving)"),
        (("--keep", "1", "--keep-tag", "serving", "--keep-tag", "x"), "tags there: serving"),
    ],
)
def test_a_rule_that_names_nothing(run: Path, rule: Sequence[str], there: str) -> None:
    """A metric or a tag that no version has refuses a prune that would delete, given or stored; one option lifts it."""
    for stored in (False, True):
        words: list[str | Path] = ["prune", run, *(() if stored else rule)]
        if stored:
            assert there in edl("policy", "set", run, *rule).stderr
        for more in (("-q",), ("--dry-run", "--plan-out", run.parent / "plan.json")):
            done = edl(*words, *more, EDL_CKPT_ALLOW_EMPTY_RULE="1", EDL_CKPT_YES="1")
            assert (done.returncode, there in done.stderr, "--allow-empty-rule" in done.stderr) == (16, True, True)
        check(run, 1, 2, 3, 4)
    assert not (run.parent / "plan.json").exists()
    done = edl("prune", run, "--allow-empty-rule", "-q")
    assert (done.returncode, there in done.stderr) == (0, True)
    assert 1 not in numbers(run)


def test_nothing_to_delete(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first night of a job: no version has a metric yet, and no version goes. That is a warning, no refusal."""
    done = inside(capsys, "prune", run, "--keep", "9", "--keep-best", "1", "--metric", "loss")
    assert done["warnings"] == ["no version has a value of 'loss', so its rule keeps none; metrics there: auc"]
    (tmp_path / "new").mkdir()
    assert edl("prune", tmp_path / "new", "--keep-best", "1", "--metric", "loss").stderr == ""
    check(run, 1, 2, 3, 4)


def test_of_several_trials_one_has_it(run: Path, tmp_path: Path) -> None:
    """A metric that one of several locations has is a name that exists."""
    save_small(tmp_path / "other", 1, 2)
    rule = ("--keep-best", "1", "--metric", "auc")
    assert edl("prune", tmp_path / "other", *rule).returncode == 16
    assert edl("prune", run, tmp_path / "other", *rule).returncode == 0
    check(tmp_path / "other", 2)


def test_warnings_of_a_deletion_are_never_quiet(run: Path) -> None:
    """-q hides the warnings of a prune that deletes nothing, and no others."""
    words = ("prune", run, "--drop-tag", "srving", "-q")
    warning = "warning: no version has the tag 'srving'; did you mean serving? (tags there: serving)\n"
    assert edl(*words, "--keep", "9").stderr == ""
    assert edl(*words, "--keep", "1").stderr == warning
    check(run, 2, 3, 4)


def advised(run: Path, version: int, *options: str) -> list[str]:
    """Return the command that the plan names for a version."""
    done = edl("prune", run, "--keep", "9", "--dry-run", "--json", *options)
    (entry,) = [e for e in json.loads(done.stdout)["plan"] if e["version"] == version]
    found = re.search(
        r"`edl-ckpt (.*)` deletes it$|incomplete and old: (--incomplete) deletes it$", entry["reasons"][-1]
    )
    assert found, entry["reasons"]
    return shlex.split(found[1]) if found[1] else ["prune", str(run), found[2]]


@pytest.mark.parametrize("case", ["newer", "tagged", "older", "none complete"])
def test_advice_of_a_plan(run: Path, case: str) -> None:
    """The command that a plan names for an incomplete version deletes this one, and no other."""
    number = 1 if case == "older" else 4
    if case == "tagged":
        add_tag(at(run, 4), "keep-me", force=True)
    if case == "older":
        (run / "version-1/variables-1-of-2.ckpt").unlink()
    for other in (2, 3) if case == "none complete" else ():
        (run / f"version-{other}/variables-0-of-2.ckpt").unlink()
    abandon(run, number)
    left = [n for n in (1, 2, 3, 4) if n != number]
    words = advised(run, number, *(["--incomplete"] if case == "newer" else []))
    done = edl(*words)
    assert done.returncode == 0, done.stderr
    check(run, *left)


@pytest.mark.parametrize(
    ("number", "option"), [(2, "--drop-tag serving"), (3, "--even-newest"), (4, "--grace"), (5, "--grace")]
)
def test_advice_of_a_refusal(run: Path, number: int, option: str) -> None:
    """--delete of a guarded version says which options delete it all the same; with them it goes."""
    if number == 5:  # shards of two numbers of servers
        (run / "version-4").rename(run / "version-5")
        (run / "version-5/variables-0-of-3.ckpt").write_bytes(b"x")
    done = edl("prune", run, "--delete", str(number))
    assert done.returncode == 16
    hint = done.stderr.splitlines()[-1].strip()
    assert option in hint
    assert hint.startswith("it was not deleted; if no process is writing it, add: " if number > 3 else "it was not")
    done = edl("prune", run, "--delete", str(number), *shlex.split(hint.partition("add: ")[2]))
    assert done.returncode == 0, done.stderr
    check(run, *(n for n in (1, 2, 3, 5 if number == 5 else 4) if n != number))


def test_report_gives_the_same_advice(run: Path) -> None:
    """A report names the command of the plan."""
    abandon(run)
    retention = report_location(run, Policy((Latest(9),)), values=False).retention
    assert retention is not None
    reasons = retention.entries[str(run / "version-4")].reasons
    assert reasons[-1] == f"incomplete and old: `edl-ckpt prune {run} --delete 4` deletes it"


def plan_of(run: Path, *words: str) -> Path:
    """Return a file with the plan of a prune."""
    path = run.parent / "plan.json"
    done = edl("prune", run, *words, "--plan-out", path)
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(
    ("asked", "flags", "left"),
    [
        (("--keep", "1", "--drop-tag", "serving"), ["--drop-tag serving"], (3, 4)),
        (("--keep-tag", "serving", "--even-newest"), ["--even-newest"], (2, 4)),
        (("--delete", "4", "--grace", "0s"), ["--delete 4", "--grace 0s"], (1, 2, 3)),
        ((*NONE, "--even-newest", "--drop-tag", "serving"), ["--even-newest", "--drop-tag serving", "--yes"], (4,)),
    ],
)
def test_a_plan_file_lifts_no_guard(run: Path, asked: Sequence[str], flags: list[str], left: Any) -> None:
    """--apply needs the exceptions from the guards once more; without one of them it deletes nothing."""
    plan = plan_of(run, *asked)
    for given in ([], *([flag for flag in flags if flag != dropped] for dropped in flags)):
        done = edl("prune", "--apply", plan, *" ".join(given).split())
        assert done.returncode == 16, (given, done.stderr)
        assert "--grace 0s" in flags or any(flag in done.stderr for flag in flags if flag not in given)
        check(run, 1, 2, 3, 4)
    done = edl("prune", "--apply", plan, *" ".join(flags).split())
    assert done.returncode == 0, done.stderr
    check(run, *left)


def test_a_plan_does_not_grow(run: Path) -> None:
    """A version that the plan keeps cannot be named beside --apply."""
    plan = plan_of(run, "--keep", "1")
    done = edl("prune", "--apply", plan, "--delete", "2")
    assert (done.returncode, "does not delete version 2" in done.stderr) == (2, True)
    check(run, 1, 2, 3, 4)


def test_purge_says_nothing_of_versions(run: Path) -> None:
    """A purge of a location with versions does not say that versions are below it."""
    done = edl("prune", run, "--purge")
    assert (done.returncode, done.stderr) == (0, "")
    check(run, 1, 2, 3, 4)
