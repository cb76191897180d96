"""Copies: byte for byte, proved, with what is known of a version, going on where they stopped."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import at, save_small, shards_of
from edl_ckpt.core import list_versions, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, LockedError, NotFoundError, RefusedError, UsageError
from edl_ckpt.core.base.progress import SilentReporter
from edl_ckpt.core.commit.publish.carried import Carrying
from edl_ckpt.core.commit.publish.disk import LocalOutput
from edl_ckpt.core.commit.publish.objects import RemoteOutput
from edl_ckpt.core.commit.repair.recovery import location_lock, recover
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.annotate import add_tag, set_metrics, set_modes, set_note
from edl_ckpt.core.operations.copy.execute import CopyResult, execute_copy
from edl_ckpt.core.operations.copy.plan import plan_copy
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.operations.verify.check import seal_version
from edl_ckpt.core.proof.trust import Trust
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.files import PreallocatedFile
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.core.storage.s3.upload import Upload
from places import GOLDEN
from raw_trees import lost_entries, raw_tree
from s3_fixtures import Bucket
from s3_proxy import Fault, Operation, hook, status
from system_runs import step_run
from zoo import GUESTS, settle


def copy(version: Version, target: str | Path) -> CopyResult:
    return execute_copy(plan_copy([version], str(target)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A location with three versions of four shards, the last incomplete, with metrics and tags."""
    ids = np.arange(3000)
    for number in (10, 20, 30):
        rows = np.random.default_rng(number).standard_normal((3000, 8)).astype(np.float32)
        save_checkpoint(str(tmp_path / "run"), number, 4, variables={"w": rows[:4]}, tables={"t": Table(ids, rows)})
        os.unlink(tmp_path / "run" / seal_file(number))
    os.unlink(at(tmp_path / "run", 30).shards[3].path)
    version = at(tmp_path / "run", 20)
    set_metrics(version, {"f1": 0.5})
    add_tag(version, "good")
    set_note(version, "words")
    set_modes(str(tmp_path / "run"), {"f1": "max", "other": "min"})
    return tmp_path / "run"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The small files that are read, by their names."""
    seen: list[str] = []
    read_small = LocalStore.read_small

    def counted(store: LocalStore, relative: str) -> bytes | None:
        seen.append(relative)
        return read_small(store, relative)

    monkeypatch.setattr(LocalStore, "read_small", counted)
    return seen


def test_many_versions(tmp_path: Path, reads: list[str]) -> None:
    """What is read for a version does not grow with the others: a thousand versions are no million reads."""
    each = []
    for count in (2, 8):
        run = str(tmp_path / f"run{count}")
        for number in range(1, count + 1):
            save_small(run, number)
            set_metrics(at(run, number), {"f1": number / 10})
            add_tag(at(run, number), f"tag{number}")
            add_tag(at(run, number), "shared", also=True)
        set_modes(run, {"f1": "max"})
        plan = plan_copy(list_versions(run).versions, str(tmp_path / f"out{count}"))
        reads.clear()
        assert len(execute_copy(plan).copied) == count
        each.append(len(reads) / count)
        copied = list_versions(str(tmp_path / f"out{count}"))
        assert [v.tags for v in copied.versions] == [("shared", f"tag{n}") for n in range(1, count + 1)]
        assert copied.modes == {"f1": "max"}
    assert each[1] <= each[0]


@pytest.mark.parametrize("place", ["current/ps1", "current/ps4", "legacy/v2", "legacy/v3", "multi"])
def test_golden(tmp_path: Path, place: str) -> None:
    """Every generation is copied as it is, byte for byte, and is sealed then; ElasticDL finds it as before."""
    source = tmp_path / "run"
    shutil.copytree(GOLDEN / place, source)
    versions = [v for v in list_versions(str(source), grace_seconds=0).versions if v.state == "complete"]
    result = execute_copy(plan_copy(versions, str(tmp_path / "out")))
    assert result.failed == ()
    written = shards_of(tmp_path / "out")
    assert {k: v for k, v in shards_of(source).items() if k in written} == written
    for version, copied in zip(versions, result.copied, strict=True):
        check = verify_version(at(tmp_path / "out", version.version), level="deep")
        assert (check.sealed, check.fingerprint) == (True, copied.fingerprint)
        assert check.fingerprint == verify_version(version, level="deep").fingerprint
    assert elasticdl_rules.answer(tmp_path / "out") == elasticdl_rules.answer(source)


def test_metadata_goes_along(run: Path, tmp_path: Path) -> None:
    """Metrics, tags, note and modes arrive; what the copy had besides stays; a second copy brings what is new."""
    copy(at(run, 20), tmp_path / "out")
    there = at(tmp_path / "out", 20)
    assert (there.metrics, there.tags, there.note) == ({"f1": 0.5}, ("good",), "words")
    assert list_versions(str(tmp_path / "out")).modes == {"f1": "max"}
    add_tag(there, "theirs")
    set_metrics(at(run, 20), {"f1": 0.75, "auc": 1.0})
    again = copy(at(run, 20), tmp_path / "out")
    assert again.copied[0].skipped
    there = at(tmp_path / "out", 20)
    assert (there.metrics, there.tags) == ({"f1": 0.75, "auc": 1.0}, ("good", "theirs"))


def test_a_target_made_meanwhile(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A location that another command makes just after it was found missing is listed, not called a file."""
    to = tmp_path / "to"

    def list_at_the_wrong_moment(where: Location) -> Listing:
        if to.exists():
            return list_versions(where)
        shutil.copytree(run, to)
        raise NotFoundError("no such directory", path=str(to))

    version = at(run, 20)
    monkeypatch.setattr("edl_ckpt.core.operations.copy.plan.list_versions", list_at_the_wrong_moment)
    (entry,) = plan_copy([version], str(to)).entries
    assert entry.there is not None
    assert not entry.refused


