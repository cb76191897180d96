"""`recover` that could not settle something ends with 3, and says what a person can do."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from checkpoints import files_of, save_small
from edl_ckpt.core import reshard_version, resolve
from edl_ckpt.core.catalog.listing import parse_ref
from edl_ckpt.core.state.signature import describe
from edl_ckpt.core.storage import files
from forked import run_forked
from program import PROGRAM, edl, inside
from s3_fixtures import Bucket


@pytest.fixture
def halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location in which a reshard in place, without an exchange, was killed between its two renames."""
    run = tmp_path / "run"
    save_small(run, 7)
    real = os.rename

    def rename(old: str, new: str, **directories: int) -> None:
        real(old, new, **directories)
        if os.path.basename(new) == "old-version-7":
            os._exit(9)

    def reshard() -> None:
        monkeypatch.setattr(files, "RENAME_EXCHANGE", 1 << 20)  # a flag that no kernel knows
        monkeypatch.setattr(os, "rename", rename)
        reshard_version(resolve(parse_ref(f"{run}@7")), 3)

    assert run_forked(reshard) == 9
    return run


def stage_of(run: Path) -> Path:
    (stage,) = (run / ".edl-ckpt-0/stage-0").iterdir()
    return stage


def test_neither_version_is_there(halfway: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both versions are gone from where the journal says: exit code 3 each time, and the place to look into."""
    shutil.rmtree(stage_of(halfway) / "version-7")
    shutil.move(stage_of(halfway) / "old-version-7", halfway.parent / "aside")
    (halfway / ".edl-ckpt-0/lock-0").unlink()  # that of the killed command
    before = files_of(halfway)
    for _ in range(2):
        result = inside(capsys, "recover", halfway, code=3)
        (left,) = result["left"]
        assert "neither the old version nor the new one is in place" in left
        assert f"look into {stage_of(halfway)}" in left
        assert result["done"] == []
        assert files_of(halfway) == before
    done = edl("recover", halfway)
    assert (done.returncode, "unresolved: " in done.stdout) == (3, True)
    shutil.move(halfway.parent / "aside", stage_of(halfway) / "old-version-7")
    shutil.move(stage_of(halfway) / "old-version-7", halfway / "version-7")  # as a person would
    assert inside(capsys, "recover", halfway)["left"] == []
    assert resolve(parse_ref(f"{halfway}@7")).ps_num == 2


def test_a_damaged_journal(halfway: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A journal that cannot be used is set aside with all that it is about, and that is not "done"."""
    journal = stage_of(halfway) / "journal.json"
    journal.write_bytes(journal.read_bytes().replace(b'"version-7"', b'"../victim"'))
    (left,) = inside(capsys, "recover", halfway, code=3)["left"]
    assert "journal.json that cannot be used" in left
    assert "edl-ckpt verify --all" in left
    assert (stage_of(halfway) / "old-version-7/variables-0-of-2.ckpt").exists()  # nothing was removed


def test_a_directory_of_somebody_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not ours stays, and is named with what to do."""
    save_small(tmp_path / "run", 7)
    stage = tmp_path / "run/.edl-ckpt-0/stage-0/by-hand"
    stage.mkdir(parents=True)
    (stage / "file").touch()
    (left,) = inside(capsys, "recover", tmp_path / "run", code=3)["left"]
    assert "by-hand: edl-ckpt did not make it, so it is left alone; inspect it, and move it away" in left


def test_neither_version_is_complete_on_s3(s3: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    """The same on S3, where a shard of the new version is gone after the old ones were removed."""
    s3.put("run/version-7/variables-1-of-2.ckpt", b"")
    journal = {
        "version": 7,
        "directory": "version-7",
        "new": {"variables-0-of-2.ckpt": 5, "variables-1-of-2.ckpt": 0},
        "write_ids": {"variables-0-of-2.ckpt": "", "variables-1-of-2.ckpt": ""},
        "old": ["variables-0-of-1.ckpt"],
        "markers": ["resharding-0.0"],
        "seal": {"schema": "edl-ckpt/seal/2"},
    }
    s3.put("run/.edl-ckpt-0/stage-0/x/journal.json", json.dumps(journal).encode())
    before = s3.objects()
    (left,) = inside(capsys, "recover", s3.url, code=3)["left"]
    assert "variables-0-of-1.ckpt is missing or has changed; nothing was changed" in left
    assert "inspect both before you delete a file" in left
    assert s3.objects() == before


def test_nothing_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What could be settled, or waits to be resumed, is exit code 0."""
    save_small(tmp_path / "run", 7)
    assert inside(capsys, "recover", tmp_path / "run")["left"] == []


def test_a_dry_run_says_what_would_be_done(halfway: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the journal, its owner and the lock, and changes nothing; what is done then is of the same work."""
    before = files_of(halfway)
    would = inside(capsys, "recover", halfway, "--dry-run")["would"]
    assert files_of(halfway) == before
    assert len(would) == 2
    assert would[0].startswith("the lock is held by process ")
    assert would[0].endswith(": it is removed")
    assert "the replacement of version 7 by process" in would[1]
    assert would[1].endswith("it is finished, or rolled back")
    done = inside(capsys, "recover", halfway)
    assert done["done"] == ["finished the replacement of version 7; the new version is in place"]
    assert inside(capsys, "recover", halfway, "--dry-run")["would"] == []


@pytest.mark.parametrize(("answer", "code"), [(b"n\n", 16), (b"y\n", 0)])
def test_it_asks_on_a_terminal(halfway: Path, answer: bytes, code: int) -> None:
    """On a terminal the work is shown and the command asks; anything but yes changes nothing."""
    before = files_of(halfway)
    parent, child = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, "recover", str(halfway)], stdin=child, stderr=child, stdout=subprocess.PIPE, text=True
    ) as process:
        os.close(child)
        os.write(parent, answer)
        assert process.wait(300) == code
    asked = os.read(parent, 4096).decode()
    os.close(parent)
    assert "the replacement of version 7" in asked
    assert "Do this? [y/N]" in asked
    assert (files_of(halfway) == before) == (code == 16)


def test_it_removes_the_lock_of_a_host_that_is_gone(tmp_path: Path) -> None:
    """With --yes, a holder that has been silent for minutes elsewhere loses its lock; one that was seen keeps it."""
    run = tmp_path / "run"
    save_small(run, 5)
    lock = run / ".edl-ckpt-0/lock-0"
    lock.parent.mkdir(exist_ok=True)
    for age, code in ((60, 11), (200, 0)):
        lock.write_text(json.dumps({**describe("prune"), "host": "pod-7"}))
        os.utime(lock, (time.time() - age,) * 2)
        assert edl("recover", run, "--lock-wait", "0s").returncode == 11
        done = edl("recover", run, "--yes", "--lock-wait", "0s")
        assert done.returncode == code, done.stderr
        assert lock.exists() == (code == 11)


def test_open_uploads_and_journals_on_s3(multi: Bucket, capsys: pytest.CaptureFixture[str]) -> None:
    """On object storage it names the uploads that no listing shows."""
    assert inside(capsys, "recover", multi.url, "--dry-run")["would"] == []
    key = "run/version-9/variables-0-of-2.ckpt"
    multi.backend.create_multipart_upload(multi.name, key, {}, "STANDARD", {}, None, "", "")
    (would,) = inside(capsys, "recover", multi.url, "--dry-run")["would"]
    assert would.startswith("1 open upload, the oldest since")
    assert "version-9/variables-0-of-2.ckpt" in would
