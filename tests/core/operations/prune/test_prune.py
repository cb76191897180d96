from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import elasticdl_rules
from edl_ckpt.core import save_checkpoint, verify_version
from edl_ckpt.core.checkpoint.catalog import list_versions, parse_ref, resolve
from edl_ckpt.core.commit.trash import list_trash, purge_all, undo
from edl_ckpt.core.errors import LockedError, NotFoundError, RefusedError, UnsupportedError
from edl_ckpt.core.format.model import State
from edl_ckpt.core.operations.prune.execute import PruneResult, execute_prune, locked
from edl_ckpt.core.operations.prune.own_shard import remove_own_shard
from edl_ckpt.core.operations.prune.plan import Guards, PrunePlan, find_unreadable, make_plan
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.save import Table
from edl_ckpt.core.state.annotate import add_tag, set_metrics, set_note
from edl_ckpt.core.state.lock import LocationLock
from edl_ckpt.core.state.owner import describe
from edl_ckpt.core.state.paths import seal_file
from edl_ckpt.core.storage import files as publish
from edl_ckpt.core.storage.local import LocalStore
from places import GOLDEN

NOW = time.time() + 3600.0
"""Long after what a test writes: nothing is still being written."""


def save(location: Path, *versions: int, ps_num: int = 2) -> None:
    """Save versions as ElasticDL spells them, and does not seal them."""
    table = Table(np.arange(8, dtype=np.int64), np.ones((8, 2), np.float32))
    for version in versions:
        save_checkpoint(str(location), version, ps_num, variables={}, tables={"t": table}, layout="elasticdl")
        LocalStore(str(location)).remove(seal_file(version))


def numbers(location: Path | str) -> list[int]:
    """Return the versions that are there."""
    return [v.version for v in list_versions(str(location)).versions]


def plan_for(*locations: Path, keep: int = 1, guards: Guards | None = None) -> PrunePlan:
    """Return the plan that keeps the latest of each location."""
    return make_plan([str(p) for p in locations], Policy((Latest(keep),)), NOW, guards=guards or Guards())


def prune(*locations: Path, keep: int = 1, trash: bool = False, guards: Guards | None = None) -> PruneResult:
    """Plan and execute."""
    with locked(map(str, locations)):
        return execute_prune(plan_for(*locations, keep=keep, guards=guards), NOW, trash=trash)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with five complete versions, the first tagged, with metrics and a note."""
    save(tmp_path / "run", 1, 2, 3, 4, 5)
    first = resolve(parse_ref(f"{tmp_path}/run@1"))
    add_tag(first, "prod")
    second = resolve(parse_ref(f"{tmp_path}/run@2"))
    set_metrics(second, {"auc": 0.5})
    set_note(second, "second")
    return tmp_path / "run"


def check_whole(location: Path) -> None:
    """Assert that every version there verifies, and that ElasticDL's scan finds the newest."""
    versions = list_versions(str(location)).versions
    for version in versions:
        assert verify_version(version, level="deep").ok
    name = elasticdl_rules.latest_valid(location)
    assert name == f"version-{max(v.version for v in versions)}"


def test_prune_deletes(run: Path) -> None:
    """What no rule keeps is gone, with what was known of it; nothing else is touched, and nothing of ours is left."""
    result = prune(run)
    assert numbers(run) == [1, 5]
    assert [ref.rpartition("@")[2] for ref in result.deleted] == ["2", "3", "4"]
    assert result.freed_bytes > 0
    assert sorted(p.name for p in (run / ".edl-ckpt-0").iterdir()) == ["meta-0"]
    assert {p.name for p in (run / ".edl-ckpt-0/meta-0").iterdir()} == {"1.json"}
    check_whole(run)
    assert prune(run).deleted == ()


