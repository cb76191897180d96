"""Versions that a prune cannot delete or cannot see: the others are deleted, and nothing is forgotten by mistake."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from checkpoints import at, numbers
from edl_ckpt.core import add_tag, list_versions, prune
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError
from edl_ckpt.core.commit.deletion.records import list_trash
from edl_ckpt.core.commit.repair.recovery import forget_gone
from edl_ckpt.core.operations.annotate import set_metrics
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.undo import undo
from edl_ckpt.core.storage import open_store
from program import inside
from scan_guard import scan_guard
from system_runs import settled, step_run

NEWEST = Policy((Latest(1),))


def refuse(patch: pytest.MonkeyPatch, errors: Mapping[str, int], *, after: bool = False) -> None:
    """Let renames of these names fail with an error of the system; with `after` they are made all the same."""
    rename = os.rename

    def failing(source: Any, target: Any, **more: Any) -> None:
        code = errors.get(os.path.basename(os.fspath(source)))
        if code is None or after:
            rename(source, target, **more)
        if code is not None:
            raise OSError(code, os.strerror(code), source, None, target)

    patch.setattr(os, "rename", failing)


def test_one_does_not_stop_the_others(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A version that cannot be moved is reported with its code and stays whole; the others are deleted."""
    refuse(monkeypatch, {"version-2": errno.EPERM, "version-3": errno.EBUSY})
    done = inside(capsys, "prune", run, "--keep", "1", code=3)
    assert [(f["ref"], f["code"]) for f in done["failed"]] == [(f"{run}@2", 12), (f"{run}@3", 1)]
    assert (done["deleted"], done["applied"]) == (1, True)
    assert numbers(run) == [1, 2, 3, 5]
    assert (at(run, 2).metrics, at(run, 2).note) == ({"auc": 0.5}, "second")
    assert elasticdl_rules.leftovers(run) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EACCES, errno.EROFS])
