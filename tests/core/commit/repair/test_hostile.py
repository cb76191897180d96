"""Commits and recovery beside people who write into our state, while we run or before."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from checkpoints import at, files_of, numbers, only, save_small
from edl_ckpt.core import (
    add_tag,
    execute_copy,
    list_versions,
    plan_copy,
    recover,
    reshard_version,
    undo,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, NotFoundError, RefusedError
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.storage import open_store
from hostile_state import STAGE, TRASH, journal, link, pipe, put, record, stage, trash
from reporters import Recorder
from s3_fixtures import Bucket

RACE_SECONDS = 2.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with the versions 7 and 8."""
    save_small(tmp_path / "run", 7, 8)
    return tmp_path / "run"


# Versions that are links


def test_a_linked_version_is_not_replaced(run: Path, tmp_path: Path) -> None:
    """A reshard in place of a version that is a link is refused with 16 before anything changes."""
    shutil.move(run / "version-7", tmp_path / "elsewhere")
    (run / "version-7").symlink_to(tmp_path / "elsewhere")
    before = files_of(run), files_of(tmp_path / "elsewhere")
    with pytest.raises(RefusedError, match="is a symbolic link") as end:
        reshard_version(at(run, 7), 3)
    assert end.value.exit_code == 16
    assert "--output" in str(end.value.hint)
    assert (files_of(run), files_of(tmp_path / "elsewhere")) == before
    reshard_version(at(run, 7), 3, output=str(tmp_path / "out"))
    assert only(tmp_path / "out").ps_num == 3
    add_tag(at(run, 8), "next")


@pytest.mark.parametrize("keep", [True, False])
def test_a_link_that_was_replaced_is_settled(run: Path, tmp_path: Path, keep: bool) -> None:
    """What a version of ours from before left of a replaced link blocks nothing, and its target stays."""
    shutil.copytree(run / "version-7", tmp_path / "elsewhere")
    inode = (run / "version-7").stat().st_ino
    place = stage(run, 1, journal=journal(7, "version-7", keep_old=keep) | {"inode": inode})
    link(place / "old-version-7", str(tmp_path / "elsewhere"))
    assert "finished the replacement of version 7" in recover(run).done[0]
    add_tag(at(run, 8), "next")
    assert len(files_of(tmp_path / "elsewhere")) == 2
    assert verify_version(at(run, 7), level="deep").findings == ()
    assert not (run / STAGE).exists()


# What is not ours


def test_what_is_not_ours_stays(run: Path) -> None:
    """A directory without our owner's file, or of another name, is left alone, and said; ours goes."""
    mine = [stage(run, 1), run / STAGE / "20200101T000000-elsewhere-7-0000000a", run / STAGE / "copy-5"]
    for empty in mine[1:]:
        empty.mkdir()
        os.utime(empty, (1, 1))
    other = [run / STAGE / "notes/file", stage(run, 3, owner="{}") / "file", run / STAGE / f"{'9' * 30}/file"]
    nameless = run / STAGE / "20200101T000000-elsewhere-7-000000ff/file"
    for path in (*other, nameless):
        put(path, "precious")
    report = Recorder()
    with location_lock(str(run), "x", reporter=report):
        pass
    assert not any(path.exists() for path in mine)
    assert all(path.read_text() == "precious" for path in (*other, nameless))
    for path in (*other, nameless):
        assert any(path.parent.name in text and "left alone" in text for text in report.warnings)
    assert recover(run).left != ()


def test_set_aside_once(run: Path, tmp_path: Path) -> None:
    """What stands where we need its name is set aside, said once, never removed; then commands work."""
    (run / STAGE).symlink_to(tmp_path)
    pipe(run / TRASH)
    pipe(run / ".edl-ckpt-0/lock-0")
    report = Recorder()
    add_tag(at(run, 8), "x", reporter=report)
    assert " ".join(report.warnings).count("set aside as .edl-ckpt-0/stage-0/damaged-") == 3
    aside = sorted(path.name.partition("-")[2].partition("-")[2] for path in (run / STAGE).iterdir())
    assert aside == ["lock-0", "stage-0", "trash-0"]
    again = Recorder()
    reshard_version(at(run, 8), 3, reporter=again)
    assert not [text for text in again.warnings if "damaged" in text or "set aside" in text]
    assert len(list((run / STAGE).iterdir())) == 3
    assert not (tmp_path / "copy-8").exists()


