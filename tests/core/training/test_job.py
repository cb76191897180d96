"""A job of real processes from the first step to a restore: servers, a watcher, an evaluator and a pruner together."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import elasticdl_rules
import training_job
from edl_ckpt.core import latest, list_versions, partition, recover, restore, verify_version
from training_job import KEPT, SERVERS, Report, model, quality


@pytest.mark.parametrize(
    ("seed", "steps"), [(1, 25), *(pytest.param(seed, 300, marks=pytest.mark.hours) for seed in range(2, 12))]
)
def test_a_job(tmp_path: Path, seed: int, steps: int) -> None:
    """Eight servers save at their own pace, one slow, one killed again and again; nobody coordinates them.

    The evaluator is given every version at most once, and finds in each what the model had. Whatever happens, a scan of
    ElasticDL finds only versions that are whole. At the end the newest version and the best one are there and
    correct, nothing else is left of the job, and a restore by five servers has the model, row for row.
    """
    command = [sys.executable, training_job.__file__, str(tmp_path), f"--seed={seed}", f"--steps={steps}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600 + 2 * steps, check=False)
    assert done.returncode == 0, done.stderr
    report, run = Report(**json.loads(done.stdout)), tmp_path / "run"
    assert report.kills
    assert report.scans
    assert report.prunes
    assert Counter(report.evaluated).most_common(1)[0][1] == 1
    assert report.evaluated[-1] == steps

    completed = [int(ref.rpartition("@")[2]) for event, ref in report.events if event == "complete"]
    assert set(report.evaluated[-KEPT:]) <= set(completed)
    assert {event for event, _ in report.events} >= {"new-version", "shard-arrived", "complete", "deleted"}
    assert not [event for event in report.events if event[0] == "corrupt"]

    versions = list_versions(run).versions
    assert versions[-1].version == steps == latest(run).version
    assert elasticdl_rules.latest_valid(run) == f"version-{steps}"
    recover(run)  # a server that was killed just after it had sealed the last version left its notes to the next save
    unsealed = [version.version for version in versions if not version.fingerprint]  # replayed by the killed server
    left = {path for path in elasticdl_rules.leftovers(run) if path.count("/") > 1}
    assert {path.rpartition("/")[0] for path in left} <= {f"shards-0/{version}" for version in unsealed}
    best = max(report.recorded, key=lambda version: (quality(version), version))
    assert {version.version for version in versions} >= {best, *report.evaluated[-KEPT:]}
    for version in versions:
        checked = verify_version(version, level="deep")
        assert (checked.ok, checked.findings) == (True, ())
        assert version.ps_num == SERVERS

    dense, tables = model(steps)
    for ps_id, expected in enumerate(partition(dense, tables, 5)):
        part = restore(f"{run}@{steps}", ps_id, 5)
        assert {name: value.tobytes() for name, value in part.variables.items()} == {
            name: np.asarray(value).tobytes() for name, value in expected.dense.items()
        }
        for name, table in expected.tables.items():
            rows, order = part.tables[name], np.argsort(part.tables[name].ids)
            mine = np.argsort(np.asarray(table.ids))  # type: ignore[union-attr]
            assert np.array_equal(rows.ids[order], np.asarray(table.ids)[mine])  # type: ignore[union-attr]
            assert np.array_equal(rows.vectors[order], np.asarray(table.vectors)[mine])  # type: ignore[union-attr]
