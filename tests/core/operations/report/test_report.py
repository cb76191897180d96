"""The data of a report: what verify, prune, diff and stats say, from bounded reads."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import drop_seal, save_small
from edl_ckpt.core import (
    Best,
    Latest,
    LocationReport,
    Policy,
    ReportLimits,
    Within,
    add_tag,
    diff_versions,
    list_versions,
    open_checkpoint,
    plan_prune,
    report_location,
    save_checkpoint,
    set_metrics,
    store_policy,
    tensor_stats,
    verify_version,
)
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.storage.local import LocalReader
from places import GOLDEN

SMALL = ReportLimits(versions=6, kept=3, opened=4, compared=3, tensors=2, rows=50)
PLACES = sorted({p.parents[1] for p in GOLDEN.rglob("variables-*")} | {p.parent for p in GOLDEN.rglob("model_v*")})


def save_trained(location: Path, *versions: int, ps_num: int = 2) -> None:
    """Save versions whose tables grow and whose values move by a step each time."""
    for k, version in enumerate(versions):
        ids = np.arange(10 * k, 400 + 30 * k)
        rows = np.repeat(np.sin(ids)[:, None], 3, axis=1).astype(np.float32) + np.float32(0.01 * k)
        empty = Table(np.empty(0, np.int64), np.empty((0, 3), np.float32))
        save_checkpoint(
            str(location), version, ps_num + k % 2, layout="elasticdl",
            variables={"w": np.arange(12.0).reshape(3, 4) * (k + 1), "b": np.zeros(3)},
            tables={"users": Table(ids, rows), "empty": empty},
        )  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location of three versions."""
    run = tmp_path_factory.mktemp("trained") / "run"
    save_trained(run, 10, 20, 30)
    set_metrics(f"{run}@20", {"auc": 0.7, "loss": float("nan")})
    return run


@pytest.fixture(scope="module")
def report(trained: Path) -> LocationReport:
    """Return a report whose samples are everything."""
    return report_location(trained)


def test_drift_is_what_diff_says(trained: Path, report: LocationReport) -> None:
    """Where a sample is everything, each measure of the drift is that of `diff_versions`."""
    for a, b in ((10, 20), (20, 30)):
        found = {(d.kind, d.name): d for d in report.drift if d.b.endswith(f"@{b}")}
        exact = diff_versions(f"{trained}@{a}", f"{trained}@{b}")
        users, table = found["table", "users"], exact.tables[1]
        assert (users.added, users.removed, users.changed) == (table.added, table.removed, table.changed)
        assert users.sampled == table.added + table.removed + table.changed + table.unchanged
        assert users.relative == pytest.approx(table.relative)
        assert users.max_abs == table.max_abs
        for dense in exact.variables:
            drift = found["variable", dense.name]
            measures = (dense.max_abs, dense.relative, dense.cosine)
            assert (drift.max_abs, drift.relative, drift.cosine) == measures
    assert {d.name for d in report.drift} == {"users", "w", "b"}


def test_values_are_what_stats_say(trained: Path, report: LocationReport) -> None:
    """Where a sample is everything, statistics and histogram are those of `tensor_stats`."""
    with open_checkpoint(f"{trained}@30") as checkpoint:
        exact = {stats.name: stats for stats in tensor_stats(checkpoint)}
    assert {tensor.stats.name: tensor.stats for tensor in report.tensors} == {
        name: stats for name, stats in exact.items() if name != "empty"
    }
    assert all(tensor.stats.elements == tensor.of_elements for tensor in report.tensors)


def test_a_sample_is_close(tmp_path: Path) -> None:
    """A sample of a part gives nearly the measures of the whole, the same by the same seed, from bounded reads."""
    rng = np.random.default_rng(0)
    for k in (0, 1):
        ids = np.arange(2000 * k, 40_000)
        rows = (np.sin(ids)[:, None] + rng.normal(0, 0.1, (len(ids), 8))).astype(np.float32)
        save_checkpoint(str(tmp_path / "run"), k, 3, variables={}, tables={"t": Table(ids, rows)})
    limits = ReportLimits(rows=2000, sample_bytes=100_000)
    found, again, other = (report_location(tmp_path / "run", limits=limits, seed=seed) for seed in (0, 0, 1))
    (drift,), exact = found.drift, diff_versions(f"{tmp_path}/run@0", f"{tmp_path}/run@1").tables[0]
    assert drift.relative == pytest.approx(exact.relative, rel=0.1)
    assert drift.removed / drift.sampled == pytest.approx(2000 / 40_000, rel=0.3)
    assert drift.added == 0
    (tensor,) = found.tensors
    assert tensor.stats.elements < tensor.of_elements == 38_000 * 8
    assert tensor.stats.std == pytest.approx(np.sqrt(0.5 + 0.01), rel=0.05)
    assert (again.drift, again.tensors) == (found.drift, found.tensors)
    assert other.tensors != found.tensors
    little = report_location(tmp_path / "run", limits=ReportLimits(rows=20, sample_bytes=10_000))
    assert little.bytes_read < little.size_bytes / 4
    none = ReportLimits(versions=0, opened=0, compared=0, tensors=0, rows=1, findings=0, names=0, metrics=0, kept=0)
    assert report_location(tmp_path / "run", limits=none).versions == ()