def test_a_copy_where_its_directory_is_taken(run: Path, tmp_path: Path) -> None:
    """`copy-7` is a name that we need: a link under it, or an owner's file that is one, is set aside."""
    put(tmp_path / "precious", "mine")
    for kind in ("link", "linked owner", "pipe"):
        target = tmp_path / kind
        save_small(target, 8)
        if kind == "link":
            link(target / STAGE / "copy-7", str(tmp_path))
        elif kind == "pipe":
            pipe(target / STAGE / "copy-7/owner.json")
        else:
            link(target / STAGE / "copy-7/owner.json", str(tmp_path / "precious"))
        execute_copy(plan_copy([at(run, 7)], str(target)))
        assert numbers(target) == [7, 8]
    assert (tmp_path / "precious").read_text() == "mine"


def test_damaged_journals_on_s3(s3: Bucket) -> None:
    """On S3 too a journal that cannot be used is set aside, with its bytes, and said once."""
    save_small(s3.url, 7)
    bad = b'{"version": 7, "directory": "..", "a": ' + b"[" * 50_000
    s3.put("run/.edl-ckpt-0/stage-0/copy-9/journal.json", bad)
    report = Recorder()
    add_tag(only(s3.url), "x", reporter=report)
    assert len([text for text in report.warnings if "set aside" in text]) == 1
    (aside,) = (key for key in s3.objects() if "damaged-" in key)
    assert aside.endswith("copy-9-journal.json")
    again = Recorder()
    add_tag(only(s3.url), "y", reporter=again)
    assert again.warnings == []


