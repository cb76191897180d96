"""A manager beside tags, versions of others, damage, other managers and locks: what TensorFlow's does not know of."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import EdlCkptWarning, Location, add_tag, location_lock, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import (
    EdlCkptError,
    IncompleteError,
    LockedError,
    MismatchError,
    RefusedError,
    ReplacedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading.newest import newest_readable
from edl_ckpt.core.state.paths import MANAGER_FILE, META_DIR
from edl_ckpt.core.training.objects import CheckpointManager, EmbeddingTable, ObjectCheckpoint, Variable
from reporters import Recorder
from s3_fixtures import Bucket


def managed(location: str | Path, keep: int | None = 2, saves: int = 0) -> CheckpointManager:
    """Return a new manager of one variable, whose value is the number of the version, after some saves."""
    manager = CheckpointManager(ObjectCheckpoint(v=Variable(0)), location, keep, reporter=Recorder())
    for _ in range(saves):
        save(manager)
    return manager


def save(manager: CheckpointManager, number: int | None = None) -> None:
    """Save once more."""
    manager.checkpoint.v.assign(int(manager.checkpoint.save_counter) + 1 if number is None else number)
    manager.save(number)


def save_five(manager: CheckpointManager, first: int) -> None:
    """Save five times, under numbers from `first` on."""
    for number in range(first, first + 5):
        save(manager, number)


def warnings_of(manager: CheckpointManager) -> list[str]:
    """Return the warnings that a manager gave, without those on layouts."""
    reporter = manager.reporter
    assert isinstance(reporter, Recorder)
    return [text for text in reporter.warnings if "layout" not in text]


def tear(location: Path, number: int) -> None:
    """Cut the end of a version, as a job that dies while it saves does."""
    shard = Path(at(location, number).shards[0].path)
    shard.write_bytes(shard.read_bytes()[:-3])


def test_tagged_versions_stay(tmp_path: Path) -> None:
    """A tag protects a version and takes no place of others; when the tag is gone, the next save deletes it."""
    from edl_ckpt.core import remove_tag

    manager = managed(tmp_path, saves=2)
    add_tag(at(tmp_path, 1), "serving")
    save(manager)
    save(manager)
    assert numbers(tmp_path) == [1, 3, 4]
    assert [ref.number for ref in manager.checkpoints] == [1, 3, 4]
    remove_tag(at(tmp_path, 1), "serving")
    save(manager)
    assert (numbers(tmp_path), warnings_of(manager)) == ([4, 5], [])


def test_versions_of_others_stay(tmp_path: Path) -> None:
    """Versions that no manager saved are restored from, and neither deleted nor replaced."""
    save_small(tmp_path, 5, 30)
    manager = managed(tmp_path)
    assert manager.latest_checkpoint == f"{tmp_path}@30"
    assert manager.checkpoints == []
    with pytest.raises(RefusedError, match="version 5 is there already, and no manager saved it"):
        manager.save(5)
    assert int(manager.checkpoint.save_counter) == 0
    for number in (40, 41, 42):
        save(manager, number)
    assert numbers(tmp_path) == [5, 30, 41, 42]
    save_small(tmp_path, 50)
    assert manager.latest_checkpoint == f"{tmp_path}@50"  # another job went on here
    save(manager, 45)
    assert manager.latest_checkpoint == f"{tmp_path}@45"  # and then this one
    assert [ref.number for ref in manager.checkpoints] == [42, 45]


def test_after_a_rollback(tmp_path: Path) -> None:
    """A job that went back to an older version replaces what it saves again, and goes on from there after a restart."""
    manager = managed(tmp_path, keep=4, saves=4)
    manager.checkpoint.restore(manager.checkpoints[1])
    assert int(manager.checkpoint.v) == int(manager.checkpoint.save_counter) == 2
    save(manager)
    assert [ref.number for ref in manager.checkpoints] == [1, 2, 4, 3]
    assert warnings_of(manager) == [f"{tmp_path}@3: was there already, and is replaced"]
    again = managed(tmp_path, keep=4)
    assert again.restore_or_initialize() == f"{tmp_path}@3"
    with pytest.raises(RefusedError, match="newest complete version"):
        save(again)  # the number 4, which every other reader takes for the latest
    assert int(again.checkpoint.save_counter) == 3
    save(again, 5)
    assert [ref.number for ref in again.checkpoints] == [2, 4, 3, 5]


def test_a_torn_version_is_passed_over(tmp_path: Path) -> None:
    """The newest version that can be read is restored, and the warning says which were passed over and why."""
    manager = managed(tmp_path, keep=None, saves=4)
    tear(tmp_path, 4)
    tear(tmp_path, 3)
    fresh = managed(tmp_path, keep=None)
    assert fresh.restore_or_initialize() == f"{tmp_path}@2"
    assert int(fresh.checkpoint.v) == int(fresh.checkpoint.save_counter) == 2
    assert [text.split(": ")[0] for text in warnings_of(fresh)] == [
        f"{tmp_path}@4 is passed over for version 2",
        f"{tmp_path}@3 is passed over for version 2",
    ]
    tear(tmp_path, 2)
    tear(tmp_path, 1)
    called: list[int] = []
    last = CheckpointManager(manager.checkpoint, tmp_path, None, init_fn=lambda: called.append(1), reporter=Recorder())
    with pytest.raises(IncompleteError, match=r"no version can be read: .*@4: .*@1: "):
        last.restore_or_initialize()
    assert called == []


def test_damage_that_is_found_while_values_are_read(tmp_path: Path) -> None:
    """A version whose headers are whole and whose ids are not is passed over too."""
    table = EmbeddingTable(np.arange(3), np.ones((3, 2)))
    manager = CheckpointManager(ObjectCheckpoint(t=table), tmp_path, None, reporter=Recorder())
    manager.save()
    manager.save()
    with open_checkpoint(at(tmp_path, 2)) as checkpoint:
        ((shard, entry),) = checkpoint.entries("t")
    data = bytearray(Path(shard.file.path).read_bytes())
    data[entry.ids[0].end - 1] |= 0x80  # the last id goes on after its end
    Path(shard.file.path).write_bytes(data)
    assert manager.restore_or_initialize() == f"{tmp_path}@1"
    assert f"{tmp_path}@2 is passed over for version 1: " in warnings_of(manager)[0]


def test_a_version_that_is_replaced_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another command replaces the newest version right then, it is looked at again, and not passed over."""
    manager = managed(tmp_path, saves=2)
    looks: list[int] = []

    def look(versions: Sequence[Version], errors: list[EdlCkptError]) -> tuple[Version | None, dict[str, str]]:
        looks.append(len(versions))
        if len(looks) < 3:
            errors.append(ReplacedError("another command has replaced the version"))
            return versions[0], {versions[1].path: "replaced"}
        return newest_readable(versions, errors)

    monkeypatch.setattr("edl_ckpt.core.training.objects.manager.newest_readable", look)
    assert manager.restore_or_initialize() == f"{tmp_path}@2"
    assert (looks, warnings_of(manager)) == ([2, 2, 2], [])


