"""The memory of what verify found: valid for the very files that were read, and never wrong."""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torch_items
from checkpoints import at, save_small
from edl_ckpt.core import add_tag, list_versions, remove_tag, save_checkpoint, verify_version, verify_versions
from edl_ckpt.core.base.errors import IncompleteError, NotFoundError
from edl_ckpt.core.catalog.listing import resolve
from edl_ckpt.core.model.verdicts import Verdict, verdict_of
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.plan import plan_prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.undo import undo
from edl_ckpt.core.state import user_cache, verdicts
from edl_ckpt.core.state.document import MAX_BYTES
from edl_ckpt.core.state.paths import META_DIR, STATE_DIR, is_verdicts
from edl_ckpt.core.state.verdicts import Remembered, VerdictFiles, parse_verdicts, remember_verdicts, verdicts_bytes
from edl_ckpt.core.storage import Location, open_store
from forked import run_forked
from reporters import Recorder
from s3_fixtures import Bucket
from waiting import settle

LONG_AGO = 1_000_000_000
NAME = "model.user.weight"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    """A directory in which verdicts are remembered where a location has no state of ours."""
    user_cache.remember_in(str(tmp_path / "cache"))
    yield tmp_path / "cache"
    user_cache.remember_in("")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three steps of another system, in a location without any state of ours."""
    for number in (1, 2, 3):
        rows = np.random.default_rng(number).standard_normal((90, 4), np.float32)
        torch_items.write_step(tmp_path / f"run/step_{number}", [*torch_items.boxes(NAME, rows, [[30, 60], []], 3)])
    return age(tmp_path / "run")


def age(location: Path) -> Path:
    """Make all files of a location old, since what was written a moment ago may change without a trace."""
    for path in location.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    settle()
    return location


def file_of(run: Path, number: int) -> Path:
    """Return the file of a step that has values."""
    return run / f"step_{number}/__1_0.distcp"


def damage(run: Path, number: int) -> None:
    """Flip a bit of a value, at once in a file that keeps its name."""
    path = file_of(run, number)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    age(run)


def known(run: Path | str, number: int) -> Verdict | None:
    """Return what a listing knows of a version."""
    return next(v for v in list_versions(run).versions if v.version == number).verdict


def test_what_verify_found_is_known_to_every_command(run: Path) -> None:
    """After `verify --deep` a listing, `@latest` and prune know which version is damaged, and a reader is told."""
    damage(run, 3)
    assert known(run, 3) is None
    verify_versions(list_versions(run).versions, level="deep")
    states = {v.version: v.shown_state for v in list_versions(run).versions}
    assert states == {1: "complete", 2: "complete", 3: "damaged"}
    found = known(run, 3)
    assert found is not None
    assert (found.level, found.ok, found.errors, found.first) == ("deep", False, 1, f"checksum of {NAME}")
    told = Recorder()
    assert resolve(f"{run}@latest", reporter=told).version == 2
    assert any("is passed over: damaged: checksum" in line for line in told.warnings)
    assert resolve(f"{run}@verified").version == 2
    assert resolve(f"{run}@3").version == 3, "a number names what it names"
    assert not (run / ".edl-ckpt-0").exists(), "a reader makes no directory of ours"


def test_prune_keeps_the_last_good_version(run: Path) -> None:
    """`prune --keep 1` after `verify --deep` keeps the newest good version, and does not count the damaged one."""
    damage(run, 3)
    verify_versions(list_versions(run).versions, level="deep")
    plan = plan_prune([run], Policy((Latest(1),)))
    assert {entry.version: entry.action.value for entry in plan.entries} == {1: "delete", 2: "keep", 3: "keep"}
    assert any("does not count" in warning for warning in plan.warnings)
    assert {entry.version: entry.state for entry in plan.entries}[3] == "damaged"


def test_to_know_of_damage_never_deletes_more(run: Path) -> None:
    """A damaged version in the middle stays where it would stay if it were good; the rule counts another one."""
    damage(run, 2)
    before = {e.version for e in plan_prune([run], Policy((Latest(2),))).deletions}
    verify_versions(list_versions(run).versions, level="deep")
    after = {e.version for e in plan_prune([run], Policy((Latest(2),))).deletions}
    assert (before, after) == ({1}, set())


def test_no_good_version(run: Path) -> None:
    """Where every complete version is damaged, `@latest` is refused with the way to name one, and prune keeps all."""
    for number in (1, 2, 3):
        damage(run, number)
    verify_versions(list_versions(run).versions, level="deep")
    with pytest.raises(IncompleteError, match="every complete version is known to be damaged") as refused:
        resolve(f"{run}@latest")
    assert f"{run}@3" in (refused.value.hint or "")
    assert not plan_prune([run], Policy((Latest(1),))).deletions


def test_verified_needs_every_value(run: Path) -> None:
    """`@verified` names no version of which only ids were read, and says how to get one."""
    verify_version(f"{run}@3")
    with pytest.raises(NotFoundError, match="every value") as absent:
        resolve(f"{run}@verified")
    assert "--newest --deep" in (absent.value.hint or "")


@pytest.mark.parametrize("change", ["size", "time", "inode", "bytes under the old time", "a file more", "a file less"])
def test_a_verdict_is_of_the_files_that_were_read(run: Path, change: str) -> None:
    """Whatever changes in a file of the version, the verdict says nothing of it any more."""
    verify_version(f"{run}@3", level="deep")
    assert known(run, 3) is not None
    path = file_of(run, 3)
    seen = path.stat()
    if change == "size":
        with path.open("ab") as file:
            file.write(b"\0")
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif change == "time":
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns + 1))
    elif change == "inode":
        shutil.copy2(path, path.with_name("new"))
        path.with_name("new").replace(path)
    elif change == "bytes under the old time":
        data = bytearray(path.read_bytes())
        data[-100] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    elif change == "a file more":
        (run / "step_3/extra.json").write_text("{}")
    else:
        (run / "step_3/__0_0.distcp").unlink()
    assert known(run, 3) is None
    assert known(run, 2) is None, "it was never verified"


def test_a_copy_has_no_verdict(run: Path, tmp_path: Path) -> None:
    """The files of a copy are others, whatever times they have, and so is a location that takes another one's place."""
    verify_version(f"{run}@3", level="deep")
    run.rename(tmp_path / "moved")
    shutil.copytree(tmp_path / "moved", run)
    assert known(run, 3) is None