def test_state_on_s3_is_bounded(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a state object that is huge only the beginning is fetched; nested ones and an empty one are damage."""
    monkeypatch.setattr("edl_ckpt.core.storage.s3.store.SMALL_BYTES", 4096)
    save_small(s3.url, 7, 8, 9)
    for number, data in ((7, b'{"tags": ["' + b"x" * 9000 + b'"]}'), (8, b'{"a": ' * 50_000), (9, b"")):
        s3.put(f"run/.edl-ckpt-0/meta-0/{number}.json", data)
    store = open_store(s3.url)
    assert len(store.read_small(".edl-ckpt-0/meta-0/7.json") or b"") == 4096
    assert store.read_small(".edl-ckpt-0/meta-0/9.json") == b""
    assert all(v.metadata_fault.startswith("damaged") for v in list_versions(s3.url).versions)


# Undo


def test_undo_puts_back_what_the_record_names(run: Path) -> None:
    """`undo` puts back what the record names, and nothing else in the entry; that stays there."""
    prune([run], Policy((Latest(1),)), trash=True)
    (entry,) = (run / TRASH).iterdir()
    for name in ("version-99/x", "meta/99.json", "meta/location.json", "evil", ".hidden", "version-8-0"):
        put(entry / name, "{}")
    link(entry / "version-6", "../../../version-8")
    report = Recorder()
    assert undo(run, reporter=report) == ("version-7",)
    assert numbers(run) == [7, 8]
    assert sorted(path.name for path in run.iterdir()) == [".edl-ckpt-0", "version-7", "version-8"]
    assert sorted(path.name for path in (run / ".edl-ckpt-0/meta-0").iterdir()) == ["7.seal.json", "8.seal.json"]
    assert {path.name for path in entry.iterdir()} >= {"version-99", "evil", "version-6"}
    assert any("does not name" in text for text in report.warnings)
    with pytest.raises(NotFoundError, match="nothing to undo"):
        undo(run)


@pytest.mark.parametrize(
    "document",
    [
        record(5) | {"names": ["../../../version-5"]}, record(5) | {"names": "version-5"}, record(6),
        record(5) | {"versions": "5"}, record(5) | {"versions": [[5]]}, [], {}, record(5) | {"names": []},
    ],
    ids=range(8),
)  # fmt: skip
def test_a_hostile_record(run: Path, document: object) -> None:
    """A record that does not name the version moves nothing."""
    entry = trash(run, 1, json.dumps(document))
    with pytest.raises(NotFoundError, match="nothing to undo"):
        undo(run)
    assert (entry / "version-5").is_dir()
    assert numbers(run) == [7, 8]


def test_an_older_record(run: Path) -> None:
    """Records from before had no names: the numbers are enough."""
    trash(run, 1, record(5))
    assert undo(run) == ("version-5",)
    assert numbers(run) == [5, 7, 8]


def test_undo_resumes(run: Path) -> None:
    """An undo that was killed when the versions were back puts back their metadata too."""
    add_tag(at(run, 8), "kept")
    put(run / ".edl-ckpt-0/meta-0/7.json", {"schema": "edl-ckpt/meta/1", "version": 7, "note": "words"})
    prune([run], Policy((Latest(1),)), trash=True)
    (entry,) = (run / TRASH).iterdir()
    (entry / "version-7").rename(run / "version-7")
    assert undo(run) == ()
    assert at(run, 7).note == "words"
    assert at(run, 7).fingerprint
    assert not (run / TRASH).exists()


# While we run


def swap(run: Path, victim: Path, stop: int) -> None:
    """Put links to the victim in the place of our directories, and the directories back, until a pipe is closed."""
    os.set_blocking(stop, False)
    state, count = run / ".edl-ckpt-0", 0
    while True:
        with suppress(BlockingIOError):
            os.read(stop, 1)
            return
        count += 1
        with suppress(OSError):
            rooms = [
                state / "stage-0",
                state / "trash-0",
                *(state / "stage-0").iterdir(),
                *(state / "trash-0").iterdir(),
            ]
            path = rooms[count % len(rooms)]
            away = run.parent / "away"
            path.rename(away)
            try:
                path.symlink_to(victim)
                select.select([stop], [], [], 0.0005)
                path.unlink()
            finally:
                with suppress(OSError):
                    away.rename(path)
                shutil.rmtree(away, ignore_errors=True)


def test_links_swapped_in_while_we_run(tmp_path: Path) -> None:
    """Somebody swaps our directories for links, in a loop; whatever our commands end with, the victim stays."""
    run, victim, threads = tmp_path / "run", tmp_path / "victim", threading.active_count()
    for name in ("precious", "owner.json", "journal.json", "record.json", "version-8/x", "drop-x/y", "old-version-8/z"):
        put(victim / name, "{}")
    save_small(run, 8)
    pristine, before = tmp_path / "pristine", files_of(victim)
    shutil.copytree(run, pristine)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        with suppress(BaseException):
            swap(run, victim, reader)
        os._exit(0)
    os.close(reader)
    ends: list[str] = []
    actions: tuple[Callable[[], object], ...] = (
        lambda: reshard_version(at(run, 8), 3 if at(run, 8).ps_num == 2 else 2),
        lambda: prune([run], Policy((Latest(1),))),
        lambda: recover(run),
    )
    try:
        begin = time.monotonic()
        while time.monotonic() - begin < RACE_SECONDS or len(ends) < 12 or "done" not in ends:
            with suppress(OSError):
                shutil.copytree(pristine / "version-8", run / "version-7")
            with suppress(OSError):
                stage(run, 1)
            for act in actions:
                try:
                    act()
                    ends.append("done")
                except EdlCkptError as error:
                    ends.append(type(error).__name__)
            assert files_of(victim) == before
    finally:
        os.close(writer)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert files_of(victim) == before
    assert threading.active_count() < threads + 40
    recover(run)
    assert list_versions(run).versions