def test_without_a_reporter_warnings_are_those_of_python(tmp_path: Path) -> None:
    """Nobody misses that an older version was restored."""
    managed(tmp_path, saves=2)
    tear(tmp_path, 2)
    with pytest.warns(EdlCkptWarning, match=f"{tmp_path}@2 is passed over for version 1") as caught:
        CheckpointManager(ObjectCheckpoint(v=Variable(0)), tmp_path, 2).restore_or_initialize()
    assert caught[0].filename == __file__


def test_a_program_of_another_shape_is_an_error(tmp_path: Path) -> None:
    """Values of another shape are a mistake in the program: no older version is tried, and nothing is initialized."""
    managed(tmp_path, saves=2)
    other = CheckpointManager(ObjectCheckpoint(v=np.zeros(3)), tmp_path, 2, reporter=Recorder())
    with pytest.raises(MismatchError, match=r"v: float64 \[3\] in the program, int64 \[\] in the checkpoint"):
        other.restore_or_initialize()


def test_two_managers_at_one_location(tmp_path: Path) -> None:
    """Managers of several threads or processes know of each other's versions, and keep one limit together."""
    managers = [managed(tmp_path, keep=3) for _ in range(2)]
    threads = [
        threading.Thread(target=save_five, args=(each, first)) for each, first in zip(managers, (100, 200), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    save(managers[0], 300)
    remaining = numbers(tmp_path)
    assert len(remaining) <= 4  # one that was guarded as the newest is deleted by a later save
    assert remaining[-1] == 300
    assert [ref.number for ref in managers[1].checkpoints][-1] == 300
    assert all(verify_version(at(tmp_path, number)).ok for number in remaining)


def test_a_locked_location(tmp_path: Path) -> None:
    """A save waits for the lock as long as it was told to; the counter stays, and the next save succeeds."""
    manager = CheckpointManager(ObjectCheckpoint(v=Variable(0)), tmp_path, 2, wait_seconds=0, reporter=Recorder())
    manager.save()
    with location_lock(tmp_path, "test"), pytest.raises(LockedError):
        manager.save()
    assert int(manager.checkpoint.save_counter) == 1
    assert manager.save() == f"{tmp_path}@2"


@pytest.mark.parametrize("content", ["", "[]", '{"saved": 3}', '{"saved": [], "latest": "x", "last_preserved": 1}'])
def test_damaged_notes(tmp_path: Path, content: str) -> None:
    """Without its notes a manager begins anew: it restores the newest version, and deletes none of those of before."""
    managed(tmp_path, saves=3)
    notes = tmp_path / META_DIR / MANAGER_FILE
    notes.write_text(content, encoding="utf-8")
    manager = managed(tmp_path, keep=1)
    assert manager.restore_or_initialize() == f"{tmp_path}@3"
    assert "what managers saved before is not known, and stays" in warnings_of(manager)[0]
    save(manager)
    save(manager)
    assert numbers(tmp_path) == [2, 3, 5]
    assert json.loads(notes.read_text(encoding="utf-8"))["latest"] == 5


def test_a_save_that_died_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that was saved when the process died before its notes were complete is deleted in its turn."""
    manager = managed(tmp_path, saves=2)
    with monkeypatch.context() as patch:
        patch.setattr("edl_ckpt.core.training.objects.manager.sweep_saved", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            save(manager)
    assert numbers(tmp_path) == [1, 2, 3]
    again = managed(tmp_path)
    assert again.restore_or_initialize() == f"{tmp_path}@3"
    save(again)
    assert numbers(tmp_path) == [3, 4]


def test_on_s3(s3: Bucket) -> None:
    """The same on S3, where credentials travel with the references and appear in none of them."""
    where = Location(s3.url, {"read_timeout": "30"})
    manager = CheckpointManager(
        ObjectCheckpoint(v=Variable(0)), where, 2, ps_num=2, layout="elasticdl", reporter=Recorder()
    )
    for _ in range(3):
        save(manager)
    latest = manager.latest_checkpoint
    assert latest is not None
    assert (str(latest), latest.location) == (f"{s3.url}@3", where)
    fresh = ObjectCheckpoint(v=Variable(0))
    fresh.restore(latest).assert_consumed()
    assert int(fresh.v) == 3
    assert [ref.number for ref in manager.checkpoints] == numbers(s3.url) == [2, 3]
    assert (at(s3.url).layout.name, at(s3.url).ps_num) == ("elasticdl", 2)


@pytest.mark.parametrize("limit", [0, -1, 1.5, "3"])
def test_the_limit_is_a_number(tmp_path: Path, limit: Any) -> None:
    """A limit that is no positive whole number is a ValueError."""
    with pytest.raises(UsageError, match="max_to_keep"):
        managed(tmp_path, keep=limit)


@pytest.mark.parametrize("number", [-1, 2**31, 1.5])
def test_a_number_that_no_version_has(tmp_path: Path, number: Any) -> None:
    """It is refused before anything is noted: the versions of before are still known."""
    manager = managed(tmp_path, saves=2)
    with pytest.raises(UsageError):
        manager.save(number)
    assert [ref.number for ref in manager.checkpoints] == numbers(tmp_path) == [1, 2]
    assert warnings_of(manager) == []


def test_a_newer_manager(tmp_path: Path) -> None:
    """What a manager of a newer edl-ckpt remembers is not replaced, and nothing is saved beside it."""
    save(managed(tmp_path, saves=1))
    path = tmp_path / META_DIR / MANAGER_FILE
    newer = json.dumps(json.loads(path.read_bytes()) | {"schema": "edl-ckpt/manager/9"})
    path.write_text(newer)
    there = numbers(tmp_path)
    with pytest.raises(UnsupportedError, match="written by a newer edl-ckpt"):
        managed(tmp_path, saves=1)
    assert (path.read_text(), numbers(tmp_path)) == (newer, there)
    assert verify_version(at(tmp_path), level="deep").ok


class Late:
    """An object that makes its values at its first step, as models of Keras do, and notices no addition."""

    def __init__(self) -> None:
        self.w: Any = None

    def step(self) -> None:
        """Make the value, and train it."""
        if self.w is None:
            self.w = np.zeros(2, np.float32)
        self.w += 1


def loop(place: Path, steps: int, *, build: bool, partial: bool = False) -> tuple[CheckpointManager, Late]:
    """Train as TensorFlow's guide does: restore, then make steps and save each."""
    net = Late()
    if build:
        net.w = np.zeros(2, np.float32)
    checkpoint = ObjectCheckpoint(net=net)
    manager = CheckpointManager(checkpoint, place, 1, reporter=Recorder())
    status = checkpoint.restore(manager.latest_checkpoint)
    if partial:
        status.expect_partial()
    for _ in range(steps):
        net.step()
        manager.save()
    return manager, net


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_version_that_was_restored_in_part_is_kept(tmp_path: Path) -> None:
    """The loop of the guide trains from fresh values: the trained version stays, and the warning says what to do."""
    loop(tmp_path, 5, build=True)
    manager, net = loop(tmp_path, 3, build=False)
    assert net.w.tolist() == [3, 3]
    assert numbers(tmp_path) == [5, 8]
    with open_checkpoint(at(tmp_path, 5)) as checkpoint:
        assert checkpoint["net/w"].tolist() == [5, 5]
    (warning,) = [text for text in warnings_of(manager) if "Build the model" in text]
    assert warning.startswith(f"{tmp_path}@5 is kept for ever, because 1 value of it found no object: net/w.")


def test_build_then_restore_is_exact_and_keeps_no_more(tmp_path: Path) -> None:
    """With objects that exist, training goes on where it was, and old versions go."""
    loop(tmp_path, 5, build=True)
    _, net = loop(tmp_path, 2, build=True)
    assert net.w.tolist() == [7, 7]
    assert numbers(tmp_path) == [7]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_expected_to_be_partial_is_not_kept(tmp_path: Path) -> None:
    """A program that says so deletes as always."""
    loop(tmp_path, 5, build=True)
    loop(tmp_path, 2, build=False, partial=True)
    assert numbers(tmp_path) == [7]