def test_in_the_location_itself(tmp_path: Path, cache: Path) -> None:
    """Where a location has state of ours, verdicts are there, and another user knows them."""
    save_small(tmp_path / "run", 10, 20)
    age(tmp_path / "run")
    verify_version(f"{tmp_path}/run@20", level="deep")
    user_cache.remember_in("")
    found = known(tmp_path / "run", 20)
    assert found is not None
    assert found.ok
    assert not cache.exists()
    assert [p.name.partition("-")[0] for p in (tmp_path / "run/.edl-ckpt-0/meta-0").glob("v*")] == ["verdicts"]


def test_a_version_that_is_written_again(tmp_path: Path) -> None:
    """A job that saves a version again gets no verdict of the one before."""
    run = tmp_path / "run"
    save_small(run, 10)
    age(run)
    assert verify_version(f"{run}@10", level="deep").ok
    shutil.rmtree(run / "version-10")
    save_checkpoint(run, 10, 2, variables={"w": np.full(3, np.nan, np.float32)}, layout="elasticdl")
    assert known(run, 10) is None


def test_what_changed_a_moment_ago_is_not_remembered(run: Path) -> None:
    """A file of this very moment may change again under the same time, so nothing is remembered of it."""
    path = file_of(run, 3)
    path.write_bytes(path.read_bytes())
    os.utime(path, (2_000_000_000, 2_000_000_000))  # as if the clock of the storage were ahead
    verify_version(f"{run}@3", level="deep")
    assert known(run, 3) is None


def test_on_object_storage(s3: Bucket) -> None:
    """On S3 the ETag tells the files: an object that is written again has no verdict, with the same size or not."""
    save_checkpoint(s3.url, 10, 1, variables={"w": np.arange(3, dtype=np.float32)})
    save_checkpoint(s3.url, 20, 1, variables={"w": np.arange(4, dtype=np.float32)})
    verify_versions(list_versions(s3.url).versions, level="deep")
    found = known(s3.url, 10), known(s3.url, 20)
    assert all(each is not None and each.ok and each.level == "deep" for each in found)
    assert resolve(f"{s3.url}@verified").version == 20
    name = next(name for name in s3.objects() if "version_20" in name)
    data = bytearray(s3.get(name))
    data[-1] ^= 1
    s3.put(name, bytes(data))
    assert known(s3.url, 20) is None
    assert resolve(f"{s3.url}@verified").version == 10


