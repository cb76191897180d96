"""What must hold when recovery itself meets trouble, and among several that are at work."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from checkpoints import only, save_small
from edl_ckpt.core import (
    execute_copy,
    execute_reshard,
    list_versions,
    plan_copy,
    prepare_reshard,
    prune,
    recover,
    reshard_version,
    undo,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError
from edl_ckpt.core.commit.publish import disk as local
from edl_ckpt.core.commit.publish import staging
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.commit.publish.staging import Staging
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.storage import files
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.s3.upload import Upload
from forked import run_forked
from s3_fixtures import Bucket


@pytest.fixture
def halfway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A location in which a reshard in place, without exchange, was killed between its two renames."""
    save_small(tmp_path / "run", 7, ps_num=3)
    real, calls = os.rename, list[str]()

    def rename(old: str, new: str, **directories: int) -> None:
        calls.append(new)
        if calls[-2:] == ["old-version-7", "version-7"]:  # the old version is aside, and now the new one
            os._exit(9)
        real(old, new, **directories)

    def reshard() -> None:
        monkeypatch.setattr(files, "renameat2", lambda: None)
        monkeypatch.setattr(os, "rename", rename)
        reshard_version(only(tmp_path / "run"), 2)

    assert run_forked(reshard) == 9
    assert list_versions(str(tmp_path / "run")).versions == ()
    return tmp_path / "run"


def test_between_two_renames(halfway: Path) -> None:
    """Neither name is there, and both versions are: the new one, which was proved, comes."""
    assert recover(str(halfway)).done == ("finished the replacement of version 7; the new version is in place",)
    assert only(halfway).ps_num == 2
    assert verify_version(only(halfway), level="deep").findings == ()
    assert elasticdl_rules.leftovers(halfway) == []


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_journal_that_cannot_be_read_now(halfway: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """An error of the system is no sign that there is nothing to do: nothing is removed, and later all comes right."""
    real = os.open

    def failing(path: Any, *more: Any, **others: Any) -> Any:
        if str(path).endswith("journal.json"):
            raise OSError(code, os.strerror(code))
        return real(path, *more, **others)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing)
        with pytest.raises(EdlCkptError):
            recover(str(halfway))
    recover(str(halfway))
    assert verify_version(only(halfway), level="deep").findings == ()


def test_the_device_has_another_number(halfway: Path) -> None:
    """After a boot, or from another host, a file system may have another number: the staged version is known still."""
    (path,) = halfway.rglob("journal.json")
    journal = json.loads(path.read_text())
    assert journal["inode"] == os.stat(next(path.parent.glob("version-7"))).st_ino
    recover(str(halfway))
    assert only(halfway).ps_num == 2


def test_who_waits_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is interrupted while another is at work on the same leaves that one's files."""
    with Staging(str(tmp_path), "copy", name="copy-1") as held:
        mine = os.path.join(held.path, "version_1")
        os.mkdir(mine)
        monkeypatch.setattr(staging.StageLock, "take", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt), Staging(str(tmp_path), "copy", name="copy-1"):
            pass
        assert os.path.isdir(mine)


def test_refused_publish_keeps_the_seal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that came under the number meanwhile keeps its seal when ours is refused."""
    save_small(tmp_path / "a", 7)
    save_small(tmp_path / "other", 7)
    plan, settings = prepare_reshard(only(tmp_path / "a"), 2, output=str(tmp_path / "b"))
    real = local.put_in_place

    def publish(*words: Any) -> None:
        shutil.copytree(tmp_path / "other", tmp_path / "b", dirs_exist_ok=True)
        real(*words)

    monkeypatch.setattr(local, "put_in_place", publish)
    with pytest.raises(RefusedError, match="already exists; nothing was changed"):
        execute_reshard(plan, settings)
    check = verify_version(only(tmp_path / "b"), level="deep")
    assert (check.sealed, check.findings) == (True, ())


def test_damaged_state(tmp_path: Path) -> None:
    """Journals and records of any content stop no command, and nothing of a version is touched."""
    save_small(tmp_path, 7)
    damaged = (b"", b"[]", b"{}", b'{"target": "version-7", "inode": "x"}', b"\xff")
    for number, data in enumerate(damaged):
        stage = tmp_path / f".edl-ckpt-0/stage-0/20200101T000000-elsewhere-7-0000000{number}"
        stage.mkdir(parents=True)
        (stage / "journal.json").write_bytes(data)
        (stage / "owner.json").write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
        os.utime(stage / "owner.json", (1, 1))
    trash = tmp_path / ".edl-ckpt-0/trash-0/20200101T000000-elsewhere-7-00000009/version_3"
    trash.mkdir(parents=True)
    (trash.parent / "record.json").write_text('{"time": [], "keep": true}')
    recover(str(tmp_path))
    with location_lock(str(tmp_path), "x"):
        pass
    assert verify_version(only(tmp_path), level="deep").findings == ()
    aside = list((tmp_path / ".edl-ckpt-0/stage-0").iterdir())
    assert all(path.name.startswith("damaged-") for path in aside)
    assert {(path / "journal.json").read_bytes() for path in aside} == {*damaged} - {b""}


def test_damaged_state_on_s3(s3: Bucket) -> None:
    """The same on S3; what cannot be followed is told and left."""
    save_small(s3.url, 7)
    for number, data in enumerate((b"", b"[]", b"{}", b'{"directory": 3}', b"\xff")):
        s3.put(f"run/.edl-ckpt-0/stage-0/x{number}/journal.json", data)
        s3.put(f"run/.edl-ckpt-0/stage-0/copy-{number}/journal.json", data)
    recover(s3.url, drop_copies=True)
    assert verify_version(only(s3.url), level="deep").findings == ()


def test_small_shards_of_a_killed_copy(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of small shards that is killed when some have appeared goes on, or is dropped, and leaves nothing."""
    save_small(tmp_path / "run", 7, ps_num=3)
    version = only(tmp_path / "run")

    def kill() -> None:
        with monkeypatch.context() as patched:
            real = Upload.complete

            def complete(self: Upload, *, replace: bool = False) -> None:
                if "2-of-3" in self.path:
                    raise SystemError
                real(self, replace=replace)

            patched.setattr(Upload, "complete", complete)
            patched.setattr(RemoteOutput, "__exit__", lambda *_: None)
            with pytest.raises(SystemError):
                execute_copy(plan_copy([version], s3.url))
        assert len([key for key in s3.objects() if "variables" in key]) == 2

    kill()
    assert execute_copy(plan_copy([version], s3.url)).copied[0].resumed_bytes > 0
    assert verify_version(only(s3.url), level="deep").findings == ()
    s3.delete(*s3.objects())
    kill()
    assert recover(s3.url, drop_copies=True).done != ()
    assert s3.objects() == {}


def test_a_record_that_cannot_be_read_now_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk says nothing about a record of the trash: it is not set aside as damaged."""
    save_small(tmp_path / "run", 5, 7)
    prune([str(tmp_path / "run")], Policy((Latest(1),)), trash=True)
    real = Directory.read

    def read(self: Directory, name: str, limit: int) -> bytes | None:
        if name == "record.json":
            raise EdlCkptError("input/output error", path=self.join(name))
        return real(self, name, limit)

    with monkeypatch.context() as patch:
        patch.setattr(Directory, "read", read)
        recover(tmp_path / "run")
    assert undo(tmp_path / "run") == ("version-5",)
    assert not list((tmp_path / "run").rglob("damaged-*"))
