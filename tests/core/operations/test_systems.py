"""The verbs that keep and change versions of other systems: whole, byte for byte, and as safe as ElasticDL's own."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import (
    CopyResult,
    Policy,
    Version,
    add_tag,
    convert_version,
    diff_versions,
    execute_copy,
    list_versions,
    location_lock,
    open_checkpoint,
    plan_copy,
    read_policy,
    recover,
    reshard_version,
    resolve,
    save_checkpoint,
    set_metrics,
    set_note,
    store_policy,
    verify_version,
    wait_for_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError, UnsupportedError, UsageError
from edl_ckpt.core.commit.repair.kinds import kind_of
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.prune.execute import prune as prune_locations
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import Latest
from edl_ckpt.core.operations.undo import undo
from edl_ckpt.core.operations.verify.check import verify_and_seal
from edl_ckpt.core.reading.part_records import records_of
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.beneath import Directory
from edl_ckpt.core.storage.s3.store import S3Store
from edl_ckpt.core.storage.s3.upload import Upload
from forked import run_forked
from s3_fixtures import Bucket
from system_runs import bundle_run, settled, step_run, tree

MAKERS = {"steps": step_run, "bundles": bundle_run}
Make = Callable[[Path], Path]


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    """Return what makes the runs of one system."""
    return MAKERS[request.param]


def prune(place: str | Path, keep: int = 1, *, trash: bool = False, guards: Guards | None = None) -> list[str]:
    """Keep the latest versions, and return the others."""
    return list(prune_locations([str(place)], Policy((Latest(keep),)), trash=trash, guards=guards or Guards()).deleted)


def copy_versions(versions: Sequence[Version], target: str) -> CopyResult:
    return execute_copy(plan_copy(versions, target))


def without_record(place: Path) -> dict[str, bytes]:
    """Return the files of a location but for TensorFlow's record of the newest one, which a copy writes."""
    return {name: data for name, data in tree(place).items() if name != "checkpoint"}


def check_whole(place: str | Path, *wanted: int) -> None:
    """Assert that a location has these versions, and that a deep verification finds nothing wrong with them."""
    versions = list_versions(str(place)).versions
    assert [(v.version, v.state) for v in versions] == [(number, State.COMPLETE) for number in wanted]
    for version in versions:
        assert verify_version(version, level="deep").findings == ()


def test_copy(tmp_path: Path, make: Make) -> None:
    """A copy has all files under their names, with metadata and a seal; the same again copies nothing."""
    run = make(tmp_path / "run")
    add_tag(at(run, 20), "good")
    set_metrics(at(run, 20), {"auc": 0.5})
    set_note(at(run, 10), "first")
    versions = list_versions(str(run)).versions
    assert not any(copied.skipped for copied in copy_versions(versions, str(tmp_path / "other")).copied)
    assert without_record(tmp_path / "other") == tree(run)
    check_whole(tmp_path / "other", 10, 20, 30)
    copied = at(tmp_path / "other", 20)
    assert (copied.tags, copied.metrics, bool(copied.fingerprint)) == (("good",), {"auc": 0.5}, True)
    assert at(tmp_path / "other", "latest").version == 30
    again = copy_versions(list_versions(str(run)).versions, str(tmp_path / "other"))
    assert all(copied.skipped for copied in again.copied)


def test_copy_to_s3_and_back(tmp_path: Path, make: Make, s3: Bucket) -> None:
    """On object storage a copy has the same keys, is sealed, and the file that makes it whole appears last."""
    run = make(tmp_path / "run")
    copy_versions([at(run, 30)], s3.url)
    files = [r.key for r in s3.proxy.requests if r.operation in {"put", "complete"} and "/.edl-ckpt-0/" not in r.key]
    assert [key for key in files if not key.endswith("/checkpoint")][-1].endswith((".metadata", ".index"))
    check_whole(s3.url, 30)
    copy_versions([at(s3.url, 30)], str(tmp_path / "back"))
    only_30 = {name: data for name, data in tree(run).items() if "30" in name.partition("/")[0]}
    assert without_record(tmp_path / "back") == only_30
    check_whole(tmp_path / "back", 30)