def test_retention_is_what_prune_plans(trained: Path, tmp_path: Path) -> None:
    """Rules that are given come before the stored policy, and each says of every version what prune would."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert report_location(run).retention is None
    store_policy(run, Policy((Best(1, "auc"),)))
    for policy in (None, Policy((Latest(2),)), Policy((Within(1e9),))):
        plan, found = plan_prune([run], policy or Policy()), report_location(run, policy).retention
        assert found is not None
        assert found.stored is (policy is None)
        assert [found.entries[e.path].reasons for e in plan.entries] == [e.reasons for e in plan.entries]
        assert (found.deletions, found.deleted_bytes) == (len(plan.deletions), plan.deleted_bytes)
    with pytest.raises(UsageError, match="is higher or lower better"):
        report_location(run, Policy((Best(1, "odd"),)))
    store_policy(run, Policy((Best(1, "odd"),)))
    spoiled = report_location(run)
    assert spoiled.retention is None
    assert any("odd" in problem for problem in spoiled.problems)


@pytest.mark.parametrize("place", PLACES, ids=lambda place: str(place.relative_to(GOLDEN)))
def test_any_location(place: Path) -> None:
    """Whatever is there, a report is made, and its findings are those of `verify --quick`."""
    found = report_location(place)
    versions = list_versions(place).versions
    assert found.versions == versions
    for opened in found.opened:
        if not opened.fault:
            assert set(opened.findings) <= set(verify_version(opened.version, level="quick").findings)
    assert found.newest is None or any(opened.ok for opened in found.opened)


def test_nothing_there(tmp_path: Path) -> None:
    """An empty directory is an empty report, and no directory an error."""
    (tmp_path / "run").mkdir()
    found = report_location(tmp_path / "run")
    assert (found.total_versions, found.versions, found.newest, found.tensors, found.drift) == (0, (), None, (), ())
    with pytest.raises(NotFoundError):
        report_location(tmp_path / "absent")


def test_damage_ends_nothing(trained: Path, tmp_path: Path) -> None:
    """A version cut short is a finding, a value that cannot be read is named, and all else is reported."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    for number in (10, 20, 30):
        drop_seal(run, number)
    shard = run / "version-30/variables-0-of-2.ckpt"
    shard.write_bytes(shard.read_bytes()[:100])
    found = report_location(run)
    assert found.newest is not None
    assert found.newest.version == 20
    assert {ref for ref, finding in found.findings} == {f"{run}@30"}
    assert {d.b for d in found.drift} == {f"{run}@20"}
    save_small(tmp_path / "ids", 1, 2, sealed=False)
    first = tmp_path / "ids/version-1/variables-0-of-2.ckpt"
    first.write_bytes(first.read_bytes().replace(bytes(range(0, 60, 2)), b"\xff" * 30))
    spoiled = report_location(tmp_path / "ids")
    assert spoiled.drift == ()
    assert any("@1 is not compared" in note for note in spoiled.left_out)
    assert (found.unread, spoiled.unread) == (False, True)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many versions the newest are shown, and older ones that are kept; few are opened; the rest is named."""
    run = tmp_path / "run"
    save_small(run, *range(10, 210, 10), sealed=False)
    add_tag(f"{run}@30", "old")
    set_metrics(f"{run}@50", {"auc": 0.9})
    opened: set[str] = set()
    begin = LocalReader.__init__

    def record(self: LocalReader, path: str, *rest: Any) -> None:
        opened.add(path)
        begin(self, path, *rest)

    monkeypatch.setattr(LocalReader, "__init__", record)
    set_metrics(f"{run}@70", {"loss": 0.1, "odd": 1.0})
    found = report_location(run, Policy((Best(1, "auc"),)), limits=SMALL)
    assert {name: version.version for name, version in found.best.items()} == {"auc": 50, "loss": 70}
    assert [v.version for v in found.versions] == [30, 50, 70, 150, 160, 170, 180, 190, 200]
    assert (found.total_versions, len(found.opened)) == (20, 4)
    assert len({path.rpartition("/")[0] for path in opened}) <= 5
    assert any("11 older versions" in note for note in found.left_out)
    assert any("headers of 5 versions" in note for note in found.left_out)
    assert len(found.drift) == 2
    assert not report_location(run, limits=SMALL, values=False).tensors


def test_many_tensors_and_findings(tmp_path: Path) -> None:
    """Of many tensors the largest are read, and of many findings those of the newest versions are there."""
    run = tmp_path / "run"
    variables = {f"v{k}": np.zeros(k + 1, np.float32) for k in range(9)}
    save_checkpoint(str(run), 1, 1, variables=variables, tables={}, layout="elasticdl")
    for name in "abc":
        (run / "version-1" / name).touch()
    save_checkpoint(str(run), 2, 1, variables=variables, tables={}, layout="elasticdl")
    found = report_location(run, limits=replace(SMALL, findings=2, names=4))
    assert [t.stats.name for t in found.tensors] == ["v8", "v7"]
    assert found.newest is not None
    assert [v.name for v in found.newest.variables] == ["v8", "v7", "v6", "v5"]
    assert len(found.findings) == 2
    notes = "\n".join(found.left_out)
    assert "finding" in notes
    assert "values of 7 variables" in notes
    assert "5 variables: the 4 largest are listed" in notes


def test_repr(report: LocationReport) -> None:
    """A report says in a line what it is about."""
    assert repr(report).startswith("<LocationReport /")
    assert "3 versions" in repr(report)
