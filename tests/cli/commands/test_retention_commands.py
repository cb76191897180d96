"""prune, undo, metrics, tag, note and policy as scripts and people meet them."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from places import GOLDEN
from program import PROGRAM, document, edl


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with versions 9, 15 and 20 complete, 100 not."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    shutil.copytree(tmp_path / "run/version-9", tmp_path / "run/version-15")
    return tmp_path / "run"


def numbers(run: Path) -> list[int]:
    """Return the versions that are there."""
    return [v["version"] for v in document("list", run)["locations"][0]["versions"]]


def test_prune_document(run: Path) -> None:
    """A dry run plans and deletes nothing; the real run has the same plan, and counts the deletions."""
    planned = document("prune", run, "--keep", "1", "--dry-run")
    assert planned["schema"] == "edl-ckpt/prune/1"
    assert [(e["version"], e["action"]) for e in planned["plan"]] == [
        (9, "delete"),
        (15, "delete"),
        (20, "keep"),
        (100, "keep"),
    ]
    assert {"ref", "version", "action", "reasons", "size_bytes"} <= set(planned["plan"][0])
    assert (planned["deleted"], planned["freed_bytes"], planned["applied"]) == (0, 0, False)
    assert numbers(run) == [9, 15, 20, 100]
    done = document("prune", run, "--keep", "1")
    assert done["plan"] == planned["plan"]
    freed = sum(e["size_bytes"] for e in done["plan"][:2])
    assert (done["deleted"], done["freed_bytes"], done["applied"]) == (2, freed, True)
    assert numbers(run) == [20, 100]
    assert document("prune", run, "--keep", "1")["deleted"] == 0


def test_prune_words(run: Path) -> None:
    """People see each version with its action and reasons, and the bytes that were freed."""
    done = edl("prune", run, "--keep", "1")
    assert done.returncode == 0, done.stderr
    assert "keep the latest 1" in done.stdout
    assert "9  " in done.stdout
    assert "newest complete version; latest 1 of 1" in done.stdout
    assert "2 versions deleted" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["--keep", "-1"], 2),
        (["--keep-best", "1"], 2),
        (["--keep-best", "1", "--metric", "f1"], 16),
        (["--keep-best", "1", "--metric", "f1", "--allow-empty-rule"], 2),
        (["--keep-within", "soon"], 2),
        (["--policy", "orbax", "--metric", "auc"], 2),
        (["--keep", "1", "--apply", "plan.json"], 2),
        (["--apply", "nowhere.json"], 10),
        (["--delete", "77"], 10),
        (["--delete", "20"], 16),
        (["--keep", "1", "--max-delete", "1"], 16),
    ],
)
def test_prune_failures(run: Path, arguments: list[str], code: int) -> None:
    """A prune that is not meant so deletes nothing and ends with its code."""
    where = [] if "--apply" in arguments else [run]
    done = edl("prune", *where, *arguments, cwd=run.parent)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert numbers(run) == [9, 15, 20, 100]


def test_settings(run: Path) -> None:
    """keep_checkpoint_max comes from the command line, the environment, a file, the location, in this order."""
    assert document("policy", "set", run, "--keep", "3")["words"] == ["the latest 3"]

    def deletes(*arguments: str, **env: str) -> int:
        done = edl("prune", run, "--dry-run", "--json", *arguments, cwd=None, **env)
        return sum(e["action"] == "delete" for e in json.loads(done.stdout)["plan"])

    assert deletes() == 0
    config = run.parent / "edl-ckpt.toml"
    config.write_text("[prune]\nkeep = 2\n")
    assert deletes(EDL_CKPT_CONFIG=str(config)) == 1
    assert deletes(EDL_CKPT_CONFIG=str(config), EDL_CKPT_KEEP="1") == 2
    assert deletes("--keep", "0", EDL_CKPT_CONFIG=str(config), EDL_CKPT_KEEP="1") == 0
    assert document("policy", "show", run)["policy"]["rules"] == [{"rule": "latest", "count": 3}]
    assert document("policy", "clear", run)["policy"] is None
    assert edl("prune", run).returncode == 2
    assert edl("policy", "set", run).returncode == 2


def test_dangerous_options_are_asked_for(run: Path) -> None:
    """What lifts a guard comes from the command line alone: not from the environment, not from a file."""
    env = {"EDL_CKPT_ALL": "1", "EDL_CKPT_PURGE": "1", "EDL_CKPT_DELETE": "9", "EDL_CKPT_EVERYTHING": "1"}
    done = edl("prune", run, "--keep-best", "0", "--metric", "auc", "--json", "--dry-run", **env)  # type: ignore[arg-type]
    assert [e["version"] for e in json.loads(done.stdout)["plan"] if e["action"] == "keep"] == [20, 100]
    (run.parent / "edl-ckpt.toml").write_text("[prune]\nall = true\n")
    done = edl("prune", run, "--keep", "1", "--config", run.parent / "edl-ckpt.toml")
    assert (done.returncode, "edl-ckpt.toml" in done.stderr) == (2, True)


def test_everything(run: Path) -> None:
    """Only --even-newest deletes the last complete version, and only with a rule and with --yes."""
    none = ("--policy", "determined", "--metric", "auc", "--save-trial-best", "0", "--save-trial-latest", "0")
    document("prune", run, *none)
    assert numbers(run) == [20, 100]
    assert edl("prune", run, "--even-newest").returncode == 2
    assert edl("prune", run, *none, "--even-newest").returncode == 16
    assert numbers(run) == [20, 100]
    document("prune", run, *none, "--even-newest", "--yes")
    assert numbers(run) == [100]


def test_trash_undo_purge(run: Path) -> None:
    """--trash and undo restore; --purge empties the trash and frees its bytes."""
    assert document("prune", run, "--keep", "1", "--trash")["trashed"] is True
    assert document("undo", run)["restored"] == ["version-15", "version-9"]
    assert numbers(run) == [9, 15, 20, 100]
    assert edl("undo", run).returncode == 10
    assert "undo" in edl("prune", run, "--keep", "1", "--trash").stdout
    assert document("prune", run, "--purge", "--older-than", "1h")["freed_bytes"] == 0
    assert document("prune", run, "--purge")["freed_bytes"] > 0
    assert edl("undo", run).returncode == 10


def test_plan_file(run: Path) -> None:
    """A plan can be read, stored and applied later; a stale plan is refused, and so is a file that is not a plan."""
    plan = run.parent / "plan.json"
    document("prune", run, "--keep", "1", "--dry-run", "--plan-out", str(plan))
    assert numbers(run) == [9, 15, 20, 100]
    os.utime(run / "version-15/variables-0-of-2.ckpt", (1.0, 1.0))
    assert edl("prune", "--apply", plan, cwd=run).returncode == 16
    assert numbers(run) == [9, 15, 20, 100]
    document("prune", run, "--keep", "1", "--dry-run", "--plan-out", str(plan))
    assert document("prune", "--apply", plan)["deleted"] == 2
    assert numbers(run) == [20, 100]
    for text in ("{", "[]", '{"schema": "edl-ckpt/prune-plan/1"}'):
        plan.write_text(text)
        assert edl("prune", "--apply", plan).returncode == 2


def test_a_plan_that_is_written_is_not_carried_out(run: Path) -> None:
    """--plan-out deletes nothing, in a script either, unless --yes is on the same command line."""
    plan = run.parent / "plan.json"
    done = edl("prune", run, "--keep", "1", "--plan-out", plan, EDL_CKPT_YES="1")
    assert (done.returncode, done.stderr.splitlines()) == (
        0,
        [
            "warning: EDL_CKPT_YES sets nothing: this option can only be given on the command line",
            f"to carry out the plan: edl-ckpt prune --apply {shlex.quote(str(plan))}",
        ],
    )
    assert "Nothing was deleted." in done.stdout
    assert document("prune", run, "--keep", "1", "--plan-out", str(plan))["applied"] is False
    other = str(run.parent / "other.json")
    assert document("prune", "--apply", str(plan), "--plan-out", other, "--dry-run")["applied"] is False
    assert edl("prune", "--apply", str(plan), "--plan-out", other).returncode == 2
    assert numbers(run) == [9, 15, 20, 100]
    assert document("prune", run, "--keep", "1", "--plan-out", str(plan), "--yes")["deleted"] == 2
    assert numbers(run) == [20, 100]
    assert json.loads(plan.read_text())["schema"] == "edl-ckpt/prune-plan/1"


def answer_prompt(run: Path, answer: str) -> int:
    """Prune on a terminal, answer the question, and return the exit code."""
    pid, fd = pty.fork()
    if pid == 0:
        if answer == "n":
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the plan must come with the question
        os.execvp(PROGRAM[0], [*PROGRAM, "prune", str(run), "--keep", "1", "--no-color"])
    seen = b""
    deadline = time.monotonic() + 300
    while b"[y/N]" not in seen and time.monotonic() < deadline:
        seen += os.read(fd, 4096)
    assert b"Delete 2 versions (616 B)? [y/N]" in seen
    assert b"Nothing was deleted" not in seen
    words = seen.decode().partition("? [y/N]")[0].split()
    assert [word for word in words if word in {"delete", "keep", "Delete"}][-5:] == [
        *["delete"] * 2,
        *["keep"] * 2,
        "Delete",
    ]
    os.write(fd, answer.encode() + b"\n")
    try:
        while os.read(fd, 4096):
            pass
    except OSError:
        pass  # the terminal's other end is closed
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_question(run: Path) -> None:
    """On a terminal it asks after the plan, which begins with what goes; no is 16 and deletes nothing, yes deletes."""
    assert answer_prompt(run, "n") == 16
    assert numbers(run) == [9, 15, 20, 100]
    assert answer_prompt(run, "y") == 0
    assert numbers(run) == [20, 100]


def test_metrics(run: Path) -> None:
    """Metrics are set, shown as columns with the best marked, sorted by, and name a version."""
    document("metrics", "set", f"{run}@9", "auc=0.9", "out/loss=2")
    document("metrics", "set", f"{run}@20", "auc=nan", "acc=0.5", "--mode", "max")
    shown = document("metrics", "show", run)
    assert shown["schema"] == "edl-ckpt/metrics/1"
    assert shown["modes"] == {"acc": "max", "auc": "max"}
    assert shown["best"] == {"auc": 9, "acc": 20, "out/loss": 9}
    assert shown["versions"][2]["metrics"] == {"auc": "NaN", "acc": 0.5}
    assert "0.9*" in edl("list", run).stdout
    first = document("list", run, "--sort", "auc")["locations"][0]["versions"][0]
    assert (first["version"], first["metrics"]) == (9, {"auc": 0.9, "out/loss": 2.0})
    assert [v["version"] for v in document("list", run, "--best", "auc")["locations"][0]["versions"]] == [9]
    assert document("inspect", f"{run}@best:auc")["version"] == 9
    rows = list(csv.reader(io.StringIO(edl("metrics", "show", run, "--csv").stdout)))
    assert rows[:2] == [["version", "metric", "value"], ["9", "auc", "0.9"]]
    listed = list(csv.DictReader(io.StringIO(edl("list", run, "--csv").stdout)))
    assert listed[0]["auc"] == "0.9"
    document("metrics", "remove", f"{run}@9", "auc")
    assert edl("inspect", f"{run}@best:auc").returncode == 10
    assert edl("metrics", "remove", f"{run}@9", "auc").returncode == 10
    assert document("metrics", "mode", run, "f1", "min")["modes"]["f1"] == "min"
    for bad in (["auc"], ["auc=high"], ["=1"], [str(run)]):
        assert edl("metrics", "set", f"{run}@9", *bad).returncode == 2
    assert edl("metrics", "mode", run, "f1", "most").returncode == 2


def test_metrics_default_location(run: Path) -> None:
    """@latest without a location is the newest complete version of $EDL_CKPT_DIR."""
    done = edl("metrics", "set", "@latest", "auc=0.5", EDL_CKPT_DIR=str(run))
    assert done.returncode == 0, done.stderr
    assert document("list", run)["locations"][0]["versions"][2]["metrics"] == {"auc": 0.5}
    assert edl("note", "@latest", "good", EDL_CKPT_DIR=str(run)).returncode == 0
    assert edl("tag", "add", "@latest", "prod", EDL_CKPT_DIR=str(run)).returncode == 0
    result = document("list", run)["locations"][0]["versions"][2]
    assert (result["note"], result["tags"]) == ("good", ["prod"])


def test_metrics_import(run: Path) -> None:
    """An import lists matches and the rest, takes near steps only on request, and writes nothing in a dry run."""
    log = GOLDEN / "logs/master-head.log"
    dry = document("metrics", "import", log, run, "--dry-run")
    assert ([m["version"] for m in dry["matched"]], dry["applied"]) == ([20], False)
    assert dry["steps_without_version"] == [10]
    assert dry["versions_without_metrics"] == [9, 15, 100]
    assert not (run / ".edl-ckpt-0").exists()
    done = document("metrics", "import", log, run, "--nearest", "1")
    assert [(m["version"], m["step"]) for m in done["matched"]] == [(9, 10), (20, 20)]
    result = document("list", run)["locations"][0]["versions"]
    assert result[0]["metrics"]["mse"] == 0.012500002
    words = edl("metrics", "import", log, run).stdout
    assert "steps without a version: 10" in words
    assert edl("metrics", "import", run.parent / "none.log", run).returncode == 10


def test_tags(run: Path) -> None:
    """A tag names one version, can be moved, keeps from deletion, and is listed."""
    document("tag", "add", f"{run}@9", "prod")
    assert document("tag", "list", run)["tags"] == [{"tag": "prod", "versions": [9]}]
    assert document("inspect", f"{run}@prod")["version"] == 9
    assert document("tag", "add", "--move", f"{run}@15", "prod")["tags"] == [{"tag": "prod", "versions": [15]}]
    document("prune", run, "--keep", "1")
    assert numbers(run) == [15, 20, 100]
    assert [v["version"] for v in document("list", run, "--tag", "prod")["locations"][0]["versions"]] == [15]
    assert document("tag", "remove", f"{run}@prod", "prod")["tags"] == []
    assert edl("tag", "remove", f"{run}@15", "prod").returncode == 10
    assert edl("tag", "add", f"{run}@15", "latest").returncode == 2
    assert edl("inspect", f"{run}@prod").returncode == 10


def test_hostile_words(run: Path) -> None:
    """Notes and metric names reach a terminal with their control characters made harmless."""
    assert edl("note", f"{run}@9", "\x1b[31mred\n[bold]").returncode == 0
    for command in (["list", run], ["note", f"{run}@9", "\x1b[32m"]):
        done = edl(*command)
        assert "\x1b" not in done.stdout + done.stderr
    assert edl("metrics", "set", f"{run}@9", "a\x1bb=1").returncode == 2


def test_damaged_metadata_is_told(run: Path) -> None:
    """A damaged file is a warning of list, and its version is not pruned."""
    document("tag", "add", f"{run}@9", "prod")
    (run / ".edl-ckpt-0/meta-0/9.json").write_text("{")
    done = edl("list", run)
    assert (done.returncode, "9.json" in done.stderr) == (0, True)
    document("prune", run, "--keep", "1")
    assert numbers(run) == [9, 20, 100]


def test_locked(run: Path) -> None:
    """While another command holds the lock, one that would change something ends with 11 and says who holds it."""
    script = (
        "import sys; from edl_ckpt.core.commit.repair.recovery import location_lock\n"
        f"with location_lock({str(run)!r}, 'test'): print(1, flush=True); sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([PROGRAM[0], "-c", script], stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout
        holder.stdout.readline()
        done = edl("prune", run, "--keep", "1", "--lock-wait", "0s")
        assert (done.returncode, f"process {holder.pid}" in done.stderr) == (11, True)
        assert edl("list", run).returncode == 0
        assert edl("prune", run, "--keep", "1", "--dry-run").returncode == 0
        holder.kill()
    done = edl("prune", run, "--keep", "1")
    assert (done.returncode, "took over the stale lock of process" in done.stderr) == (0, True)


@pytest.mark.parametrize(
    "command",
    [["prune", "--keep", "1"], ["undo"], ["policy", "set", "--keep", "1"], ["policy", "clear"], ["tag", "list"]],
)
def test_wrong_places(run: Path, command: list[str]) -> None:
    """A path that is wrong is not made; a version's own directory, which one more name would invalidate, is left."""
    verb = [word for word in command if not word.startswith("-") and word != "1"]
    flags = command[len(verb) :]
    assert edl(*verb, run / "nowhere", *flags).returncode == 10
    assert not (run / "nowhere").exists()
    edl(*verb, run / "version-20", *flags)
    assert sorted(p.name for p in (run / "version-20").iterdir()) == [f"variables-{i}-of-2.ckpt" for i in (0, 1)]
    if verb == ["prune"]:
        assert edl(*verb, run / "version-20", *flags).returncode == 2
    (run / ".edl-ckpt-0").write_text("in the way")
    assert edl("tag", "add", f"{run}@20", "x").returncode == 16


