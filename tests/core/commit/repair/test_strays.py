"""`recover` removes what no journal lists beside a whole version, and nothing that may be somebody's."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest

from checkpoints import drop_seal, only, save_small
from edl_ckpt.core import add_tag, recover, reshard_version, verify_version
from edl_ckpt.core.base.errors import AuthError
from edl_ckpt.core.commit.publish.single_file import work_name
from edl_ckpt.core.commit.publish.uploads import marked_uploads
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import has_parts
from edl_ckpt.core.storage.s3.upload import WRITE_ID
from forked import run_forked
from program import PROGRAM
from s3_fixtures import Bucket, begun_now
from s3_proxy import Fault, hook, status
from waiting import wait_until

OLD_MARKER = "resharding-0.0"
MARKER = "resharding-0a1b2c3d-0.1"


def copy_shards(s3: Bucket, folder: Path, *, ours: bool) -> None:
    """Put the shards of another set beside those of version 7, with our write id or without, as a job has them."""
    for path in (folder / "version-7").iterdir():
        metadata = {WRITE_ID: "20260101T000000-elsewhere_00000000-7-00000001"} if ours else {}
        s3.put(f"run/version-7/{path.name}", path.read_bytes(), metadata)


@pytest.fixture
def five(tmp_path: Path) -> Path:
    """Return a location with version 7 in five shards."""
    save_small(tmp_path / "five", 7, ps_num=5)
    return tmp_path / "five"


def test_placeholders(s3: Bucket) -> None:
    """Placeholder objects beside one whole set go, those of earlier versions of edl-ckpt too."""
    save_small(s3.url, 7)
    for name in (OLD_MARKER, MARKER):
        s3.put(f"run/version-7/{name}", b"")
    assert recover(s3.url).done == ("removed 2 objects of a lost command next to version 7",)
    version = only(s3.url)
    assert (version.state.value, version.extra) == ("complete", ())
    assert recover(s3.url).done == ()


def test_a_set_beside_the_sealed_one(s3: Bucket, five: Path) -> None:
    """The sealed set stays; another one that we wrote goes, whole as it is."""
    save_small(s3.url, 7)
    copy_shards(s3, five, ours=True)
    s3.put(f"run/version-7/{MARKER}", b"")
    assert recover(s3.url).done == ("removed 6 objects of a lost command next to version 7",)
    assert only(s3.url).ps_num == 2
    assert verify_version(only(s3.url), level="deep").findings == ()


def test_a_part_beside_that_of_a_job(s3: Bucket, five: Path, tmp_path: Path) -> None:
    """Without a seal the only whole set stays, and the part of another one that we wrote goes."""
    save_small(tmp_path / "job", 7)
    s3.upload(tmp_path / "job")
    drop_seal(s3.url, 7)
    copy_shards(s3, five, ours=True)
    s3.delete("run/version-7/variables-4-of-5.ckpt")
    assert recover(s3.url).done == ("removed 4 objects of a lost command next to version 7",)
    assert only(s3.url).ps_num == 2


@pytest.mark.parametrize("sealed", [True, False])
def test_shards_of_somebody_else_stay(s3: Bucket, five: Path, sealed: bool) -> None:
    """Shards without our write id are never removed: a person is told to look."""
    save_small(s3.url, 7, sealed=sealed)
    copy_shards(s3, five, ours=False)
    before = s3.objects()
    assert recover(s3.url).done == ("version 7 has shards of several sets; nothing was changed: inspect them",)
    assert s3.objects() == before


def test_a_service_that_aborts_nothing(s3: Bucket) -> None:
    """A killed command locks no location where uploads cannot be aborted: that is said once, and they are named."""
    save_small(s3.url, 7)
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="upload_part", key="0-of-3", times=None))
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="abort", times=None))
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="delete", key="journal", times=None))
    with pytest.raises(AuthError):
        reshard_version(only(s3.url), 3)
    s3.proxy.heal()
    s3.proxy.fail(Fault(status(405, "MethodNotAllowed"), operation="abort", times=None))
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    recovered = recover(s3.url)
    rolled = "rolled back the replacement of version 7; the old version is in place"
    assert recovered.done == (f"{rolled}; this service cannot abort 3 uploads of it",)
    assert recovered.kept[0].startswith("3 open uploads, the oldest since")
    assert "version-7/variables-0-of-3.ckpt" in recovered.kept[0]
    assert reshard_version(only(s3.url), 4).to_ps == 4
    assert verify_version(only(s3.url), level="deep").findings == ()
    again = recover(s3.url)
    assert (again.done, again.left, len(again.kept)) == ((), (), 1)


def test_open_uploads_are_named(s3: Bucket) -> None:
    """Uploads that may be a job's, or another program's, stay open and are named; those of shards go after a day."""
    save_small(s3.url, 7)
    for name in ("version-8/variables-0-of-2.ckpt", "other.bin"):
        open_store(s3.url).new_object(name, 1).begin()  # type: ignore[union-attr]
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    recovered = recover(s3.url)
    assert recovered.done == ()
    assert "2 open uploads" in recovered.kept[0]
    assert ": other.bin, version-8/variables-0-of-2.ckpt;" in recovered.kept[0]
    s3.proxy.heal()
    recovered = recover(s3.url)
    assert recovered.done == ("aborted an abandoned upload of version-8/variables-0-of-2.ckpt",)
    assert "1 open upload, the oldest" in recovered.kept[0]
    assert s3.open_uploads()[0][0] == "run/other.bin"


def test_uploads_of_a_killed_export(s3: Bucket, tmp_path: Path) -> None:
    """`recover` aborts what a killed export was uploading, and not what one that lives uploads to the same name."""
    save_small(tmp_path / "run", 7)
    open_store(s3.url).new_object("m.npz", 1).begin()  # type: ignore[union-attr]
    theirs = s3.open_uploads()
    s3.proxy.fail(Fault(begun_now(theirs[0][1]), operation="list_uploads", times=None))
    gate = threading.Event()
    armed = s3.proxy.fail(Fault(hook(lambda _: gate.wait(60)), operation="upload_part", times=None))
    words = [*PROGRAM, "export", str(tmp_path / "run"), f"{s3.url}/m.npz"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for count in (1, 2):
            processes.append(subprocess.Popen(words, stderr=subprocess.DEVNULL))
            wait_until(lambda count=count: armed.hits == count)  # type: ignore[misc]
        before = sorted(s3.open_uploads())
        assert len(before) == 3
        for process in processes:
            assert sorted(s3.open_uploads()) == before
            process.kill()
            process.wait()
            recovered = recover(s3.url)
    finally:
        gate.set()
        for process in processes:
            process.kill()
            process.wait()
    assert recovered.done == ("aborted an upload of m.npz that a killed export had left",) * 2
    assert (s3.open_uploads(), s3.objects()) == (theirs, {})


def test_the_note_of_a_killed_export_alone(s3: Bucket) -> None:
    """`recover` removes the note of an export that was killed before its first upload, where nothing else is."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    name = work_name("m.npz").replace(f"-{os.getpid()}-", f"-{ended.pid}-")
    s3.put(f"run/{name}/uploads", b"")
    recover(s3.url)
    assert s3.objects() == {}


