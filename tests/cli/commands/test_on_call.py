"""`verify` for somebody on call: which rows, how much of a file is there, and what to go on with."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from builders import write_unchecked
from edl_ckpt.core import save_checkpoint
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.operations.verify import ids as reread
from program import document, edl, inside
from waiting import settle

SHARD = "version_{}/variables-1-of-3.chkpt"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with three sealed versions; the newest has NaN in 7 rows, and an infinite value in one."""
    rows = np.random.default_rng(0).normal(size=(1000, 4)).astype(np.float32)
    for number in (100, 200, 300):
        if number == 300:
            rows[5:12, 1], rows[50, 2] = np.nan, np.inf
        table = Table(np.arange(1000, dtype=np.int64), rows)
        save_checkpoint(
            tmp_path / "run", number, 3, variables={"w": np.arange(9.0)}, tables={"user": table}, layout="design"
        )
    return tmp_path / "run"


def test_rows_with_odd_values_are_named(run: Path, tmp_path: Path) -> None:
    """Three ids and a count are in the document; --ids has all of them, in both formats, and nothing else changes."""
    found = document("verify", f"{run}@300", "--deep", "--ids", tmp_path / "ids.csv", code=3)["findings"]
    assert [(f["code"], f["shard"], f["ids"], f["count"]) for f in found] == [
        ("nan", 0, [6, 9], 2),
        ("nan", 1, [7, 10], 2),
        ("inf", 2, [50], 1),
        ("nan", 2, [5, 8, 11], 3),
    ]
    assert found[0]["message"].endswith("are NaN; first ids: 6, 9")
    with (tmp_path / "ids.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["table"], int(row["id"]), int(row["shard"]), row["finding"]) for row in rows] == [
        *(("user", i, i % 3, "nan") for i in (6, 9, 7, 10)),
        ("user", 50, 2, "inf"),
        *(("user", i, 2, "nan") for i in (5, 8, 11)),
    ]
    edl("verify", run, "--all", "--deep", "--ids", tmp_path / "ids.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "ids.jsonl").read_text().splitlines()]
    assert [{**line, "id": str(line["id"]), "shard": str(line["shard"])} for line in lines] == rows
    sampled = document("verify", f"{run}@300", "--sample", "100%", code=3)["findings"]
    assert [f["code"] for f in sampled] == ["known-damage"]  # the seal was made of these values


def test_repeated_and_misplaced_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All ids that repeat, that are in the wrong shard, or that are in two, go to the file, however they are sorted."""
    run = tmp_path / "run"
    (run / "version-5").mkdir(parents=True)
    repeated = [*range(0, 40, 2), 8, 10, 8]
    for number, ids in enumerate((repeated, [1, 4, 3, 6, 6, 44, 8, 5])):
        table = Table(np.array(ids), np.zeros((len(ids), 2), "f4"))
        (shard,) = write_unchecked(tmp_path / f"{number}", 5, 1, {'a, "b"': table}).iterdir()
        shard.rename(run / "version-5" / f"variables-{number}-of-2.ckpt")
    for limit in (1 << 20, 16):
        monkeypatch.setattr(reread, "SORTED_AT_ONCE", limit)
        inside(capsys, "verify", run, "--ids", tmp_path / "ids", code=3)
        with (tmp_path / "ids").open() as file:
            rows = [(r["finding"], r["shard"], int(r["id"])) for r in csv.DictReader(file) if r["table"] == 'a, "b"']
        assert sorted(rows) == sorted([
            *(("duplicate-id", "0", i) for i in (8, 8, 10)),
            ("duplicate-id", "1", 6),
            *(("misplaced-row", "1", i) for i in (4, 6, 6, 44, 8)),
            *(("duplicate-id", "", i) for i in (4, 6, 8)),
        ])  # fmt: skip


def test_a_file_that_is_cut(run: Path) -> None:
    """The finding says how much is there: of the size in the seal, or without one of at least what a field needs."""
    shard = run / SHARD.format(200)
    size = shard.stat().st_size
    os.truncate(shard, 4000)
    found = document("verify", f"{run}@200", "--quick", code=3)
    assert found["findings"][0]["message"] == f"shard 1 ends after 4,000 of {size:,} bytes"
    assert all("--seal" not in finding["hint"] for finding in found["findings"])  # nothing to seal again
    (run / ".edl-ckpt-0/meta-0/200.seal.json").unlink()
    (finding,) = document("verify", f"{run}@200", "--quick", code=3)["findings"]
    assert (finding["code"], finding["shard"]) == ("truncated", 1)
    assert finding["message"].startswith("shard 1 ends after 4,000 of at least ")
    assert "ends after 4,000 of at least" in edl("inspect", f"{run}@200").stderr


def test_the_version_to_go_on_with(run: Path) -> None:
    """The hint names the newest other version that is good, what is known of it, and moves a tag of the bad one."""
    settle()  # what is found of files that were written just now is not remembered
    assert document("verify", f"{run}@200")["fallback"] is None
    bad = document("verify", run, "--deep", code=3)
    assert bad["fallback"] == {
        "ref": f"{run}@200",
        "path": f"{run}/version_200",
        "level": "default",
        "why": "headers and ids checked, not values",
        "command": f"edl-ckpt verify {run}@200 --deep",
    }
    edl("tag", "add", f"{run}@300", "serving")
    (run / ".edl-ckpt-0/meta-0/200.seal.json").unlink()
    os.truncate(run / SHARD.format(200), 4000)  # no listing shows that, but a look at the headers
    done = edl("verify", run, "--deep")
    assert f"hint: resume from {run}/version_100 (headers checked only)\n" in done.stdout
    assert f"hint: to move the tag there: edl-ckpt tag add {run}@100 serving\n" in done.stdout
    every = document("verify", run, "--all", code=3)
    assert every["fallback"]["ref"] == f"{run}@100", "300 is known to be damaged"
    shutil.rmtree(run / "version_100")
    assert document("verify", run, "--deep", code=3)["fallback"] is None


def test_newer_versions_that_are_not_whole(run: Path) -> None:
    """A newer version without all shards is a warning and in the document; the exit code is that of the version."""
    (run / SHARD.format(300)).unlink()
    for ref, newer in ((run, [{"ref": f"{run}@300", "state": "writing"}]), (f"{run}@200", [])):
        assert document("verify", ref)["newer"] == newer
        done = edl("verify", ref)
        assert done.returncode == 0
        assert ("a newer version is not whole" in done.stderr) == bool(newer)
    assert edl("verify", run, "-q").stderr == ""


def test_a_version_that_is_being_written(run: Path) -> None:
    """With --all a job at work is a warning, unless the version has a seal, or is old, or was named."""
    (run / SHARD.format(300)).unlink()
    assert edl("verify", run, "--all").returncode == 3  # a sealed version is not being written
    (run / ".edl-ckpt-0/meta-0/300.seal.json").unlink()
    every = document("verify", run, "--all")
    assert every["ok"]
    assert [f["severity"] for f in every["results"][-1]["findings"]] == ["warning"]
    assert edl("verify", run, "--all", "--strict").returncode == 3
    assert edl("verify", f"{run}@300").returncode == 3
    for path in (run / "version_300", *(run / "version_300").iterdir()):
        os.utime(path, (1e9, 1e9))
    assert edl("verify", run, "--all").returncode == 3