def test_mirror(run: Path, tmp_path: Path) -> None:
    """All complete versions go; what is there already is left; another content under a number is refused, and told."""
    plan = plan_copy(list_versions(str(run)).versions, str(tmp_path / "out"))
    assert [e.version.version for e in plan.entries] == [10, 20]
    assert "30" in plan.warnings[0]
    first = execute_copy(plan)
    assert [c.skipped for c in first.copied] == [False, False]
    assert first.bytes_copied == sum(e.version.size_bytes for e in plan.entries)
    second = execute_copy(plan_copy(list_versions(str(run)).versions, str(tmp_path / "out")))
    assert [(c.skipped, c.fingerprint) for c in second.copied] == [(True, c.fingerprint) for c in first.copied]
    assert second.bytes_copied == 0
    path = Path(at(run, 10).shards[0].path)
    path.write_bytes(path.read_bytes()[::-1])
    third = execute_copy(plan_copy(list_versions(str(run)).versions, str(tmp_path / "out")))
    assert [c.ref for c in third.copied] == [f"{run}@20"]
    assert [type(error) for _, error in third.failed] == [RefusedError]
    assert verify_version(at(tmp_path / "out", 10), level="deep").ok


def test_refusals(run: Path, tmp_path: Path) -> None:
    """A copy onto itself is wrong usage; an incomplete version, alone, is error 4; nothing is made."""
    with pytest.raises(UsageError):
        plan_copy([at(run, 20)], f"{run}/")
    with pytest.raises(EdlCkptError) as end:
        copy(at(run, 30), tmp_path / "out")
    assert end.value.exit_code == 4
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("whole", [0, 1, 3])
def test_goes_on(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: int) -> None:
    """What was whole when a copy was interrupted is not read again; what is left of it is gone at the end."""
    version, out = at(run, 20), tmp_path / "out"
    out.mkdir()
    with monkeypatch.context() as patched:
        calls: list[str] = []
        real = PreallocatedFile.flush

        def flush(self: PreallocatedFile) -> None:
            if self.path.endswith(".chkpt"):
                calls.append(self.path)
                if len(calls) > whole:
                    raise KeyboardInterrupt
            real(self)

        patched.setattr(PreallocatedFile, "flush", flush)
        with pytest.raises(KeyboardInterrupt):
            execute_copy(plan_copy([version], str(out)), workers=1)
    assert bool(elasticdl_rules.leftovers(out)) is (whole > 0)
    assert [v.version for v in list_versions(str(out)).versions] == []
    assert list_versions(str(out)).problems == ()  # nothing is to be recovered: the same copy resumes
    if whole:
        assert recover(str(out)).kept == ("an interrupted copy of version 20 resumes when the same copy is run again",)
    copied = copy(version, out).copied[0]
    assert copied.resumed_bytes == sum(s.size_bytes for s in version.shards[:whole])
    assert elasticdl_rules.visible(out) == {"version_20"}
    assert verify_version(at(out, 20), level="deep").findings == ()