def test_markers_of_directories(tmp_path: Path, s3: Bucket) -> None:
    """Objects that stand for directories, as consoles of S3 write them, are no files of a step."""
    run = step_run(tmp_path / "run", (10,))
    s3.upload(run)
    for key in ("run/step_10/", "run/step_10/huggingface/"):
        s3.put(key, b"")
    copy_versions([at(s3.url, 10)], str(tmp_path / "back"))
    assert tree(tmp_path / "back") == tree(run)


def test_prune_on_s3(tmp_path: Path, make: Make, s3: Bucket) -> None:
    """A prune removes the files of a version, its index first, and leaves nothing of it but other versions."""
    run = make(tmp_path / "run")
    if make is bundle_run:
        (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-30"\n')  # its saves have ended
    s3.upload(run)
    add_tag(at(s3.url, 10), "good")
    assert prune(s3.url) == [f"{s3.url}@20"]
    check_whole(s3.url, 10, 30)
    assert not any("20" in key for key in s3.objects() if "/verdicts-" not in key)
    assert at(s3.url, 10).tags == ("good",)


def test_trash_and_undo(tmp_path: Path, make: Make) -> None:
    """`--trash` moves all files of a version, and undo puts back each of them, with tags and notes."""
    run = make(tmp_path / "run")
    set_note(at(run, 10), "first")
    verify_and_seal(at(run, 20))
    before = tree(run)
    assert prune(run, trash=True) == [f"{run}@10", f"{run}@20"]
    check_whole(run, 30)
    assert len(undo(str(run))) == 2
    assert tree(run) == before
    check_whole(run, 10, 20, 30)
    assert (at(run, 10).note, bool(at(run, 20).fingerprint)) == ("first", True)
    assert not (run / ".edl-ckpt-0/trash-0").exists()


def test_prune(tmp_path: Path, make: Make) -> None:
    """The newest whole version and a tagged one stay, and a torn one does not count."""
    run = make(tmp_path / "run")
    add_tag(at(run, 10), "good")
    for index in (run / "model.ckpt-30.index", run / "step_30/.metadata"):
        index.unlink(missing_ok=True)
    settled(run)
    assert at(run, "latest").version == 20
    assert prune(run) == []
    assert prune(run, guards=Guards(incomplete=True)) == []  # it is newer than the newest whole one
    add_tag(at(run, 10), "good")
    assert prune(run, guards=Guards(drop_tags=("good",), delete=(30,))) == [f"{run}@10", f"{run}@30"]
    check_whole(run, 20)
    assert all("20" in name for name in tree(run))


def test_two_spellings(tmp_path: Path) -> None:
    """Of two directories with one number only one has it, and rules take it; the other keeps its name and its tag.

    A number that is to be deleted names neither of them.
    """
    run = step_run(tmp_path / "run", (100, 200))
    step_run(tmp_path / "run", (100,), "checkpoint-")
    add_tag(next(v for v in list_versions(str(run)).versions if v.path.endswith("step_100")), "good")
    with pytest.raises(UsageError, match="version 100 exists twice"):
        prune_locations([str(run)], Policy(()), guards=Guards(delete=(100,), drop_tags=("good",)))
    assert prune(run, guards=Guards(drop_tags=("good",))) == [f"{run}@100"]
    for _ in range(2):
        check_whole(run, 100, 200)
        other, _ = list_versions(str(run)).versions
        assert (other.name, other.key, other.tags) == ("step_100", "step_100", ("good",))
        assert prune(run) == []


def test_metadata_of_the_other_spelling(tmp_path: Path) -> None:
    """The metadata of a number stays as long as one directory has it."""
    run = step_run(tmp_path / "run", (100, 200))
    set_note(at(run, 100), "kept")
    step_run(tmp_path / "run", (100,), "checkpoint-")
    shutil.rmtree(run / "step_100")
    step_run(tmp_path / "run", (50,))
    assert prune(run, keep=2) == [f"{run}@50"]
    assert at(run, 100).note == "kept"


def test_systems_and_elasticdl(tmp_path: Path, make: Make) -> None:
    """ElasticDL's versions and others never get into one location: its scan crashes on their names."""
    run = make(tmp_path / "run")
    save_small(tmp_path / "ours", 7)
    for source, target in ((at(run), tmp_path / "ours"), (at(tmp_path / "ours"), run)):
        with pytest.raises(RefusedError, match="scan crashes on the names of other systems"):
            copy_versions([source], str(target))
    with pytest.raises(RefusedError, match="ElasticDL's scan crashes"):
        save_checkpoint(str(run), 40, 1, variables={}, tables={})
    with pytest.raises(UnsupportedError, match="not written"):
        reshard_version(at(run), 2)
    with pytest.raises(RefusedError, match="ElasticDL's scan crashes"):
        reshard_version(at(run), 2, output=str(run))
    values, plus, items = (verify_and_seal(at(run)).fingerprint or "").partition("+")
    assert (plus, bool(items)) == ("+", True)  # a shard of ElasticDL cannot contain items: they stay behind, by name
    done = reshard_version(at(run), 2, output=str(tmp_path / "new"))
    with open_checkpoint(at(run)) as checkpoint:
        records = sorted(records_of(checkpoint))  # they are content of the bundle alone
    assert (done.fingerprint == values) is not bool(records)
    assert records == sorted(diff_versions(at(run), at(tmp_path / "new")).not_compared)
    codes = {finding.code for finding in verify_version(at(tmp_path / "new")).findings}
    assert "unknown-initializer" not in codes, "ElasticDL restores what was a table of another system"
    check_whole(run, 10, 20, 30)
    assert numbers(tmp_path / "ours") == [7]


def test_a_directory_with_a_number(tmp_path: Path) -> None:
    """A directory that has the name of a step, and no checkpoint in it, takes no number and no layout."""
    (tmp_path / "run/7").mkdir(parents=True)
    (tmp_path / "run/7/notes.txt").write_text("of trial 7")
    save_small(tmp_path / "run", 7)
    assert numbers(tmp_path / "run") == [7]


def test_undo_beside_elasticdl(tmp_path: Path, make: Make) -> None:
    """A deletion stays in the trash while the location has versions of ElasticDL."""
    run = make(tmp_path / "run")
    prune(run, trash=True)
    for path in run.iterdir():
        if path.name != ".edl-ckpt-0":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    save_small(run, 7)
    with pytest.raises(RefusedError, match="nothing was restored"):
        undo(str(run))
    assert numbers(run) == [7]


def test_seal_of_all_files(tmp_path: Path) -> None:
    """A seal covers the files that no format knows; a changed byte in one is found, and named by its path."""
    run = step_run(tmp_path / "run", (10,))
    assert verify_and_seal(at(run)).sealed
    path = run / "step_10/huggingface/config.json"
    path.write_bytes(path.read_bytes().replace(b"10", b"11"))
    settled(run)
    (finding,) = verify_version(at(run), level="deep").findings
    assert finding.code == "checksum-mismatch"
    assert str(finding.path or finding.message).endswith("huggingface/config.json")
    path.unlink()
    assert any("huggingface/config.json" in f.message for f in verify_version(at(run)).findings)


def test_a_checkpoint_by_itself(tmp_path: Path) -> None:
    """A directory that is a checkpoint, and no step of a location, has no metadata, no seal, and no copy."""
    final = tmp_path / "final"
    shutil.copytree(step_run(tmp_path / "run", (10,)) / "step_10", final)
    version = resolve(str(final))
    for refused in (lambda: add_tag(version, "good"), lambda: copy_versions([version], str(tmp_path / "other"))):
        with pytest.raises(RefusedError, match=r"a single checkpoint|by itself"):
            refused()
    with pytest.raises(RefusedError, match=r"a single checkpoint|by itself"):
        verify_and_seal(version)
    assert sorted(os.listdir(tmp_path)) == ["final", "run"]


def test_unlistable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step directory that cannot be listed now is unreadable: it may be whole, so nothing deletes it."""
    run = step_run(tmp_path / "run")
    scandir = os.scandir

    def scanned(path: str | int) -> Any:
        if str(path).endswith("step_10"):
            raise OSError(errno.EIO, "Input/output error", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scanned)
    assert [v.state for v in list_versions(str(run)).versions] == [State.UNREADABLE, State.COMPLETE, State.COMPLETE]
    assert prune(run) == [f"{run}@20"]
    with pytest.raises(EdlCkptError, match="input/output error"):
        copy_versions([at(run, 10)], str(tmp_path / "other"))
    monkeypatch.setattr(os, "scandir", scandir)
    check_whole(run, 10, 30)


def test_nothing_in_a_step(tmp_path: Path) -> None:
    """Our state lies beside step directories, and no command writes into one."""
    run = step_run(tmp_path / "run", (10,))
    add_tag(resolve(str(run / "step_10")), "good")
    assert sorted(os.listdir(run)) == [".edl-ckpt-0", "step_10"]
    with pytest.raises(UsageError, match="one version's directory"):
        copy_versions([at(run)], str(run / "step_10"))
    assert ".edl-ckpt-0" not in os.listdir(run / "step_10")


KILLED = 9


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> bool:
    """Run an action in a process that ends right before a rename of so many; say whether it came so far."""
    rename, calls = Directory.rename_new, []

    def counted(directory: Directory, name: str, to: Directory, new: str) -> None:
        calls.append(name)
        if len(calls) == number:
            os._exit(KILLED)
        rename(directory, name, to, new)

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "rename_new", counted)
        code = run_forked(action)
    assert code in {0, KILLED}
    return code == KILLED


def copy_first(run: Path) -> None:
    """Copy the first version to a location beside the run."""
    copy_versions([at(run, 10)], f"{run}-copy")


def trash_first(run: Path) -> None:
    """Move the first version into the trash."""
    prune(run, keep=2, trash=True)


@pytest.mark.parametrize("step", [trash_first, undo, copy_first])
def test_killed_between_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: Callable[[Path], object]) -> None:
    """A kill between two files of a bundle leaves nothing that looks whole; the next command finishes or undoes it."""
    for number in (2, 3, 4):
        run = bundle_run(tmp_path / f"run-{number}")
        before = tree(run)
        if step is undo:
            trash_first(run)
        assert killed_at(monkeypatch, number, partial(step, run)) == (number < 4)
        for place in filter(Path.exists, (run, Path(f"{run}-copy"))):
            recover(str(place))
            check_whole(place, *numbers(place))
        assert at(run, "latest").version == 30
        if numbers(run) == [20, 30]:
            undo(str(run))
        assert tree(run) == before


def test_other_stores(tmp_path: Path, make: Make) -> None:
    """Any file system of fsspec takes copies in sub-directories, gives them back, and loses what a prune deletes."""
    import fsspec

    run, place = make(tmp_path / "run"), "memory://systems/run"
    try:
        copy_versions(list_versions(str(run)).versions, place)
        check_whole(place, 10, 20, 30)
        assert prune(place) == [f"{place}@10", f"{place}@20"]
        check_whole(place, 30)
        left = fsspec.filesystem("memory").find("/systems/run", withdirs=True)
        assert not [name for name in left if "/step_10" in name or "ckpt-10" in name]
    finally:
        fsspec.filesystem("memory").rm("/systems", recursive=True)


def ends_at(monkeypatch: pytest.MonkeyPatch, of: type, name: str, number: int, action: Callable[[], object]) -> None:
    """Run an action in a process that ends right before a call of a method, the first of so many that go on."""
    method, calls = getattr(of, name), []

    def counted(*args: object, **kwargs: object) -> object:
        calls.append(args)
        if len(calls) == number:
            os._exit(KILLED)
        return method(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(of, name, counted)
        assert run_forked(action) == KILLED


@pytest.mark.parametrize(
    "number", [2, pytest.param(1, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)]
)
def test_killed_deletion_on_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, s3: Bucket, number: int
) -> None:
    """Killed before its index goes, after that, or when only its metadata is left: the next command finishes it."""
    run = make(tmp_path / "run")
    if make is bundle_run:
        (run / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-30"\n')  # its saves have ended
    s3.upload(run)
    set_note(at(s3.url, 10), "first")
    ends_at(monkeypatch, S3Store, "remove_each", number, partial(prune, s3.url, keep=2))
    assert at(s3.url).version == 30
    recover(s3.url)
    check_whole(s3.url, 20, 30)
    assert not [key for key in s3.objects() if "10" in key.removeprefix("run/.edl-ckpt-0/")]


@pytest.mark.parametrize("number", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_copy_on_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make, s3: Bucket, number: int
) -> None:
    """Killed before an object is completed, a copy is no whole version; the same copy goes on, and completes it."""
    run = make(tmp_path / "run")
    ends_at(monkeypatch, Upload, "complete", number, partial(copy_versions, [at(run, 20)], s3.url))
    assert not any(key.endswith((".index", ".metadata")) for key in s3.objects())
    copied = copy_versions([at(run, 20)], s3.url).copied[0]
    assert copied.resumed_bytes == copied.size_bytes
    check_whole(s3.url, 20)
    assert (s3.state(), s3.open_uploads()) == ([], [])


def test_number_of_two_on_s3(tmp_path: Path, s3: Bucket) -> None:
    """The metadata of a number stays when one of two directories with it is deleted."""
    s3.upload(step_run(tmp_path / "run", (100, 200)))
    set_note(at(s3.url, 100), "kept")
    s3.upload(step_run(tmp_path / "other", (100,), "checkpoint-"))
    doomed = next(v for v in list_versions(s3.url).versions if v.path.endswith("/checkpoint-100"))
    store = open_store(s3.url)
    with location_lock(s3.url, "test"):
        assert kind_of(store).trash.delete([doomed]).deleted == (doomed,)
    assert at(s3.url, 100).note == "kept"


def test_without_renames_of_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    """Where a directory cannot be renamed, as on overlayfs, a prune removes its files, the index first."""
    run, rename, removed = make(tmp_path / "run"), Directory.rename, []

    def renamed(directory: Directory, name: str, to: Directory, new: str) -> None:
        if name.startswith("step_"):
            raise UnsupportedError("cannot be renamed", path=name)
        rename(directory, name, to, new)

    monkeypatch.setattr(Directory, "rename", renamed)
    unlink = Directory.unlink

    def unlinked(directory: Directory, name: str) -> None:
        removed.append(name)
        unlink(directory, name)

    monkeypatch.setattr(Directory, "unlink", unlinked)
    assert prune(run) == [f"{run}@10", f"{run}@20"]
    check_whole(run, 30)
    assert sorted(os.listdir(run)) == sorted({name.partition("/")[0] for name in tree(run)})
    assert "step" not in run.name or removed[0] == ".metadata"


def test_policy_and_wait(tmp_path: Path, make: Make) -> None:
    """A stored policy prunes, and `wait` returns a step that is whole."""
    run = make(tmp_path / "run")
    store_policy(str(run), Policy((Latest(2),)))
    assert read_policy(str(run)) == Policy((Latest(2),))
    assert prune_locations([str(run)], Policy()).deleted == (f"{run}@10",)
    assert wait_for_version(str(run), timeout_seconds=5.0).version == at(run, 30)


@pytest.mark.parametrize("system", [*MAKERS, "elasticdl"])
@pytest.mark.parametrize("keep_old", [False, True])
def test_a_version_keeps_its_number_in_its_own_place(tmp_path: Path, system: str, keep_old: bool) -> None:
    """Another number is refused before anything is written; its own number is no other one."""
    run = tmp_path / "run"
    if system == "elasticdl":
        run.mkdir()
        save_small(run, 100)
    else:
        run = MAKERS[system](tmp_path)
    newest = numbers(run)[-1]
    before = tree(run)
    with pytest.raises(UsageError, match="keeps its number, and does not become 7"):
        convert_version(at(run, newest), 2, number=7, keep_old=keep_old)
    assert tree(run) == before
    if system != "bundles":  # files side by side are replaced by no number
        convert_version(at(run, newest), 2, number=newest, force=True)
        check_whole(run, *numbers(run))
        assert newest in numbers(run)