def test_two_sets_of_ours_without_a_seal(s3: Bucket, five: Path) -> None:
    """Nobody can say which of two whole sets of ours is right, so both stay."""
    save_small(s3.url, 7, sealed=False)
    copy_shards(s3, five, ours=True)
    before = s3.objects()
    assert "several sets" in recover(s3.url).done[0]
    assert s3.objects() == before


def test_an_incomplete_version_stays(s3: Bucket) -> None:
    """Where no set is whole nothing goes, placeholders neither: they may keep a mixture from looking whole."""
    save_small(s3.url, 7, ps_num=3)
    s3.delete("run/version-7/variables-1-of-3.ckpt")
    s3.put(f"run/version-7/{MARKER}", b"")
    before = s3.objects()
    recover(s3.url)
    assert s3.objects() == before


@pytest.mark.parametrize("purpose", ["copy", "repair"])
@pytest.mark.parametrize("again", [False, True])
def test_uploads_of_a_command_that_was_killed_before_its_journal(s3: Bucket, purpose: str, again: bool) -> None:
    """`recover`, and the next command there, abort them at once; those of others with the same names stay."""
    save_small(s3.url, 7)
    store = open_store(s3.url)
    assert has_parts(store)
    names = ["step_8/__0_0.distcp", "step_8/__1_0.distcp"]

    def killed() -> None:
        with marked_uploads(store, names, purpose):
            for name in names:
                store.new_object(name, 1).begin()
            os._exit(9)

    assert run_forked(killed) == 9
    store.new_object("step_9/__0_0.distcp", 1).begin()
    assert len(s3.open_uploads()) == 3
    s3.proxy.fail(Fault(begun_now(), operation="list_uploads", times=None))
    done = [f"aborted an upload of {name} that a killed command had left" for name in names]
    if again:
        add_tag(only(s3.url), "good")
    else:
        assert [text for text in recover(s3.url).done if "upload" in text] == done
    assert [key for key, _ in s3.open_uploads()] == ["run/step_9/__0_0.distcp"]
    assert not [key for key in s3.state() if "uploads.json" in key]
