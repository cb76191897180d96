"""Directories that are no location stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from program import edl, inside
from s3_fixtures import Bucket

COMMANDS = {
    "metrics mode": ["metrics", "mode", "{}", "f1", "max"],
    "metrics set": ["metrics", "set", "{}@1", "auc=1"],
    "metrics remove": ["metrics", "remove", "{}@1", "auc"],
    "metrics import": ["metrics", "import", "{}/../m.csv", "{}"],
    "policy set": ["policy", "set", "{}", "--keep", "5"],
    "policy clear": ["policy", "clear", "{}"],
    "tag add": ["tag", "add", "{}@1", "prod"],
    "tag remove": ["tag", "remove", "{}@1", "prod"],
    "note": ["note", "{}@1", "words"],
    "recover": ["recover", "{}"],
    "undo": ["undo", "{}"],
    "verify --seal": ["verify", "{}@1", "--seal"],
}
"""Commands that write into a location and make no version, with {} for it."""


@pytest.mark.parametrize("command", sorted(COMMANDS))
@pytest.mark.parametrize("content", [[], ["notes.txt"]])
def test_nothing_is_written(command: str, content: list[str], tmp_path: Path) -> None:
    """A command that makes no version ends with 10 where there is none, and touches nothing."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "m.csv").write_text("version,auc\n1,0.5\n", encoding="utf-8")
    for name in content:
        (folder / name).touch()
    before = folder.stat().st_mtime_ns
    done = edl(*(word.format(folder) for word in COMMANDS[command]))
    assert done.returncode == 10, done.stderr
    assert str(folder) in done.stderr
    assert sorted(p.name for p in folder.iterdir()) == content
    assert folder.stat().st_mtime_ns == before


@pytest.mark.parametrize("command", ["prune", "prune --purge"])
def test_prune(command: str, tmp_path: Path) -> None:
    """A prune of many trials does not fail on one that has no version yet, and leaves nothing there."""
    (tmp_path / "run").mkdir()
    assert edl(*command.split(), tmp_path / "run", "--keep", "1").returncode == 0
    assert list((tmp_path / "run").iterdir()) == []


def test_state_is_enough(tmp_path: Path) -> None:
    """Where our own state is left, commands work without versions: a policy can be cleared, a trash undone."""
    (tmp_path / ".edl-ckpt-0/meta-0").mkdir(parents=True)
    (tmp_path / ".edl-ckpt-0/meta-0/location.json").write_text(
        '{"schema": "edl-ckpt/location/1", "modes": {"f1": "max"}}', encoding="utf-8"
    )
    assert edl("recover", tmp_path).returncode == 0
    assert edl("metrics", "mode", tmp_path, "f1", "min").returncode == 0


@pytest.mark.parametrize("words", [["metrics", "mode", "{}", "f1", "max"], ["policy", "set", "{}", "--keep", "5"]])
def test_s3(words: list[str], multi: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    """On S3 too; and in a version's own directory, whose entries ElasticDL counts, nothing is written."""
    before = multi.keys()
    for place, code in ((f"{multi.url}-other", 10), (f"{multi.url}/version-20", 2)):
        assert inside(capsys, *(word.format(place) for word in words), code=code)["code"] == code
    missing = inside(capsys, "recover", f"{multi.url}-other", code=10)
    assert (missing["id"], "did you mean" in str(missing["hint"])) == ("not_found", False)
    assert multi.keys() == before