def test_what_a_plan_shows(run: Path) -> None:
    """`--list` chooses which versions a plan shows as text; the counts and the JSON document stay."""
    for listed, shown in (("all", [9, 15, 20, 100]), ("deleted", [9, 15]), ("kept", [20, 100])):
        done = edl("prune", run, "--keep", "1", "--dry-run", "--list", listed).stdout
        assert [int(line.split()[0]) for line in done.splitlines()[2:-1]] == shown
        assert "2 kept" in done
        assert "2 to delete" in done
        assert done.endswith("\nNothing was deleted.\n")
    assert len(document("prune", run, "--keep", "1", "--dry-run", "--list", "kept")["plan"]) == 4
    assert edl("prune", run, "--keep", "1", "--list", "both").returncode == 2
    assert numbers(run) == [9, 15, 20, 100]


def test_fresh_versions_on_a_full_disk(tmp_path: Path) -> None:
    """Where only their age protects versions, `prune` says so once, and names what a person can do about it."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    for number in (1, 2, 3):
        step = tmp_path / f"run/step_{number}"
        step.mkdir(parents=True)
        step.joinpath("model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    done = edl("prune", "run", "--keep", "1", cwd=tmp_path)
    assert (done.returncode, len(list((tmp_path / "run").glob("step_*")))) == (0, 3)
    assert "run@3 and 2 older versions do not count as versions to keep: a job may still be writing it" in done.stderr
    assert (
        "\n3 versions changed in the last 10m, so a job may be writing them; if none is, add: --grace 0s\n"
        in done.stderr
    )
    done = edl("prune", "run", "--keep", "1", "--grace", "0s", cwd=tmp_path)
    assert [path.name for path in (tmp_path / "run").glob("step_*")] == ["step_3"]
    assert "--grace" not in done.stderr
