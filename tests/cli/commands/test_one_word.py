"""One word for a version in every output: of each system, in every state."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from edl_ckpt.cli.browse.version import recorded
from edl_ckpt.core import list_versions
from program import document, edl
from retention_oracle import LINKED, content_of
from waiting import settle

LONG_AGO = 1_000_000_000
WITHOUT_END = ("safetensors", "tfra", "dynamicemb", "tensorflow")
LACKED = {**LINKED, "dynamicemb": "dynamicemb/model.ebc/user_emb_values.rank_1.world_size_2"}
OK: Mapping[str, bool | None] = {
    "complete": True, "damaged": False, "writing": None, "incomplete": None, "suspect": True, "mixed": False,
}  # fmt: skip


def step(run: Path, system: str, number: int, *, is_damaged: bool = False, lacks: bool = False) -> Path:
    """Make a version; one that `lacks` something has one file less."""
    place = run / (f"version-{number}" if system == "elasticdl" else f"step_{number}")
    files = dict(content_of(system, is_damaged=is_damaged))
    if lacks:
        del files[LACKED.get(system) or max(files)]
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(bytes([8, number]) + data[2:] if system == "elasticdl" else data)
    return place


def zoo(run: Path, system: str) -> dict[int, str]:
    """Make a location with a version in each state, and return the words for them after a verification of all."""
    old = [step(run, system, 10), step(run, system, 20, is_damaged=True)]
    words = {10: "complete", 20: "damaged"}
    if system != "safetensors":  # a file by itself lacks nothing, or is not there
        old.append(step(run, system, 30, lacks=True))
        words[30] = "incomplete"
    if system == "dynamicemb":
        for place in (*old, step(run, system, 35)):
            (place / "rng_state_0.pth").write_bytes(b"x")
        (run / "step_35/rng_state_0.pth").unlink()
        old.append(run / "step_35")
        words[35] = "suspect"
    if system == "elasticdl":
        mixed = step(run, system, 37)
        shutil.copy(mixed / "variables-1-of-2.ckpt", mixed / "variables-2-of-3.ckpt")
        old.append(mixed)
        words[37] = "mixed"
    for place in old:
        for path in (place, *place.rglob("*")):
            os.utime(path, (LONG_AGO, LONG_AGO))
    if system != "safetensors":
        step(run, system, 40, lacks=True)
        words[40] = "writing"
    young = step(run, system, 50)
    if system == "dynamicemb":
        (young / "rng_state_0.pth").write_bytes(b"x")
    words[50] = "writing" if system in WITHOUT_END else "complete"
    settle()
    return words


@pytest.mark.parametrize("system", [*WITHOUT_END, "dcp", "elasticdl"])
def test_every_output_has_one_word(system: str, tmp_path: Path) -> None:
    """Text, JSON, JUnit, summary and Prometheus of `verify`, and `list`, the report and the browser say the same."""
    run, junit, summary = tmp_path / "run", tmp_path / "junit.xml", tmp_path / "summary.md"
    words = zoo(run, system)
    done = edl("verify", run, "--all", "--deep", "--json", "--junit", junit, "--summary", summary)
    assert done.returncode == 3, done.stderr
    results = {int(each["ref"].rpartition("@")[2]): each for each in json.loads(done.stdout)["results"]}
    assert {number: each["state"] for number, each in results.items()} == words
    assert {number: each["ok"] for number, each in results.items()} == {n: OK[word] for n, word in words.items()}
    suites = {int((suite.get("name") or "").rpartition("@")[2]): suite for suite in ET.parse(junit).getroot()}
    text = edl("verify", run, "--all", "--deep").stdout
    gauges = edl("verify", run, "--all", "--deep", "--prometheus").stdout
    rows = summary.read_text().splitlines()
    for number, word in words.items():
        ok, ref = OK[word], f"{run}@{number}"
        assert (suites[number].get("skipped") == suites[number].get("tests")) == (ok is None), (number, word)
        assert (suites[number].get("failures") != "0") == (ok is False), (number, word)
        assert f'verify_state{{ref="{ref}",state="{word}"}} 1' in gauges
        assert (f'verify_ok{{ref="{ref}"}} {int(ok is True)}' in gauges) == (word != "writing"), (number, word)
        said = {"complete": "ok", "damaged": "1 error", "mixed": "1 error"}.get(word, word)
        assert f"{ref}  {said}" in text, (number, word)
        sign = {"complete": "✅", "damaged": "❌", "mixed": "❌", "suspect": "❔"}.get(word, "⏳")
        assert any(f"{number} | {sign} {said}" in row for row in rows), (number, word, rows)
    shown = {version.version: version for version in list_versions(run).versions}
    listed = document("list", run)["locations"][0]["versions"]
    assert {each["version"]: each["state"] for each in listed} == words
    reported = document("report", run)
    assert {each["version"]: each["state"] for each in reported["versions"]} == words
    assert reported["complete_versions"] == [*words.values()].count("complete")
    table = [line.split() for line in edl("list", run).stdout.splitlines()]
    for number, word in words.items():
        assert any(line[0] == str(number) and word in line for line in table if line), (number, word)
        if word != "damaged":  # a library that names no cache does not know it
            assert ("state", word) in [*recorded(shown[number], None, None)]


@pytest.mark.parametrize("system", WITHOUT_END)
def test_a_version_that_was_saved_just_now(system: str, tmp_path: Path) -> None:
    """`verify` says that all reads well and exits with 4; once the save has ended, `--grace` and a seal say so."""
    run = tmp_path / "run"
    place = step(run, system, 5)
    done = edl("verify", f"{run}@5")
    assert done.returncode == 4
    assert "  writing\n  changed " in done.stdout
    assert "nothing says that its save has ended; all that is there reads well" in done.stdout
    assert f"edl-ckpt verify {run}@5 --grace 0s" in done.stderr
    assert edl("verify", place, "--deep").returncode == 4
    found = document("verify", f"{run}@5", code=4)
    assert (found["ok"], found["state"], len(found["suspect"])) == (None, "writing", 1)
    assert document("verify", f"{run}@5", "--grace", "0s")["ok"] is True
    assert document("verify", place, "--grace", "0s")["state"] == "complete"
    os.utime(place, (time.time() - 3600,) * 2)
    for path in place.rglob("*"):
        os.utime(path, (time.time() - 3600,) * 2)
    assert document("verify", f"{run}@5")["ok"] is True


@pytest.mark.parametrize("system", WITHOUT_END)
def test_a_seal_says_that_a_save_has_ended(system: str, tmp_path: Path) -> None:
    """`verify --seal` of a version that was saved just now makes it complete at once."""
    step(tmp_path / "run", system, 5)
    assert document("verify", f"{tmp_path}/run@5", "--seal")["state"] == "complete"
    assert document("verify", f"{tmp_path}/run@5", "--deep")["ok"] is True


@pytest.mark.parametrize("system", ["dcp", "elasticdl"])
def test_a_system_with_an_end_is_whole_at_once(system: str, tmp_path: Path) -> None:
    """What says itself that its save has ended is complete at once."""
    step(tmp_path / "run", system, 5)
    assert document("verify", f"{tmp_path}/run@5")["state"] == "complete"


def test_the_file_checkpoint_is_an_end(tmp_path: Path) -> None:
    """TensorFlow writes the file `checkpoint` last."""
    place = step(tmp_path / "run", "tensorflow", 5)
    (place / "checkpoint").write_text('model_checkpoint_path: "model"\n')
    assert document("verify", f"{tmp_path}/run@5")["ok"] is True
