from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.operations.metric_series import ImportPlan, MetricSeries, match_series, parse_literal, read_series
from places import GOLDEN
from policy_cases import versions_of


def test_master_log() -> None:
    """The golden log: nested outputs become output/metric, `nan` is NaN, lines of one step join."""
    series = read_series(str(GOLDEN / "logs/master-head.log"))
    assert series.skipped == ()
    assert list(series.steps) == [10, 20]
    ten = dict(series.steps[10])
    assert math.isnan(ten.pop("nan"))
    assert ten == {"acc": 0.5, "mse": 0.012500002, "a/acc": 0.5, "b/mse": 0.012500002}
    assert series.steps[20]["b/mse"] == 0.042500004


def test_old_log_lines(tmp_path: Path) -> None:
    """`[v=N]`, written until 2020-11, and numpy's way of writing numbers are read; broken lines are told, not fatal."""
    log = tmp_path / "master.log"
    log.write_text(
        "noise\n[x] Evaluation metrics[v=7]: {'auc': 0.5, 'loss': -inf}\n"
        "Evaluation metrics[step=8]: {'auc': np.float32(0.25), 'm': array(1.5, dtype=float32)}\r\n"
        "Evaluation metrics[step=9]: {'auc': 0.\n"
        "Evaluation metrics[step=9]: __import__('os').system('touch /tmp/x')\n"
        "Evaluation metrics[v=7]: {'auc': 0.75}\n"
    )
    series = read_series(str(log))
    assert series.steps == {7: {"auc": 0.75, "loss": -math.inf}, 8: {"auc": 0.25, "m": 1.5}}
    assert [s.partition(":")[0] for s in series.skipped] == ["line 4", "line 5"]


def test_tensorboard(expected: Any) -> None:
    """The golden TensorBoard directory, read with TensorBoard's own library, holds what expected.json says."""
    pytest.importorskip("tensorboard", reason="TensorBoard's library is not installed: pip install tensorboard")
    scalars = expected["tb"]["scalars"]
    series = read_series(str(GOLDEN / "tb"))
    assert series.steps == {int(step): {name: scalars[name][step] for name in scalars} for step in scalars["accuracy"]}
    assert read_series(str(next((GOLDEN / "tb").rglob("events*")))).steps == series.steps


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "version,metric,value\n10,auc,0.5\n10,loss,nan\n20,auc,0.75\n"),
        ("b.csv", "\ufeffstep, auc, loss\n10,0.5,nan\n20,0.75,\n"),
        ("c.jsonl", '{"version": 10, "auc": 0.5, "loss": "nan"}\n\n{"step": 20, "auc": 0.75}\n'),
        (
            "d.json",
            '{"version": 10, "metric": "auc", "value": 0.5}\n{"version":10,"loss":NaN}\n{"step":"20","auc":0.75}',
        ),
    ],
)
def test_tables(tmp_path: Path, name: str, text: str) -> None:
    """CSV and JSON lines, a metric a row or a metric a column, are the same series; an empty cell is no value."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    series = read_series(str(tmp_path / name))
    assert series.skipped == ()
    assert series.steps[20] == {"auc": 0.75}
    assert series.steps[10]["auc"] == 0.5
    assert math.isnan(series.steps[10]["loss"])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.csv", "name,metric\n1,2\n", " (line 2: there is no `version` and no `step`)"),
        ("a.csv", "version,auc\nten,0.5\n-1,0.5\n", " (line 2: version must be a whole number, got 'ten')"),
        ("a.csv", "step,auc\n-1,0.5\n", " (line 2: step must be a whole number, got '-1')"),
        ("a.csv", "version,auc\n1,high\n", " (line 2: metric 'auc' must be a number, got 'high')"),
        ("a.csv", "", ""),
        ("a.jsonl", "[1, 2]\n{\n", " (line 1: this is not an object)"),
        ("a.jsonl", "\n{\n", " (line 2: this is not a JSON document)"),
        ("a.jsonl", '{"version": 1, "a": {"b": [1]}}', " (line 1: metric 'a/b' must be a number, got [1])"),
        ("a.log", "nothing here\n", ""),
        ("a.log", "Evaluation metrics[v=3]: [1, 2]\n", " (line 1: expected a dict of numbers)"),
        ("a.csv", '{"version": 1, "auc": 0.5}\n', ""),
    ],
)
def test_nothing_to_read(tmp_path: Path, name: str, text: str, reason: str) -> None:
    """A source without a single metric is an error that gives the first reason, whatever is in it."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as caught:
        read_series(str(tmp_path / name))
    assert caught.value.message == f"no metrics found{reason}"
    kind = {"a.csv": "csv", "a.jsonl": "jsonl", "a.log": "log"}[name]
    assert caught.value.hint == f"edl-ckpt read it as {kind}; choose another format with --format"


def test_name_of_no_metric(tmp_path: Path) -> None:
    """A name that is not printable is no metric's."""
    (tmp_path / "a.jsonl").write_text('{"version": 1, "a\\n": 1}')
    with pytest.raises(UsageError, match=r"no metrics found \(line 1: 'a\\n' "):
        read_series(str(tmp_path / "a.jsonl"))


def test_no_source(tmp_path: Path) -> None:
    """A missing source and an unknown format are named."""
    with pytest.raises(NotFoundError):
        read_series(str(tmp_path / "none.log"))
    with pytest.raises(UsageError, match="unknown format 'xml'; expected one of log, tensorboard, csv, jsonl"):
        read_series(str(tmp_path), "xml")


@pytest.mark.parametrize(
    "text", ["{'a': f(x=1)}", "{**{}}", "{'a': b}", "(" * 500, "{'a': [1, 2]}", "{'a': 1 + 1}", ""]
)
def test_literals_run_nothing(text: str) -> None:
    """Only numbers in dicts are read from a log; anything else is refused."""
    with pytest.raises(UsageError):
        parse_literal(text)


def matched_steps(plan: ImportPlan) -> list[tuple[int, int]]:
    return [(m.version.version, m.step) for m in plan.matches]


def test_matching() -> None:
    """A step goes to its version; near ones only when asked, the earlier of two; the plan names what did not match."""
    versions, _ = versions_of(["10 complete auc=0.5", "20 complete auc=0.5", "30 complete", "1000 complete"])
    series = MetricSeries("x", {10: {"auc": 0.5}, 19: {"auc": 0.75}, 21: {"auc": 0.25}, 28: {"auc": 0.1}})
    exact = match_series(series, "run", versions)
    assert matched_steps(exact) == [(10, 10)]
    assert exact.steps_without_version == (19, 21, 28)
    assert exact.versions_without_metrics == (20, 30, 1000)
    assert exact.matches[0].replaced == {}
    near = match_series(series, "run", versions, nearest=2)
    assert matched_steps(near) == [(10, 10), (20, 19), (30, 28)]
    assert near.steps_without_version == (21,)
    assert near.versions_without_metrics == (1000,)
    assert near.matches[1].replaced == {"auc": 0.5}
    assert json.dumps([dict(m.metrics) for m in near.matches])