def damaged_copies(data: bytes) -> Iterator[bytes]:
    """Yield a file of verdicts with every bit flipped once, and cut at every byte."""
    for place in range(len(data)):
        yield data[:place]
        for bit in range(8):
            changed = bytearray(data)
            changed[place] ^= 1 << bit
            yield bytes(changed)


def test_a_damaged_file_says_nothing() -> None:
    """With any bit flipped, or cut anywhere, a file of verdicts has none, or what it had."""
    every = [
        Remembered("step_1", "aa", Verdict("deep", True, 5.0)),
        Remembered("step_2", "bb", Verdict("quick", False, 6.5, 2, "truncated")),
    ]
    data = verdicts_bytes(every)
    assert parse_verdicts(data) == tuple(every)
    assert {parse_verdicts(changed) for changed in damaged_copies(data)} <= {(), tuple(every)}
    newer = json.loads(data) | {"schema": "edl-ckpt/verdicts/2"}
    assert parse_verdicts(json.dumps(newer).encode()) == ()


def test_verdicts_that_come_at_once_are_all_kept(tmp_path: Path) -> None:
    """Many verifications at once lose nothing, need no lock, and leave few files."""
    save_small(tmp_path / "run", 10)
    place = Location(str(tmp_path / "run"))

    def add(start: int) -> None:
        for n in range(start, start + 10):
            remember_verdicts(place, [Remembered(f"version-{n}", "ff", Verdict("deep", True, float(n)))])

    threads = [threading.Thread(target=add, args=(start,)) for start in range(0, 80, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    files = list((tmp_path / "run/.edl-ckpt-0/meta-0").glob("verdicts-*.json"))
    found = {each.name for path in files for each in parse_verdicts(path.read_bytes())}
    assert found == {f"version-{n}" for n in range(80)}
    assert len(files) <= 8


def test_a_reader_never_misses_what_is_folded(tmp_path: Path) -> None:
    """When the files that a listing showed are gone, because another verification folded them, it looks again."""
    save_small(tmp_path / "run", 10)
    age(tmp_path / "run")
    version = at(tmp_path / "run", 10)
    bad = Remembered("version-10", version.files_identity, Verdict("deep", False, 1.0, 1, "nan of w"))
    remember_verdicts(version.location, [bad])
    reader = VerdictFiles(open_store(version.location))
    before = reader.store.names(META_DIR)
    remember_verdicts(version.location, [Remembered("version-11", "ff", Verdict("deep", True, 2.0))])
    (seen,) = reader.of([version], before)
    assert seen.damage == "damaged: nan of w, 1970-01-01"


def test_too_many(tmp_path: Path) -> None:
    """A file of verdicts stays small: the oldest go first."""
    every = [Remembered("x" * 200, f"{n:032x}", Verdict("deep", True, float(n))) for n in range(20_000)]
    kept = verdicts._newest(every)
    data = verdicts_bytes(kept)
    assert len(data) < MAX_BYTES
    found = parse_verdicts(data)
    assert len(found) > 1000
    assert found[0].verdict.at == 19_999


def test_levels() -> None:
    """An error counts until a verification that is as deep finds none; without errors the deepest one counts."""
    bad = Verdict("deep", False, 2.0, 1, "checksum")
    assert verdict_of([bad, Verdict("quick", True, 3.0), Verdict("default", True, 3.0)]) == bad
    good = Verdict("deep", True, 3.0)
    assert verdict_of([good, bad]) == good
    assert verdict_of([good, Verdict("quick", False, 4.0, 1, "truncated")]) != good
    assert verdict_of([Verdict("quick", True, 9.0), good]) == good
    assert verdict_of([]) is None


def test_a_version_is_found_by_its_reference(run: Path) -> None:
    """A version that a path names knows its verdict too."""
    verify_version(f"{run}@3", level="deep")
    version: Version = resolve(str(run / "step_3"))
    assert version.is_verified


@pytest.mark.parametrize("place", ["location", "cache"])
def test_killed_at_each_operation(tmp_path: Path, run: Path, place: str) -> None:
    """Killed before any of its file operations, a writer of verdicts loses its own at most, and no older one."""
    if place == "location":
        save_small(tmp_path / "run2", 1, 2)
        run = age(tmp_path / "run2")
    first, second = list_versions(run).versions[:2]
    bad = Verdict("deep", False, 1.0, 1, "nan of w")
    good = Verdict("deep", True, 2.0)

    def names(version: Version) -> str:
        return version.path.rpartition("/")[2]

    remember_verdicts(first.location, [Remembered(names(first), first.files_identity, bad)])
    found: set[bool] = set()
    for k in range(1, 100):
        news = [Remembered(names(second), second.files_identity, good)]
        killed = _killed_at(k, lambda news=news: remember_verdicts(second.location, news))  # type: ignore[misc]
        now = {v.path: v.verdict for v in list_versions(run).versions}
        assert now[first.path] == bad, k
        assert now[second.path] in {None, good}, k
        found.add(now[second.path] is not None)
        if not killed:
            break
        _forget(second, first.location, run, tmp_path, Remembered(names(first), first.files_identity, bad))
    assert k > 3
    assert found == {False, True}


def _forget(second: Version, location: Location, run: Path, tmp_path: Path, older: Remembered) -> None:
    """Bring the files of verdicts back to the older verdict alone."""
    for folder in (run / ".edl-ckpt-0/meta-0", tmp_path / "cache/.verdicts"):
        for path in folder.rglob("verdicts-*.json"):
            path.unlink()
    remember_verdicts(location, [older])
    assert next(v for v in list_versions(run).versions if v.path == second.path).verdict is None


def _killed_at(k: int, action: Callable[[], None]) -> bool:
    """Run an action in a child that is killed before its k-th change of a file; False if it ends first."""

    def act() -> None:
        count = 0

        def killing(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == k:
                    os._exit(9)
                return function(*arguments, **options)

            return call

        for name in ("rename", "unlink", "rmdir", "mkdir", "fsync", "pwrite", "write", "ftruncate"):
            setattr(os, name, killing(getattr(os, name)))
        action()

    ended = run_forked(act)
    assert ended in {0, 9}
    return ended == 9


def test_verdicts_of_gone_versions_go(tmp_path: Path) -> None:
    """A prune removes a file of verdicts once no version is left that it is about, and then the empty directories.

    As long as one is there, alone or in the trash of a prune, the file stays, and so does a damaged one.
    """
    run = tmp_path / "run"
    save_small(run, 1, 2, 3, sealed=False)
    settle()
    add_tag(f"{run}@1", "kept")
    verify_version(f"{run}@1", level="deep")
    verify_version(f"{run}@2", level="deep")
    remove_tag(f"{run}@1", "kept")
    assert (run / META_DIR).is_dir()
    assert prune([str(run)], Policy(()), guards=Guards(delete=(1,))).deleted == (f"{run}@1",)
    (left,) = (run / META_DIR).iterdir()
    assert is_verdicts(left.name)
    (run / META_DIR / "verdicts-x.json").write_text("{")
    assert prune([str(run)], Policy(()), guards=Guards(delete=(2,)), trash=True).deleted == (f"{run}@2",)
    assert left.exists()
    undo(str(run))
    assert at(run, 2).verdict is not None
    assert prune([str(run)], Policy(()), guards=Guards(delete=(2,))).deleted == (f"{run}@2",)
    assert [path.name for path in (run / META_DIR).iterdir()] == ["verdicts-x.json"]


def test_nothing_of_ours_is_left_with_the_last_verdict(tmp_path: Path) -> None:
    """When the last verdict goes with its version, the directories of our state go too."""
    run = tmp_path / "run"
    save_small(run, 1, 2, sealed=False)
    settle()
    add_tag(f"{run}@1", "kept")
    verify_version(f"{run}@1", level="deep")
    remove_tag(f"{run}@1", "kept")
    assert prune([str(run)], Policy(()), guards=Guards(delete=(1,))).deleted == (f"{run}@1",)
    assert not (run / STATE_DIR).exists()