def test_trash_and_undo(run: Path) -> None:
    """`--trash` keeps what was deleted, whole; undo puts back the last deletion, files, metrics and note."""
    before = {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert prune(run, keep=3, trash=True).freed_bytes == 0
    assert prune(run, keep=1, trash=True).deleted
    assert numbers(run) == [1, 5]
    assert elasticdl_rules.latest_valid(run) == "version-5"
    assert undo(str(run)) == ("version-3", "version-4")
    assert undo(str(run)) == ("version-2",)
    assert {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()} == before
    assert not (run / ".edl-ckpt-0/trash-0").exists()
    check_whole(run)
    with pytest.raises(NotFoundError, match="nothing to undo"):
        undo(str(run))


def test_undo_when_the_name_is_taken(run: Path) -> None:
    """A job that saved the same version again keeps its own: undo refuses before anything moves."""
    prune(run, keep=3, trash=True)
    save(run, 2)
    with pytest.raises(RefusedError, match="version-2 exists again"):
        undo(str(run))
    assert numbers(run) == [1, 2, 3, 4, 5]
    assert [entry.names for entry in list_trash(str(run))] == [("version-2",)]


def test_purge(run: Path) -> None:
    """Purging empties the trash, or what is in it for long enough, and says how much that was."""
    prune(run, keep=3, trash=True)
    with locked([str(run)]):
        assert purge_all([str(run)], now=time.time(), older_than_seconds=3600).freed_bytes == 0
        assert len(list_trash(str(run))) == 1
        assert purge_all([str(run)], now=time.time()).freed_bytes > 0
    assert list_trash(str(run)) == []
    assert not (run / ".edl-ckpt-0/trash-0").exists()


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda run: save(run, 6), False),
        (lambda run: shutil.rmtree(run / "version-3"), False),
        (lambda run: shutil.rmtree(run / "version-5"), True),
        (lambda run: os.truncate(run / "version-5/variables-0-of-2.ckpt", 3), True),
        (lambda run: (run / "version-3/variables-0-of-2.ckpt").write_bytes(b""), True),
        (lambda run: add_tag(resolve(parse_ref(f"{run}@3")), "keep"), True),
        (lambda run: set_metrics(resolve(parse_ref(f"{run}@3")), {"auc": 0.9}), True),
        (lambda run: (run / ".edl-ckpt-0/meta-0/3.json").write_text("{"), True),
        (lambda run: (run / "version-3/notes.txt").write_text("x"), True),
    ],
)
def test_stale_plans(run: Path, change: Any, refused: bool) -> None:
    """A plan is refused, before anything is deleted, when what it deletes or counts on has changed; else it is done."""
    plan = plan_for(run)
    change(run)
    before = numbers(run)
    with locked([str(run)]):
        if refused:
            with pytest.raises(RefusedError, match="stale"):
                execute_prune(plan, NOW)
            assert numbers(run) == before
        else:
            execute_prune(plan, NOW)
            assert not {2, 3, 4} & set(numbers(run))


