"""Reports for CI: JUnit, Markdown, Prometheus and annotations, each read by a program of others."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
from pathlib import Path

import junitparser
import numpy as np
import pytest
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

from checkpoints import at, save_small
from edl_ckpt.cli.render import prometheus
from edl_ckpt.cli.render import verify as render_verify
from edl_ckpt.core import Table, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import EdlCkptError
from forked import run_forked
from hostile_state import run_command
from places import GOLDEN
from program import edl

HOSTILE = 'a|b"\\<img src=x>`*c*`[d](e)\n::error::f\ud800'


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples that Prometheus's own client reads, by name and values of labels."""
    families = text_string_to_metric_families(text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def test_prometheus_of_a_listing(tmp_path: Path) -> None:
    """`list --prometheus` says of each location what it has, which version is the newest and which the best."""
    run = tmp_path / "run"
    save_small(run, 10, 20)
    edl("metrics", "set", f"{run}@10", "auc=0.75", "odd=NaN")
    (run / "version-20/variables-1-of-2.ckpt").unlink()
    done = edl("list", run, tmp_path / "absent", "--prometheus", "--grace", "0s")
    assert done.returncode == 10
    found, place = samples(done.stdout), str(run)
    assert found["edl_ckpt_versions", place, "complete"] == 1
    assert found["edl_ckpt_versions", place, "incomplete"] == 1
    assert found["edl_ckpt_latest_version", place] == 10
    assert found["edl_ckpt_latest_metric", place, "auc"] == found["edl_ckpt_best_metric", place, "auc"] == 0.75
    assert np.isnan(found["edl_ckpt_latest_metric", place, "odd"])
    assert found["edl_ckpt_location_readable", place] == 1
    assert found["edl_ckpt_location_readable", str(tmp_path / "absent")] == 0
    size = sum(p.stat().st_size for p in run.glob("version-*/*"))
    assert found["edl_ckpt_size_bytes", place] == size


def test_prometheus_of_verify(tmp_path: Path) -> None:
    """`verify --prometheus` has the result of each version, its findings by code, and the time of each check."""
    run = shutil.copytree(GOLDEN / "multi", tmp_path / "multi")
    for path in run.rglob("*"):
        os.utime(path, (1, 1))  # in a new clone, the shard that is missing may be about to be written
    done = edl("verify", run, "--all", "--prometheus")
    assert done.returncode == 3
    found = samples(done.stdout)
    ok = {key[1].rpartition("@")[2]: value for key, value in found.items() if key[0] == "edl_ckpt_verify_ok"}
    assert ok == {"9": 1, "20": 1, "100": 0}
    ref = f"{run}@100"
    assert found["edl_ckpt_verify_findings", ref, "error", "missing-shard"] == 1
    assert found["edl_ckpt_verify_check_seconds", ref, "ids"] > 0
    absent = edl("verify", f"{run}@7", "--prometheus")
    assert (absent.returncode, absent.stdout) == (10, "")


def test_labels_are_escaped() -> None:
    """A name with quotation marks, backslashes and line ends is one label; a failure is a version that is not ok."""
    text = prometheus.of_results([], [(HOSTILE, EdlCkptError("no"))])
    names = [key[1] for key in samples(text)]
    assert len(names) == 2
    assert all(name.startswith('a|b"\\<img') and name.endswith("\\ud800") for name in names)


@pytest.mark.parametrize("command", ["list", "verify"])
def test_one_format(command: str) -> None:
    """Two formats at once are refused."""
    assert edl(command, GOLDEN / "multi", "--prometheus", "--json").returncode == 2


def test_junit(tmp_path: Path) -> None:
    """`--junit` has a suite for each version and a case for each check, with its time; what was left out is skipped."""
    report = tmp_path / "report.xml"
    assert edl("verify", GOLDEN / "multi", "--all", "--strict", "--junit", report).returncode == 3
    suites = list(junitparser.JUnitXml.fromfile(str(report)))
    assert [(s.tests, s.failures, s.errors, s.skipped) for s in suites] == [(5, 0, 0, 2), (5, 0, 0, 2), (5, 0, 0, 5)]
    for suite in suites:
        counted = [len([c for c in suite if any(isinstance(r, kind) for r in c.result)]) for kind in KINDS]
        assert counted == [suite.failures, suite.errors, suite.skipped]
        assert suite.time == pytest.approx(sum(case.time for case in suite), abs=0.004)
    cases = {case.name: case for case in suites[2]}
    assert list(cases) == ["names", "headers", "ids", "values", "seal"]
    assert cases["names"].result[0].message == "incomplete: shard 1 of 2 (numbered 0 to 1) is missing"


KINDS = (junitparser.Failure, junitparser.Error, junitparser.Skipped)


def test_every_error_fails_its_check(tmp_path: Path) -> None:
    """Each finding of every bad golden version stands in the case of one check; a seal is a check of its own."""
    for place in sorted((GOLDEN / "bad").iterdir()):
        for version in sorted(p for p in place.iterdir() if p.is_dir()) or [place]:
            result = verify_version(str(version), level="deep")
            found = {f.check for f in result.findings if f.severity == "error"}
            assert found <= {check.name for check in result.checks}, place
            suite = next(iter(junitparser.JUnitXml.fromstring(render_verify.junit([result]).encode())))
            failed = {c.name for c in suite if any(isinstance(r, junitparser.Failure) for r in c.result)}
            assert failed == (found if result.is_whole else set()), place
    run = tmp_path / "run"
    save_small(run, 10)
    assert edl("verify", f"{run}@10", "--seal").returncode == 0
    shard = run / "version-10/variables-0-of-2.ckpt"
    data = bytearray(shard.read_bytes())
    data[-3] ^= 1
    shard.write_bytes(data)
    assert "seal" in {f.check for f in verify_version(f"{run}@10", level="deep").findings}


def test_summary(tmp_path: Path) -> None:
    """`--summary` appends a page in Markdown, in which no name of a checkpoint is markup."""
    page = tmp_path / "page.md"
    page.write_text("before\n\n")
    rows = Table(np.array([1, 1 << 40]), np.full((2, 2), np.nan, np.float32))
    name = HOSTILE.replace("\ud800", "").replace("\n", "")
    save_checkpoint(tmp_path / "run", 5, 1, variables={}, tables={name: rows})
    assert edl("verify", f"{tmp_path / 'run'}@5", "--deep", "--summary", page).returncode in {0, 3}
    html = MarkdownIt("commonmark").enable("table").render(page.read_text(encoding="utf-8"))
    assert "before" in html
    tags = set(re.findall(r"</?(\w+)", html))
    assert tags <= {"p", "h3", "h4", "table", "thead", "tbody", "tr", "th", "td", "code"}
    cells = re.findall(r"<td>(.*?)</td>", html)
    assert len(cells) % 5 == 0
    assert any("&lt;img src=x&gt;" in cell for cell in cells)


def test_annotations() -> None:
    """A runner of GitHub gets a line for each finding and error on stderr, one line each; stdout stays data."""
    done = edl("verify", GOLDEN / "multi@100", "--json", "--quiet", GITHUB_ACTIONS="true")
    assert json.loads(done.stdout)["ok"] is None
    lines = [line for line in done.stderr.splitlines() if line.startswith("::")]
    assert len(lines) == 1
    assert lines[0].startswith("::error title=missing-shard::")
    done = edl("verify", GOLDEN / "multi@77", "--json", GITHUB_ACTIONS="true")
    first, last = done.stderr.splitlines()
    assert first.startswith("::error title=edl-ckpt::")
    assert json.loads(last)["code"] == done.returncode == 10
    assert "::" not in edl("verify", GOLDEN / "multi@77", GITHUB_ACTIONS="").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("verify", "RUN@10", "--junit", "FILE"),
        ("verify", "RUN@10", "--summary", "FILE"),
        ("verify", "RUN", "--all", "--junit", "FILE", "--json"),
        ("prune", "RUN", "--keep", "1", "--dry-run", "--plan-out", "FILE"),
    ],
)
def test_a_full_disk(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A report that has no room ends with 14, and names its file."""
    run, full = tmp_path / "run", tmp_path / "full"
    save_small(run, 10, 20)
    names = [word.replace("RUN", str(run)).replace("FILE", str(full)) for word in words]

    def act() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
        code, _, err = run_command(tmp_path, tuple(names))
        assert (code, str(full) in err) == (14, True), err

    assert run_forked(act) == 0
    assert verify_version(at(run, 10), level="deep").ok
