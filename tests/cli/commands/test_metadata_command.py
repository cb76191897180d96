"""`metadata set`, `show` and `remove`: values of any kind that users record with a version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import elasticdl_rules
from checkpoints import at, save_small
from edl_ckpt.core import execute_copy, plan_copy, remove_metadata, reshard_version, set_metadata
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from program import document, edl


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with the versions 10 and 20."""
    save_small(tmp_path / "run", 10, 20)
    return tmp_path / "run"


def test_values(run: Path) -> None:
    """A value is JSON where it reads as JSON, and a text where it does not; every view of the version has it."""
    before = elasticdl_rules.answer(run)
    words = ['"quoted"', "0.5", "true", "null", '{"b": [1, null]}', "adam", "NaN", "1e999", "", "s3://b/k@7", "a=b"]
    meant = ["quoted", 0.5, True, None, {"b": [1, None]}, "adam", "NaN", "1e999", "", "s3://b/k@7", "a=b"]
    expected = {f"k{i}": value for i, value in enumerate(meant)}
    made = document("metadata", "set", f"{run}@10", *(f"k{i}={word}" for i, word in enumerate(words)))
    assert made == {"schema": "edl-ckpt/metadata/1", "ref": f"{run}@10", "version": 10, "metadata": expected}
    assert document("metadata", "show", f"{run}@10") == made
    assert document("inspect", f"{run}@10")["metadata"] == expected
    assert [v["metadata"] for v in document("list", run)["locations"][0]["versions"]] == [expected, {}]
    assert "k4" in edl("inspect", f"{run}@10").stdout
    left = document("metadata", "remove", f"{run}@10", "k0", "k1")["metadata"]
    assert left == {k: v for k, v in expected.items() if k not in {"k0", "k1"}}
    assert elasticdl_rules.answer(run) == before


@pytest.mark.parametrize("words", [["x={"], ["x=["], ['x="a'], ["x"], [], ["=5"], ["a\nb=1"], [f"{'k' * 201}=1"]])
def test_wrong_words(run: Path, words: list[str]) -> None:
    """Half of a JSON value, a word without '=', and a key that cannot be shown are errors; nothing is recorded."""
    done = edl("metadata", "set", f"{run}@10", *words)
    assert done.returncode == 2, done.stderr
    assert at(run, 10).metadata == {}


def test_reference_or_value(run: Path) -> None:
    """A location whose name has a '=' is a reference; a value that looks like one is a value."""
    run.rename(run.parent / "lr=0.1")
    assert edl("metadata", "set", "lr=0.1@10", "k=1", cwd=run.parent).returncode == 0
    assert edl("metadata", "set", "@20", "from=s3://bucket/run@7", cwd=run.parent / "lr=0.1").returncode == 0
    assert at(run.parent / "lr=0.1", 10).metadata == {"k": 1}
    assert at(run.parent / "lr=0.1", 20).metadata == {"from": "s3://bucket/run@7"}
    typo = edl("metadata", "set", "runs/lr=0.2@10", "k=1", cwd=run.parent)
    assert typo.returncode == 10, typo.stderr
    assert edl("metadata", "set", "runs/lr=0.2@10", cwd=run.parent).returncode == 2


def test_travels(run: Path, tmp_path: Path) -> None:
    """The values go along with a copy and a reshard, to another location and in place; new keys join old ones."""
    set_metadata(at(run, 10), {"owner": "ads", "lr": 0.1})
    execute_copy(plan_copy([at(run, 10)], tmp_path / "copy"))
    set_metadata(at(tmp_path / "copy", 10), {"lr": 0.2, "mine": [1]})
    execute_copy(plan_copy([at(run, 10)], tmp_path / "copy"))
    assert at(tmp_path / "copy", 10).metadata == {"owner": "ads", "lr": 0.1, "mine": [1]}
    reshard_version(at(run, 10), 3)
    reshard_version(at(run, 10), 4, output=tmp_path / "out")
    assert at(run, 10).metadata == at(tmp_path / "out", 10).metadata == {"owner": "ads", "lr": 0.1}


def test_bounds(run: Path) -> None:
    """Values that JSON lacks, that are too large together, or too deep for a later reading, are refused as a whole."""
    set_metadata(at(run, 10), {"old": 1})
    deep: object = 1
    for _ in range(30):
        deep = [deep]
    wrong: list[object] = [float("nan"), b"x", {1, 2}, object(), "x" * 70_000, deep]
    for value in wrong:
        with pytest.raises(UsageError):
            set_metadata(at(run, 10), {"fine": 1, "wrong": value})
    for key in ("", "k" * 201, "a\nb"):
        with pytest.raises(UsageError, match="is not a valid key") as caught:
            set_metadata(at(run, 10), {key: 1})
        assert len(caught.value.message) < 200
        assert "1 to 200 characters" in (caught.value.hint or "")
    with pytest.raises(NotFoundError, match="no metadata 'absent'"):
        remove_metadata(at(run, 10), ["old", "absent"])
    assert at(run, 10).metadata == {"old": 1}
    set_metadata(at(run, 10), {"old": True})
    assert at(run, 10).metadata["old"] is True


def test_unknown_and_damaged(run: Path) -> None:
    """Keys of a later program stay in the file; metadata that is no object is reported, and protects the version."""
    file = run / ".edl-ckpt-0/meta-0/10.json"
    set_metadata(at(run, 10), {"a": 1})
    file.write_text(json.dumps({**json.loads(file.read_text()), "later": [1]}))
    set_metadata(at(run, 10), {"b": 2})
    assert json.loads(file.read_text())["later"] == [1]
    file.write_text('{"schema": "edl-ckpt/meta/1", "version": 10, "metadata": [1]}')
    assert "metadata must be an object" in at(run, 10).metadata_fault
    assert edl("metadata", "set", f"{run}@10", "a=1").returncode == 2
    assert "metadata must be an object" in edl("metadata", "show", f"{run}@10").stderr