def test_newest_is_half_written(run: Path) -> None:
    """All files of a version are there while its last one is still being written: the version before it stays."""
    shard = run / "version-5/variables-1-of-2.ckpt"
    os.truncate(shard, shard.stat().st_size // 2)
    plan = plan_for(run)
    assert any("version 5" in w or "@5" in w for w in plan.warnings)
    prune(run)
    assert numbers(run) == [1, 4, 5]


def test_symbolic_links_are_not_followed(run: Path, tmp_path: Path) -> None:
    """A version that is a link to elsewhere: the link goes, what it points to stays."""
    shutil.move(run / "version-3", tmp_path / "elsewhere")
    (run / "version-3").symlink_to(tmp_path / "elsewhere")
    prune(run)
    assert numbers(run) == [1, 5]
    assert len(list((tmp_path / "elsewhere").iterdir())) == 2


def test_single_files(tmp_path: Path) -> None:
    """Checkpoints of one file, before sharding, are pruned like any other, and put back."""
    source = next(GOLDEN.rglob("model_v*"))
    for number in (1, 2, 3):
        shutil.copy(source, tmp_path / f"model_v{number}.chkpt")
    prune(tmp_path, trash=True)
    assert numbers(tmp_path) == [3]
    assert undo(str(tmp_path)) == ("model_v1.chkpt", "model_v2.chkpt")
    assert numbers(tmp_path) == [1, 2, 3]


def test_gone_already(run: Path) -> None:
    """What another process deleted between plan and execution is no error."""
    plan = plan_for(run)
    shutil.rmtree(run / "version-2")
    with locked([str(run)]):
        result = execute_prune(plan, NOW)
    assert [ref.rpartition("@")[2] for ref in result.deleted] == ["3", "4"]


def test_metadata_of_gone_versions_is_forgotten(run: Path) -> None:
    """ElasticDL deletes versions too; a number that comes again must not inherit their tags and metrics."""
    shutil.rmtree(run / "version-2")
    prune(run, keep=4)
    save(run, 2)
    assert resolve(parse_ref(f"{run}@2")).metrics == {}


def test_lock(run: Path) -> None:
    """One of our commands at a time: the second waits, then gives up with who holds the lock; a free one is taken."""
    with LocationLock(str(run), "first"):
        owner = json.loads((run / ".edl-ckpt-0/lock-0").read_text())
        assert (owner["pid"], owner["purpose"]) == (os.getpid(), "first")
        assert elasticdl_rules.latest_valid(run) == "version-5"
        with pytest.raises(LockedError, match=f"process {os.getpid()}"), LocationLock(str(run), "b", wait_seconds=0.1):
            pass
    assert not (run / ".edl-ckpt-0/lock-0").exists()
    with LocationLock(str(run), "second", wait_seconds=0):
        pass


@pytest.mark.parametrize(("host", "age", "taken"), [(None, 0, True), ("elsewhere", 0, False), ("elsewhere", 900, True)])
def test_stale_lock(run: Path, host: str | None, age: float, taken: bool) -> None:
    """A lock left by a killed process is taken over and said so; one of another host only when it was not touched."""
    path = run / ".edl-ckpt-0/lock-0"
    owner = {**describe("prune"), "pid": 1}
    path.write_text(json.dumps({**owner, "host": host or owner["host"]}))
    os.utime(path, (time.time() - age, time.time() - age))
    told: list[str] = []
    lock = LocationLock(str(run), "mine", wait_seconds=0.1, warn=told.append)
    if taken:
        with lock:
            pass
        assert "took over" in told[0]
    else:
        with pytest.raises(LockedError, match="elsewhere"), lock:
            pass


def test_store_without_rename() -> None:
    """On storage without rename versions are deleted, a trash is refused, and the first removal makes one invalid."""
    import fsspec

    from edl_ckpt.core.storage.fsspec import FsspecStore

    fs = fsspec.filesystem("memory")
    for source in (GOLDEN / "multi").rglob("*.ckpt"):
        fs.pipe_file(f"/prune/run/{source.parent.name}/{source.name}", source.read_bytes())
    location = "memory://prune/run"
    set_metrics(resolve(parse_ref(f"{location}@9")), {"auc": 0.5})
    plan = make_plan([location], Policy((Latest(1),)), NOW)
    assert [e.version for e in plan.deletions] == [9]
    with pytest.raises(UnsupportedError):
        execute_prune(plan, NOW, trash=True)
    states: list[str] = []
    remove = FsspecStore.remove

    def watched(store: FsspecStore, relative: str) -> None:
        remove(store, relative)
        states.extend(v.state for v in list_versions(location, now=NOW).versions if v.version == 9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FsspecStore, "remove", watched)
        execute_prune(plan, NOW)
    assert states == [State.INCOMPLETE]
    assert numbers(location) == [20, 100]
    assert not fs.exists("/prune/run/.edl-ckpt-0/meta-0/9.json")


def test_per_server_rule(tmp_path: Path) -> None:
    """Each server removes its own shard of the smallest version; the last one removes the directory."""
    save(tmp_path, 1, 2, 3, ps_num=3)
    assert remove_own_shard(str(tmp_path), 0, 3, 0) == ()
    assert remove_own_shard(str(tmp_path), 0, 3, 2) == (str(tmp_path / "version-1/variables-0-of-3.ckpt"),)
    assert remove_own_shard(str(tmp_path), 0, 3, 2) == ()
    remove_own_shard(str(tmp_path), 1, 3, 2)
    assert remove_own_shard(str(tmp_path), 2, 3, 2) == (
        str(tmp_path / "version-1/variables-2-of-3.ckpt"),
        str(tmp_path / "version-1"),
    )
    assert numbers(tmp_path) == [2, 3]


def test_per_server_rule_is_safe(tmp_path: Path) -> None:
    """Never of the last complete version, though a newer one is begun or torn; never of a tagged one."""
    save(tmp_path, 1, 2, 3)
    add_tag(resolve(parse_ref(f"{tmp_path}@1")), "prod")
    os.unlink(tmp_path / "version-3/variables-1-of-2.ckpt")
    assert remove_own_shard(str(tmp_path), 0, 2, 1) == ()
    save(tmp_path, 4)
    os.truncate(tmp_path / "version-4/variables-1-of-2.ckpt", 5)
    removed = remove_own_shard(str(tmp_path), 0, 2, 1)
    assert removed == (str(tmp_path / "version-3/variables-0-of-2.ckpt"), str(tmp_path / "version-3"))
    assert list_versions(str(tmp_path)).versions[1].state is State.COMPLETE


def test_go_server_story(tmp_path: Path) -> None:
    """What Go servers leave: orphans, a restart that counts anew with other shards, mixed counts in one directory.

    `list` tells each apart, `verify` says what is wrong, `prune` deletes orphans when asked and nothing else of it.
    """
    save(tmp_path, 60, 80, 100)
    for orphan in (20, 40):
        save(tmp_path, orphan)
        os.unlink(tmp_path / f"version-{orphan}/variables-0-of-2.ckpt")
    save(tmp_path / "restarted", 1, 60, ps_num=4)
    for shard in (tmp_path / "restarted/version-60").iterdir():
        shutil.copy(shard, tmp_path / "version-60")
    shutil.move(tmp_path / "restarted/version-1", tmp_path / "version-1")
    shutil.rmtree(tmp_path / "restarted")
    old, young = NOW - 86_400, NOW - 7200
    for path in tmp_path.rglob("*"):
        when = young if path.parent.name == "version-1" or path.name == "version-1" else old
        os.utime(path, (when, when))
    listing = list_versions(str(tmp_path), now=NOW)
    assert [(v.version, v.state.value, v.ps_num) for v in listing.versions] == [
        (1, "complete", 4),
        (20, "incomplete", 2),
        (40, "incomplete", 2),
        (60, "mixed", None),
        (80, "complete", 2),
        (100, "complete", 2),
    ]
    codes = {v.version: sorted({f.code for f in verify_version(v).findings}) for v in listing.versions}
    assert codes == {
        1: [],
        20: ["missing-shard"],
        40: ["missing-shard"],
        60: ["mixed-ps-num"],
        80: [],
        100: [],
    }
    plan = plan_for(tmp_path, guards=Guards(incomplete=True))
    assert {e.version: e.action.value for e in plan.entries} == {
        1: "keep",
        20: "delete",
        40: "delete",
        60: "keep",
        80: "delete",
        100: "keep",
    }
    assert "written long after higher numbers: version 1" in plan.warnings[0]
    prune(tmp_path, guards=Guards(incomplete=True))
    assert numbers(tmp_path) == [1, 60, 100]
    prune(tmp_path, guards=Guards(delete=(60,)))
    assert numbers(tmp_path) == [1, 100]


def test_find_unreadable_stops_at_the_first_good_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many versions are opened as are needed to find a good one: usually one."""
    from edl_ckpt.core.checkpoint import reader

    opened: list[int] = []
    real = reader.open_checkpoint

    def counted(version: Any, **options: Any) -> Any:
        opened.append(version.version)
        return real(version, **options)

    monkeypatch.setattr(reader, "open_checkpoint", counted)
    assert find_unreadable(list_versions(str(run)).versions) == {}
    assert opened == [5]


OPERATIONS = ("rename", "unlink", "rmdir", "mkdir", "open", "fsync", "pwrite", "replace", "ftruncate")


def kill_at(k: int, action: Any) -> bool:
    """Run an action in a child process that is killed before its k-th file operation; say whether it was."""
    pid = os.fork()
    if pid:
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert ended in {0, 9}
        return ended == 9
    count = 0

    def killing(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == k:
                os._exit(9)
            return function(*arguments, **options)

        return call

    try:
        for name in OPERATIONS:
            setattr(os, name, killing(getattr(os, name)))
        publish._rename = killing(publish._rename)
        action()
        os._exit(0)
    finally:
        os._exit(1)


def points(tmp_path: Path, run: Path, action: Any) -> Iterator[Path]:
    """Yield a fresh copy of a location for each file operation of an action, killed before that operation."""
    for k in range(1, 500):
        copy = tmp_path / f"kill-{k}"
        shutil.copytree(run, copy)
        killed = kill_at(k, lambda copy=copy: action(copy))
        yield copy
        shutil.rmtree(copy)
        if not killed:
            print(f"{k - 1} points")
            assert k > 15
            return
    pytest.fail("it never came to an end")


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("trash", [False, True])
def test_kill_at_each_operation_of_prune(tmp_path: Path, run: Path, trash: bool) -> None:
    """Killed anywhere, a prune leaves each version in place whole, in the trash whole, or gone; the next goes on."""
    for copy in points(tmp_path, run, lambda where: prune(where, trash=trash)):
        check_whole(copy)
        there = set(numbers(copy))
        assert {1, 5} <= there
        trashed = [entry for entry in list_trash(str(copy)) if entry.names]
        for entry in trashed:
            for name in entry.names:
                assert int(name.removeprefix("version-")) not in there
                assert len(os.listdir(Path(entry.path) / name)) == 2
        prune(copy, trash=trash)
        assert numbers(copy) == [1, 5]
        if not trash:
            assert sorted(p.name for p in (copy / ".edl-ckpt-0").iterdir()) == ["meta-0"]
        check_whole(copy)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_kill_at_each_operation_of_undo(tmp_path: Path, run: Path) -> None:
    """Killed anywhere, undo leaves each version in its place whole or in the trash whole; again, it goes on."""
    content = {p.relative_to(run): p.read_bytes() for p in run.rglob("*") if p.is_file()}
    prune(run, trash=True)
    for copy in points(tmp_path, run, lambda where: undo(str(where))):
        check_whole(copy)
        there = set(numbers(copy))
        held = {name for entry in list_trash(str(copy)) for name in entry.names}
        assert there | {int(name.removeprefix("version-")) for name in held} == {1, 2, 3, 4, 5}
        try:
            undo(str(copy))
        except NotFoundError:
            assert there == {1, 2, 3, 4, 5}
        prune(copy, keep=9)  # sweeps what a killed undo left
        assert {p.relative_to(copy): p.read_bytes() for p in copy.rglob("*") if p.is_file()} == content