def test_only_permissions(
    code: int, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """When permissions are the only reason, a read-only mount among them, the exit code is 12."""
    refuse(monkeypatch, dict.fromkeys(("version-2", "version-3"), code))
    error = inside_twice(capsys, "prune", run, "--keep", "1")
    assert (error["code"], error["message"]) == (12, "2 items could not be deleted")
    assert numbers(run) == [1, 2, 3, 5]


def inside_twice(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Any:
    """Run a command that prints a document and fails; return the document of its failure."""
    from edl_ckpt.cli import app

    capsys.readouterr()
    with scan_guard(arguments), pytest.raises(SystemExit):
        app.run([*map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert json.loads(printed.out)["failed"]
    return json.loads(printed.err.splitlines()[-1])


def test_layers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory of a lower layer, whose rename is EXDEV, is deleted in place, file by file."""
    refuse(monkeypatch, {"version-2": errno.EXDEV})
    result = prune([run], NEWEST)
    assert [ref.rpartition("@")[2] for ref in result.deleted] == ["3", "4", "2"]
    assert not (run / "version-2").exists()
    assert not (run / ".edl-ckpt-0/meta-0/2.json").exists()
    assert result.freed_bytes > 0
    assert result.failed == ()
    assert elasticdl_rules.leftovers(run) == []


def test_layers_and_trash(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a lower layer `prune --trash` deletes nothing that could not be put back: it ends with 15."""
    refuse(monkeypatch, {"version-2": errno.EXDEV})
    assert inside_twice(capsys, "prune", run, "--keep", "1", "--trash")["code"] == 15
    assert numbers(run) == [1, 2, 5]
    assert at(run, 2).metrics == {"auc": 0.5}
    undo(run)
    assert numbers(run) == [1, 2, 3, 4, 5]


def test_done_but_reported_as_failed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rename that the file server made counts as made, although it reports an error."""
    refuse(monkeypatch, {"version-2": errno.EIO}, after=True)
    result = prune([run], NEWEST, trash=True)
    assert (len(result.deleted), result.failed) == (3, ())
    assert [entry.names for entry in list_trash(str(run))] == [("version-2", "version-3", "version-4")]


def test_trash_has_no_metadata_of_what_stays(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`undo` does not bring back old metadata of a version that could not be moved to the trash."""
    with monkeypatch.context() as patch:
        refuse(patch, {"version-2": errno.EPERM})
        prune([run], NEWEST, trash=True)
    set_metrics(at(run, 2), {"auc": 0.75})
    (run / ".edl-ckpt-0/meta-0/2.json").unlink()
    undo(run)
    assert at(run, 2).metrics == {}


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_what_cannot_be_looked_up_is_not_forgotten(code: int, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata goes when the version has no name any more, not when looking it up is an error."""
    shutil.move(run / "version-2", run.parent / "away")
    stat = os.stat

    def failing(path: Any, **more: Any) -> os.stat_result:
        if isinstance(path, str) and os.path.basename(path) == "version-2":
            raise OSError(code, os.strerror(code), path)
        return stat(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", failing)
        prune([run], Policy((Latest(4),)))
    assert (run / ".edl-ckpt-0/meta-0/2.json").exists()
    prune([run], Policy((Latest(4),)))
    assert not (run / ".edl-ckpt-0/meta-0/2.json").exists()


def test_what_is_no_version_now_keeps_its_metadata(run: Path) -> None:
    """A name of a version is not gone, whatever is there: an empty mount point, a file, a dangling link."""
    names = ((10, "version-10"), (11, "model_v11"), (12, "version_12"), (13, "model_v13.chkpt"))
    for number, name in names:
        (run / f".edl-ckpt-0/meta-0/{number}.json").write_text('{"tags": ["keep"]}')
        if number == 10:
            (run / name).symlink_to("nowhere")
        elif number == 12:
            (run / name).write_text("a file")
        else:
            (run / name).mkdir()
    forget_gone(open_store(run), ())
    assert {f"{n}.json" for n in (1, 2, 10, 11, 12, 13)} <= set(os.listdir(run / ".edl-ckpt-0/meta-0"))


def test_metadata_of_a_version_known_by_its_name_goes_with_it(tmp_path: Path) -> None:
    """A prune removes the metadata of a version without a number once nothing has its name, and no other file."""
    run = step_run(tmp_path / "run", (10, 20))
    for name in ("final", "best", "long" * 60, "ende\u00e9"):
        shutil.copytree(run / "step_10", run / name)
    settled(run)
    meta = run / ".edl-ckpt-0/meta-0"
    for version in list_versions(run).versions:
        set_metrics(version, {"loss": 1.0})
    files = set(os.listdir(meta))
    assert len(files) == 6
    (meta / "named-newer.json").write_text('{"schema": "edl-ckpt/version/99"}')
    (meta / "named-bundle.json").write_text('{"tags": ["kept"]}')
    (run / "bundle.index").write_text("")
    forget_gone(open_store(run), (10, 20))
    assert files | {"named-newer.json", "named-bundle.json"} == set(os.listdir(meta))
    for name in ("best", "long" * 60, "ende\u00e9"):
        shutil.rmtree(run / name)
    forget_gone(open_store(run), (10, 20))
    assert set(os.listdir(meta)) == {"10.json", "20.json", "named-final.json", "named-newer.json", "named-bundle.json"}


def test_same_number_twice(run: Path) -> None:
    """Of two spellings of a number one is deleted; the tag that they share stays with the other."""
    shutil.copytree(run / "version-3", run / "version_3")
    (run / "version_3/variables-0-of-2.ckpt").rename(run / "version_3/notes")
    add_tag(at(run, 4), "other")
    (run / ".edl-ckpt-0/meta-0/3.json").write_text('{"metrics": {"loss": 1.0}}')
    prune([run], NEWEST)
    left = [(v.path.rpartition("/")[2], v.metrics) for v in list_versions(run).versions if v.version == 3]
    assert left == [("version_3", {"loss": 1.0})]


def test_links_free_nothing(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a version that is a link, or whose shards are, only what lies at the location counts as freed."""
    shutil.move(run / "version-2", tmp_path / "elsewhere")
    (run / "version-2").symlink_to(tmp_path / "elsewhere")
    shutil.move(run / "version-3/variables-0-of-2.ckpt", tmp_path / "shard")
    (run / "version-3/variables-0-of-2.ckpt").symlink_to(tmp_path / "shard")
    own = os.path.getsize(run / "version-3/variables-1-of-2.ckpt")
    own += sum(path.stat().st_size for path in (run / "version-4").iterdir())
    done = inside(capsys, "prune", run, "--keep", "1")
    assert (done["deleted"], done["freed_bytes"]) == (3, own)
    assert (tmp_path / "shard").exists()
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_record_that_cannot_be_read(code: int, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record of a deletion that cannot be read for a moment is not damaged: `undo` fails, and works later."""
    prune([run], NEWEST, trash=True)
    opened = os.open

    def failing(path: Any, *words: Any, **more: Any) -> int:
        if path == "record.json":
            raise OSError(code, os.strerror(code), path)
        return opened(path, *words, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        with pytest.raises(EdlCkptError) as failed:
            undo(run)
        assert not isinstance(failed.value, NotFoundError)
        prune([run], NEWEST, purge_older_than_seconds=0.0)
    undo(run)
    assert numbers(run) == [1, 2, 3, 4, 5]