def test_many_small_shards_are_noted_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is not written for each of many small shards; an orderly end notes all that are whole."""
    users = Table(np.arange(800, dtype=np.int64), np.ones((800, 4), np.float32))
    save_checkpoint(tmp_path / "run", 7, 80, variables={}, tables={"users": users})
    version, out, journals = at(tmp_path / "run"), tmp_path / "out", list[str]()
    real = Directory.replace

    def replace(self: Directory, name: str, data: bytes, **more: Any) -> None:
        if name == "journal.json":
            journals.append(name)
        real(self, name, data, **more)

    monkeypatch.setattr(Directory, "replace", replace)
    with monkeypatch.context() as patched:
        patched.setattr(LocalOutput, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            copy(version, out)
    assert len(journals) == 1
    assert copy(version, out).copied[0].resumed_bytes == version.size_bytes
    assert verify_version(at(out), level="deep").findings == ()


@pytest.mark.parametrize("how", ["source", "staged", "dropped"])
def test_does_not_go_on_with_something_else(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A changed source is copied anew; staged bytes that went bad are found; a dropped copy begins again."""
    version, out = at(run, 20), tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(LocalOutput, "publish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            copy(version, out)
    (staged,) = (out / ".edl-ckpt-0/stage-0/copy-20").rglob("variables-2-*")
    if how == "source":
        shutil.copy(version.shards[1].path, tmp_path / "kept")
        os.utime(version.shards[1].path, (1, 1))
        version = at(run, 20)
    elif how == "staged":
        staged.write_bytes(bytes(reversed(staged.read_bytes())))
        with pytest.raises(EdlCkptError, match="the written bytes differ"):
            copy(version, out)
        assert elasticdl_rules.leftovers(out) == []
    else:
        assert recover(str(out), drop_copies=True).done != ()
        assert elasticdl_rules.leftovers(out) == []
    assert copy(version, out).copied[0].resumed_bytes == 0
    assert verify_version(at(out, 20), level="deep").findings == ()


def test_one_lock_for_all_versions(run: Path, tmp_path: Path) -> None:
    """A copy takes the lock of the target once, for all versions; another command at work there is named."""
    taken: list[str] = []

    class Watching(SilentReporter):
        def start(self, what: str, total_bytes: int) -> None:
            owner = json.loads((tmp_path / "out/.edl-ckpt-0/lock-0").read_text())
            taken.append(f"{owner['since']} {owner['purpose']}")

    execute_copy(plan_copy(list_versions(str(run)).versions[:2], str(tmp_path / "out")), reporter=Watching())
    assert len(taken) >= 4
    assert len(set(taken)) == 1
    with (
        location_lock(str(tmp_path / "out"), "holder"),
        pytest.raises(LockedError, match=f"process {os.getpid()}.*holder"),
    ):
        execute_copy(plan_copy([at(run, 20)], str(tmp_path / "out")), wait_seconds=0)
    assert elasticdl_rules.leftovers(tmp_path / "out") == []


def test_sealed_source_that_went_bad(run: Path, tmp_path: Path) -> None:
    """A sealed source is compared chunk by chunk: a flipped bit is error 5, with shard, byte, table; nothing goes."""
    copy(at(run, 20), tmp_path / "sealed")
    path = Path(at(tmp_path / "sealed", 20).shards[2].path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="table 't'") as end:
        copy(at(tmp_path / "sealed", 20), tmp_path / "out")
    assert (end.value.code, end.value.path) == ("checksum-mismatch", str(path))
    assert not (tmp_path / "out").exists()


def test_unsealed_twin_is_compared(run: Path, tmp_path: Path) -> None:
    """A version that is there and not sealed, as a copy killed at its end leaves it, is compared, and sealed then."""
    shutil.copytree(run / "version_20", tmp_path / "out/version_20")
    assert copy(at(run, 20), tmp_path / "out").copied[0].skipped
    assert at(tmp_path / "out", 20).fingerprint
    shutil.copytree(run / "version_10", tmp_path / "other/version_20")
    with pytest.raises(RefusedError):
        copy(at(run, 20), tmp_path / "other")
    assert not at(tmp_path / "other", 20).fingerprint


def test_there_and_back(s3: Bucket, large: Path, tmp_path: Path) -> None:
    """Disk to S3, S3 to S3, S3 to disk: the same bytes, one fingerprint, sealed everywhere, no upload left open."""
    first = copy(at(large), s3.url).copied[0]
    reads = s3.proxy.response_bytes("get")
    assert reads < 1 << 20  # what S3 said it has was compared while it was sent: nothing is read back
    second = copy(at(s3.url), f"s3://{s3.name}/b").copied[0]
    third = copy(at(f"s3://{s3.name}/b"), tmp_path / "c").copied[0]
    assert first.fingerprint == second.fingerprint == third.fingerprint
    assert shards_of(tmp_path / "c") == shards_of(large)
    for place in (s3.url, f"s3://{s3.name}/b", str(tmp_path / "c")):
        check = verify_version(at(place), level="deep")
        assert (check.sealed, check.findings) == (True, ())
    assert s3.open_uploads() == []
    assert not any("stage-0" in key for key in s3.objects())


def test_small_shards_take_few_requests(s3: Bucket, tmp_path: Path) -> None:
    """A sealed shard of less than 256 KiB takes three requests up and one down, many shards at a time."""
    save_small(tmp_path / "run", 7, ps_num=24)
    together = threading.Barrier(16)
    steps: tuple[Operation, ...] = ("create_upload", "upload_part", "complete")
    for operation in steps:
        s3.proxy.fail(Fault(hook(lambda _request: together.wait(60)), operation=operation, times=16))
    copy(at(tmp_path / "run"), s3.url)
    assert [s3.proxy.count(operation, key="variables-") for operation in steps] == [24, 24, 24]
    assert s3.proxy.count("get", key="variables-") == s3.proxy.count("head", key="variables-") == 0
    s3.proxy.heal()
    version = at(s3.url)
    s3.proxy.reset()
    s3.proxy.fail(Fault(hook(lambda _request: together.wait(60)), operation="get", key="variables-", times=16))
    copy(version, tmp_path / "back")
    assert s3.proxy.count("get", key="variables-") == s3.proxy.count(key="variables-") == 24
    assert verify_version(at(tmp_path / "back"), level="deep").findings == ()
    assert shards_of(tmp_path / "back") == shards_of(tmp_path / "run")


def test_goes_on_in_s3(s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads of whole shards stay open when a copy fails, and the next one completes them; or they are dropped."""
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.pause", lambda _seconds: None)

    def interrupt(operation: Any) -> None:
        s3.proxy.fail(Fault(status(403, "AccessDenied"), operation=operation, key="1-of-2", nth=2, times=None))
        with pytest.raises(EdlCkptError):
            execute_copy(plan_copy([at(large)], s3.url), workers=1)
        s3.proxy.heal()
        assert not any("variables" in key for key in s3.objects())

    interrupt("upload_part")
    assert [key for key, _ in s3.open_uploads()] == ["run/version_7/variables-0-of-2.chkpt"]
    assert recover(s3.url).kept != ()
    assert s3.open_uploads() != []
    s3.proxy.reset()
    copied = copy(at(large), s3.url).copied[0]
    assert copied.resumed_bytes == at(large).shards[0].size_bytes
    assert s3.proxy.count("upload_part", key="0-of-2") == 0
    assert verify_version(at(s3.url), level="deep").findings == ()
    s3.delete(*s3.objects())
    interrupt("upload_part")
    assert recover(s3.url, drop_copies=True).done != ()
    assert (s3.open_uploads(), s3.objects()) == ([], {})


def test_killed_between_completions(s3: Bucket, large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When only some shards were completed before the end, the next copy completes the rest."""
    with monkeypatch.context() as patched:
        real = Upload.complete

        def complete(self: Upload, *, replace: bool = False) -> None:
            if "1-of-2" in self.path:
                raise SystemError
            real(self, replace=replace)

        patched.setattr(Upload, "complete", complete)
        patched.setattr(RemoteOutput, "__exit__", lambda *_: None)
        with pytest.raises(SystemError):
            copy(at(large), s3.url)
    assert [k for k in s3.objects() if "variables" in k] == ["run/version_7/variables-0-of-2.chkpt"]
    assert copy(at(large), s3.url).copied[0].resumed_bytes == at(large).size_bytes
    assert verify_version(at(s3.url), level="deep").findings == ()
    assert s3.open_uploads() == []


def test_other_stores(run: Path, tmp_path: Path) -> None:
    """Any filesystem of fsspec takes and gives copies, read back where it does not tell sums."""
    import fsspec

    try:
        first = copy(at(run, 20), "memory://copies/run").copied[0]
        check = verify_version(at("memory://copies/run"), level="deep")
        assert (check.sealed, check.fingerprint) == (True, first.fingerprint)
        copy(at("memory://copies/run"), tmp_path / "back")
        assert shards_of(tmp_path / "back") == {k: v for k, v in shards_of(run).items() if "version_20" in k}
    finally:
        fsspec.filesystem("memory").rm("/copies", recursive=True)


def test_journal_that_is_damaged(run: Path, tmp_path: Path) -> None:
    """Whatever is in the journal of an earlier copy, the copy comes out right."""
    whole = {"version": 20, "directory": "version_20", "source": "x", "finished": {"variables-0-of-4.chkpt": ["a"]}}
    damaged = [{"schema": "edl-ckpt/journal/1"}, {"finished": 3}, whole, whole | {"finished": {"../../x": ["a"]}}]
    for data in (b"", b"[]", b"{}", *(json.dumps(document).encode() for document in damaged)):
        stage = tmp_path / "out/.edl-ckpt-0/stage-0/copy-20"
        stage.mkdir(parents=True)
        (stage / "journal.json").write_bytes(data)
        copy(at(run, 20), tmp_path / "out")
        assert verify_version(at(tmp_path / "out", 20), level="deep").findings == ()
        shutil.rmtree(tmp_path / "out")


def test_what_appeared_before_is_read_back(s3: Bucket, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards that an earlier run made visible are compared by the run that seals them, though the source is sealed."""
    version = at(run, 20)
    text = verify_version(version, level="deep").fingerprint
    assert text is not None
    seal_version(version, text)
    version = at(run, 20)
    with monkeypatch.context() as patched:
        patched.setattr(Trust, "sign", lambda *_, **__: (_ for _ in ()).throw(SystemError))
        patched.setattr(RemoteOutput, "__exit__", lambda *_: None)
        with pytest.raises(SystemError):
            copy(version, s3.url)
    key = next(k for k in s3.objects() if "variables-1" in k)
    data = bytearray(s3.get(key))
    data[len(data) // 2] ^= 1
    s3.put(key, bytes(data), s3.metadata(key))
    with pytest.raises(EdlCkptError, match="the written bytes differ"):
        copy(version, s3.url)
    assert not any(k.endswith("seal.json") for k in s3.objects())


def test_a_copy_goes_on_after_its_links_were_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of a step that is interrupted when links and directories are made already goes on to its end."""
    run = step_run(tmp_path / "run", (5,))
    for guest in ("dangling", "linked-directory", "empty", "read-only"):
        GUESTS[guest](run / "step_5")
    settle(run)
    real = Carrying.finish

    def failing(self: Carrying, inside: Directory) -> set[str]:
        real(self, inside)
        raise EdlCkptError("input/output error", path=inside.path)

    with monkeypatch.context() as patch:
        patch.setattr(Carrying, "finish", failing)
        with pytest.raises(EdlCkptError, match="input/output error"):
            copy(at(run, 5), tmp_path / "out")
    copy(at(run, 5), tmp_path / "out")
    assert os.readlink(tmp_path / "out/step_5/gone") == "/no/such/place"
    own = {"__0_0.distcp", "__1_0.distcp", ".metadata"}
    assert lost_entries(raw_tree(run / "step_5"), raw_tree(tmp_path / "out/step_5"), own) == {}
