"""One verdict for a version, in every output; and the newest good version."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import torch_items
from edl_ckpt.core import save_checkpoint
from edl_ckpt.core.operations.save import Table
from program import document, edl
from waiting import settle

NAME = "model.user.weight"
LONG_AGO = 1_000_000_000


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Four steps: 1 and 2 are sound, a bit of 3 is flipped, and 4 lacks the end of a file."""
    for number in (1, 2, 3, 4):
        rows = np.random.default_rng(number).standard_normal((90, 4), np.float32)
        torch_items.write_step(tmp_path / f"run/step_{number}", [*torch_items.boxes(NAME, rows, [[30, 60], []], 3)])
    flipped, cut = (tmp_path / f"run/step_{number}/__1_0.distcp" for number in (3, 4))
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    os.truncate(cut, cut.stat().st_size // 2)
    for path in (tmp_path / "run").rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    settle()
    return tmp_path / "run"


def words(name: str, *arguments: str | Path, code: int = 0) -> str:
    """Return what a command prints on stdout, and check how it ends."""
    done = edl(name, *arguments)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_prune_right_after_verify(run: Path) -> None:
    """`prune --keep 1` after `verify --all --deep` keeps the last good step, and all that is newer."""
    assert edl("verify", run, "--all", "--deep").returncode == 3
    done = edl("prune", run, "--keep", "1", "--yes")
    assert done.returncode == 0, done.stderr
    assert "does not count as a version to keep: damaged: checksum of" in done.stderr
    assert sorted(path.name for path in run.iterdir() if path.name.startswith("step")) == ["step_2", "step_3", "step_4"]


def test_a_check_that_reads_less(run: Path) -> None:
    """After `--deep` found damage, a check that reads less finds it known, in each output, and exits with 3 too."""
    assert document("verify", f"{run}@3")["ok"] is True
    assert edl("verify", f"{run}@3", "--deep").returncode == 3
    for flags in ((), ("--quick",), ("--sample", "5%")):
        found = document("verify", f"{run}@3", *flags, "--junit", run.parent / "j.xml", code=3)
        errors = {finding["code"]: finding for finding in found["findings"] if finding["severity"] == "error"}
        known = errors.pop("known-damage")
        assert (found["ok"], found["state"]) == (False, "damaged")
        assert not errors or "--sample" in flags, "what is drawn may be what is damaged"
        assert f"damaged: checksum of {NAME}, " in known["message"]
        assert known["hint"] == f"to look again: edl-ckpt verify {run}@3 --deep"
        assert ET.parse(run.parent / "j.xml").getroot().find(".//failure") is not None
    listed = {v["version"]: v for v in document("list", run)["locations"][0]["versions"]}
    assert listed[3]["verdict"]["first"] == f"checksum of {NAME}", "a shallow check saw nothing itself"
    every = document("verify", run, "--all", code=3)["results"]
    assert [result["ok"] for result in every[:3]] == [True, True, False]
    assert "known-damage" not in str(document("verify", f"{run}@3", "--deep", code=3)["findings"])


def test_known_damage_ends_with_the_files(run: Path) -> None:
    """Other bytes in the file are other files, whose values nobody has read: the known error is not theirs."""
    assert edl("verify", f"{run}@3", "--deep").returncode == 3
    assert edl("verify", f"{run}@3").returncode == 3
    flipped = run / "step_3/__1_0.distcp"
    data = bytearray(flipped.read_bytes())
    data[len(data) // 2] ^= 1
    flipped.write_bytes(data)
    settle()
    assert edl("verify", f"{run}@3").returncode == 0
    assert edl("verify", f"{run}@3", "--deep").returncode == 0


def test_other_files_are_named_once(run: Path) -> None:
    """A file that no format reads is in many versions, and the sentence about all of them names it once."""
    for step in (1, 2):
        (run / f"step_{step}/trainer_state.json").write_text("{}")
    settle()
    assert edl("verify", run, "--all", "--deep").stdout.count("trainer_state.json") == 1


def test_prune_that_verifies_first(run: Path) -> None:
    """`prune --verified deep` reads the versions that stay, only as many as needed, and counts none with errors."""
    done = edl("prune", run, "--keep", "1", "--verified", "deep", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"verified {run}@3: 1 finding, so it does not count" in done.stderr
    assert f"verified {run}@2: without an error" in done.stderr
    assert f"verified {run}@1" not in done.stderr
    assert sorted(path.name for path in run.iterdir() if path.name.startswith("step")) == ["step_2", "step_3", "step_4"]


def test_prune_that_cannot_remember(run: Path) -> None:
    """Where nothing can be remembered, `--verified` deletes nothing."""
    done = edl("prune", run, "--keep", "1", "--verified", "deep", "--yes", XDG_CACHE_HOME="/proc/none")
    assert done.returncode == 16
    assert "cannot be remembered" in done.stderr
    assert len([path for path in run.iterdir() if path.name.startswith("step")]) == 4


def test_list_and_latest_and_wait(run: Path) -> None:
    """A damaged version is shown as such, and is neither the latest nor waited for."""
    edl("verify", run, "--all", "--deep")
    listed = {v["version"]: v for v in document("list", run)["locations"][0]["versions"]}
    assert [listed[n]["state"] for n in (2, 3, 4)] == ["complete", "damaged", "incomplete"]
    assert listed[3]["verdict"]["first"] == f"checksum of {NAME}"
    assert (listed[2]["verdict"]["level"], listed[2]["verdict"]["ok"]) == ("deep", True)
    assert "damaged: checksum of" in words("list", run)
    assert document("inspect", run)["ref"] == f"{run}@2"
    waited = edl("wait", run, "--timeout", "0", "--verified")
    assert (waited.returncode, waited.stdout) == (0, f"{run}@2\n")
    assert "is passed over" in waited.stderr
    metrics = words("list", run, "--prometheus")
    assert 'state="damaged"} 1' in metrics
    assert [line.rpartition(" ")[2] for line in metrics.splitlines() if line.startswith("edl_ckpt_latest_version")] == [
        "2"
    ]


def test_the_next_check_is_no_success(run: Path) -> None:
    """`verify LOCATION` checks the newest complete version although it is known to be damaged."""
    for _ in range(2):
        assert document("verify", run, "--deep", code=3)["ref"] == f"{run}@3"


def test_newest(run: Path) -> None:
    """`--newest` walks down to the first good version, and prints its path and the level."""
    done = edl("verify", run, "--newest", "--deep")
    assert (done.returncode, done.stdout) == (0, f"{run}/step_2: every value checked\n")
    assert f"{run}@4 is passed over: incomplete" in done.stderr
    assert f"{run}@3 is passed over: damaged: checksum of {NAME}" in done.stderr
    found = document("verify", run, "--newest")
    assert (found["path"], found["level"]) == (f"{run}/step_2", "default"), "3 is known to be damaged"
    assert [(each["ref"], each["state"]) for each in found["passed_over"]] == [
        (f"{run}@4", "incomplete"), (f"{run}@3", "damaged"),
    ]  # fmt: skip
    assert document("inspect", f"{run}@verified")["ref"] == f"{run}@2"
    assert edl("verify", f"{run}@2", "--newest").returncode == 2


def test_no_newest(run: Path) -> None:
    """Without a good version the exit code is 3; without any version it is 0, as of `verify --all`."""
    for number in (1, 2):
        os.truncate(run / f"step_{number}/__1_0.distcp", 10)
    done = edl("verify", run, "--newest", "--deep")
    assert (done.returncode, done.stdout) == (3, "")
    assert "no version is good" in done.stderr
    assert edl("inspect", f"{run}@verified").returncode == 10


def test_newest_is_not_being_written(tmp_path: Path) -> None:
    """`--newest` never names a version that `list` shows as `writing`, however sound its values are so far."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    step = tmp_path / "run/step_1"
    step.mkdir(parents=True)
    step.joinpath("model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert document("list", tmp_path / "run")["locations"][0]["versions"][0]["state"] == "writing"
    found = document("verify", tmp_path / "run", "--newest", code=3)
    assert [each["state"] for each in found["passed_over"]] == ["writing"]


def test_the_way_out_is_a_path_and_a_level(run: Path) -> None:
    """The hint after damage names a directory to resume from, never one that is known to be damaged."""
    first = document("verify", f"{run}@4", code=3)["fallback"]
    assert (first["path"], first["level"]) == (f"{run}/step_3", "quick"), "its values were not read yet"
    every = document("verify", run, "--all", "--deep", code=3)["fallback"]
    assert (every["path"], every["level"], every["command"]) == (f"{run}/step_2", "deep", "")
    text = words("verify", f"{run}@4", code=3)
    assert f"hint: resume from {run}/step_2 (every value checked)" in text
    assert "edl-ckpt copy" not in text


@pytest.mark.parametrize(
    ("number", "ok", "state", "said"),
    [(2, True, "complete", "ok"), (3, False, "damaged", "1 error"), (4, None, "incomplete", "incomplete")],
)
def test_every_output_agrees(run: Path, tmp_path: Path, number: int, ok: bool | None, state: str, said: str) -> None:
    """JSON, JUnit, the summary, Prometheus and the text say the same of a version, alone and with all others."""
    junit, summary = tmp_path / "junit.xml", tmp_path / "summary.md"
    code = 0 if ok else 3
    for words_ in ((f"{run}@{number}",), (run, "--all")):
        end = code if len(words_) == 1 else 3
        ref = f"{run}@{number}"
        summary.unlink(missing_ok=True)
        done = edl("verify", *words_, "--deep", "--json", "--junit", junit, "--summary", summary)
        assert done.returncode == end
        found = json.loads(done.stdout)
        result = next(each for each in found.get("results", [found]) if each["ref"] == ref)
        assert (result["ok"], result["state"]) == (ok, state)
        suite = next(s for s in ET.parse(junit).getroot() if s.get("name") == ref)
        kinds = {child.tag for case in suite for child in case}
        assert ("failure" in kinds) == (ok is False)
        assert (suite.get("skipped") == suite.get("tests")) == (ok is None)
        row = next(
            line for line in summary.read_text().splitlines() if f"&#64;{number} |" in line or f"@{number} |" in line
        )
        assert {True: "✅", False: "❌", None: "⏳"}[ok] in row
        gauges = words("verify", *words_, "--deep", "--prometheus", code=end)
        assert f'edl_ckpt_verify_ok{{ref="{ref}"}} {int(ok is True)}' in gauges
        assert f'edl_ckpt_verify_state{{ref="{ref}",state="{state}"}} 1' in gauges
        text = words("verify", *words_, "--deep", code=end)
        assert f"{ref}  {said}" in text


def test_a_version_that_is_being_written(run: Path) -> None:
    """Of all versions, one that is being written is neither ok nor a failure."""
    (run / "step_4/__1_0.distcp").touch()
    (run / "step_3/__1_0.distcp").unlink()
    for path in (run / "step_3").iterdir():
        path.unlink()
    (run / "step_3").rmdir()
    found = document("verify", run, "--all")
    result = next(each for each in found["results"] if each["ref"] == f"{run}@4")
    assert (found["ok"], result["ok"], result["state"]) == (True, None, "writing")
    assert f"{run}@4  writing" in words("verify", run, "--all")
    assert f'verify_ok{{ref="{run}@4"}}' not in words("verify", run, "--all", "--prometheus")


def test_like(tmp_path: Path) -> None:
    """`--like` finds a table and a variable that are missing, and another dim and dtype; the memory has none of it."""
    run, ids = tmp_path / "run", np.arange(4)
    wide, narrow = (Table(ids, np.ones((4, dim), np.float32)) for dim in (3, 2))
    whole = {"w": np.ones(3, np.float32), "b": np.ones(2, np.float32)}
    save_checkpoint(run, 1, 2, variables=whole, tables={"user": wide, "item": wide})
    save_checkpoint(run, 2, 2, variables={"w": np.ones(3, np.float64)}, tables={"user": narrow})
    save_checkpoint(run, 3, 2, variables=whole | {"new": np.ones(1, np.int64)}, tables={"user": wide, "item": wide})
    settle()
    found = document("verify", f"{run}@2", "--like", f"{run}@1", code=3)
    assert found["like"] == f"{run}@1"
    assert {(f["code"], f["subject"]) for f in found["findings"] if f["severity"] == "error"} == {
        ("like-missing-table", "item"), ("like-dim", "user"), ("like-missing-variable", "b"), ("like-dtype", "w"),
    }  # fmt: skip
    assert document("verify", f"{run}@3", "--like", f"{run}@1")["ok"] is True
    listed = {v["version"]: v["state"] for v in document("list", run)["locations"][0]["versions"]}
    assert listed[2] == "complete"
    assert edl("verify", run, "--newest", "--like", f"{run}@1").stdout.startswith(f"{run}/version_3: ")
