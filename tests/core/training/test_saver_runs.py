"""Two runs of a job, and several last servers: no seal stands over a mixture, and no mixture passes unseen."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from checkpoints import at, files_of, numbers, only
from edl_ckpt.core import (
    CheckpointSaver,
    add_tag,
    execute_copy,
    latest,
    list_versions,
    location_lock,
    mixed_runs,
    plan_copy,
    recover,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, LockedError, RefusedError
from edl_ckpt.core.commit import shard as commit_shard
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.state.paths import notes_dir, seal_file
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.training import saver as saver_module
from edl_ckpt.core.training.saver import Sealing, seal_if_whole
from edl_ckpt.core.training.shard_writer import write_shard
from forked import run_forked
from reporters import Recorder
from saving import save_all, save_part, small_parts, values_of


def has_seal(place: str | Path, version: int) -> bool:
    """Say whether a version has a seal."""
    return open_store(str(place)).read_small(seal_file(version)) is not None


def notes(place: str | Path, version: int) -> list[str]:
    """Return the names of the notes on a version."""
    return sorted(open_store(str(place)).names(notes_dir(version)))


def test_the_last_one_seals_from_notes(place: str) -> None:
    """Each server leaves a note, the last one combines them into the seal that `verify --seal` would make."""
    for ps_id in range(3):
        assert not has_seal(place, 7)
        assert len(notes(place, 7)) == ps_id
        saved = save_part(place, 7, ps_id, 3, run="one")
    assert (saved.complete, saved.sealed, saved.replaced) == (True, True, False)
    assert notes(place, 7) == []
    version = only(place)
    result = verify_version(version, level="deep")
    assert (result.findings, result.sealed, result.fingerprint) == ((), True, version.fingerprint)
    seal = read_seal(open_store(place), 7)
    assert seal is not None
    assert seal.run == "one"


def test_a_restarted_job_replaces_one_shard_after_the_other(place: str) -> None:
    """The seal goes before the first shard; until the last one, list, verify and latest notice the mixture."""
    save_all(place, 7, 3, run="one")
    for ps_id in range(3):
        saved = save_part(place, 7, ps_id, 3, run="two", value=2.0)
        assert (saved.replaced, saved.complete, saved.sealed) == (True, True, ps_id == 2)
        version = only(place)
        assert version.state is State.COMPLETE
        codes = [f.code for f in verify_version(version, level="deep").findings]
        if ps_id < 2:
            assert not has_seal(place, 7)
            assert "may be of an earlier run" in mixed_runs(version)
            assert codes == ["mixed-runs"]
            assert any("may be of an earlier run" in text for text in list_versions(place).problems)
            with pytest.raises(IncompleteError, match="may be of an earlier run"):
                latest(place)
    assert (codes, mixed_runs(version), list_versions(place).problems) == ([], "", ())
    assert latest(place).version == 7
    assert notes(place, 7) == []


def test_a_killed_run_and_the_next_one(place: str) -> None:
    """Shards that a killed run left and those of the next run are told apart by the names of the runs."""
    for ps_id in (0, 1):
        save_part(place, 7, ps_id, 3, run="one")
    for ps_id in (1, 2):
        saved = save_part(place, 7, ps_id, 3, run="two", value=2.0)
    assert (saved.complete, saved.sealed) == (True, False)
    why = mixed_runs(only(place))
    assert why == "its shards are of several runs: shard 0 of 3 of run 'one', shards 1, 2 of 3 of run 'two'"
    assert save_part(place, 7, 0, 3, run="two", value=2.0).sealed
    assert verify_version(only(place), level="deep").ok


def test_a_mixture_is_no_source(tmp_path: Path) -> None:
    """A copy of shards of two runs would get a seal, and look right: it needs `force`, which the seal records."""
    save_all(tmp_path / "run", 7, 2, run="one")
    save_part(tmp_path / "run", 7, 0, 2, run="two", value=2.0)
    version = only(tmp_path / "run")
    with pytest.raises(CorruptError, match=r"shard 0 of 2 has been replaced, and shard 1 of 2 may be"):
        execute_copy(plan_copy([version], tmp_path / "out"))
    with pytest.raises(CorruptError):
        reshard_version(version, 3)
    assert not has_seal(tmp_path / "run", 7)
    reshard_version(version, 3, force=True)
    seal = read_seal(open_store(str(tmp_path / "run")), 7)
    assert seal is not None
    assert "may be of an earlier run" in seal.history[-1].why


def test_one_server_that_is_restarted_alone(place: str) -> None:
    """A server that comes back in a run that goes on replaces its shard: one run, without a seal."""
    save_all(place, 7, 3, run="one")
    saved = save_part(place, 7, 1, 3, run="one", value=2.0)
    assert (saved.replaced, saved.complete, saved.sealed) == (True, True, False)
    assert mixed_runs(only(place)) == ""
    assert verify_version(only(place), level="deep").findings == ()


def test_a_shard_that_was_lost(place: str) -> None:
    """A shard that takes an empty place in a sealed version is of another run too: the seal goes before it comes."""
    save_all(place, 7, 2, run="one")
    open_store(place).remove("version-7/variables-0-of-2.ckpt")
    assert not save_part(place, 7, 0, 2, run="two", value=2.0).sealed
    assert not has_seal(place, 7)
    assert "may be of an earlier run" in mixed_runs(only(place))


def test_other_writers_have_no_runs(tmp_path: Path) -> None:
    """Versions of other programs, and copies of the files of a location, are never taken for mixtures."""
    save_checkpoint(tmp_path / "saved", 7, 2, variables={}, tables={}, layout="elasticdl")
    save_part(tmp_path / "half", 7, 0, 2, run="one")
    save_part(tmp_path / "half", 7, 1, 2, run="two")
    shutil.copytree(tmp_path / "half", tmp_path / "copy")
    assert "several runs" in mixed_runs(only(tmp_path / "half"))
    for place in ("saved", "copy"):
        assert mixed_runs(only(tmp_path / place)) == ""
    shutil.rmtree(tmp_path / "half/.edl-ckpt-0")
    assert mixed_runs(only(tmp_path / "half")) == ""


def test_several_last_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all servers publish before the first of them looks, all think that they are last; the result is the same."""
    waiting: list[Callable[[], Any]] = []

    def later(*args: Any, **more: Any) -> Any:
        waiting.append(lambda: seal_if_whole(*args, **more))
        return Sealing(complete=False)

    monkeypatch.setattr(saver_module, "seal_if_whole", later)
    for ps_id in range(3):
        save_part(tmp_path, 7, ps_id, 3, run="one")
    done = [each() for each in waiting]
    assert [(d.complete, d.sealed, d.by_us) for d in done] == [
        (True, True, True),
        (True, True, False),
        (True, True, False),
    ]
    assert verify_version(only(tmp_path), level="deep").findings == ()
    assert elasticdl_rules.leftovers(tmp_path) == []


def test_a_busy_lock_keeps_no_server_from_saving(tmp_path: Path) -> None:
    """While a command holds the lock, shards are saved all the same; the version is sealed by the next that seals."""
    reporter = Recorder()
    save_all(tmp_path, 1, 1)
    with location_lock(str(tmp_path), "copy"):
        code = run_forked(lambda: _save_while_locked(tmp_path))
    assert code == 0
    assert (numbers(tmp_path), has_seal(tmp_path, 7)) == ([1, 7], False)
    assert save_all(tmp_path, 8, 2, reporter=reporter).sealed
    assert has_seal(tmp_path, 7)
    assert elasticdl_rules.leftovers(tmp_path) == []
    assert verify_version(at(tmp_path, 7), level="deep").findings == ()


def _save_while_locked(place: Path) -> None:
    reporter = Recorder()
    save_part(place, 7, 0, 2, wait_seconds=0.0)
    saved = save_part(place, 7, 1, 2, wait_seconds=0.0, reporter=reporter)
    assert (saved.complete, saved.sealed) == (True, False)
    assert "is saved, but not sealed: " in reporter.warnings[0]
    with pytest.raises(LockedError):
        save_part(place, 7, 1, 2, wait_seconds=0.0)


def test_another_number_of_servers(place: str) -> None:
    """What a run of other servers did not finish makes way; what it finished is refused, and stays."""
    reporter = Recorder()
    for ps_id in (0, 2):
        save_part(place, 7, ps_id, 3, run="one")
    for ps_id in range(2):
        saved = save_part(place, 7, ps_id, 2, run="two", value=2.0, reporter=reporter)
    assert saved.sealed
    assert "a run of 3 servers had not finished it; it was removed" in reporter.warnings[0]
    assert verify_version(only(place), level="deep").findings == ()
    before = only(place)
    with pytest.raises(RefusedError, match="of another number of servers; this is server 0 of 3"):
        save_part(place, 7, 0, 3, run="three")
    assert only(place) == before
    if not place.startswith("s3:"):
        (trashed,) = Path(place).glob(".edl-ckpt-0/trash-0/*/version-7")
        assert len(list(trashed.iterdir())) == 2


def test_a_tag_protects_what_is_not_finished(tmp_path: Path) -> None:
    """A run of another number of servers does not remove a tagged version, though it is not complete."""
    save_part(tmp_path, 7, 0, 3)
    add_tag(at(tmp_path, 7), "mine", force=True)
    with pytest.raises(RefusedError, match="of another number of servers"):
        save_part(tmp_path, 7, 0, 2)
    assert only(tmp_path).tags == ("mine",)


@pytest.mark.parametrize("change", ["reshard", "layout", "next-run"])
def test_a_slow_server_that_comes_too_late(place: str, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """A shard that cannot stand with what came while it was written is refused; what is there, and its seal, stay."""
    if change == "next-run":
        save_part(place, 7, 0, 3, run="one")
    if change == "reshard":
        save_all(place, 7, 3, run="one")
    before: list[Any] = []

    def meanwhile(*args: Any, **more: Any) -> Any:
        note = real(*args, **more)
        monkeypatch.setattr(saver_module, "write_shard", real)
        if change == "next-run":
            save_part(place, 7, 0, 2, run="two")
        elif change == "layout":
            save_part(place, 7, 0, 3, run="one", layout="design")
        else:
            reshard_version(only(place), 2)
        before.extend((only(place), has_seal(place, 7), notes(place, 7)))
        return note

    real = write_shard
    monkeypatch.setattr(saver_module, "write_shard", meanwhile)
    with pytest.raises(RefusedError, match=r"another (layout|number of servers)"):
        save_part(place, 7, 1, 3, run="one")
    assert [only(place), has_seal(place, 7), notes(place, 7)] == before


STOPS = ("_write_note", "_retire_seal", "_keep_note", "_replace")


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_killed_while_replacing(tmp_path: Path, stop: str, after: bool) -> None:
    """Killed at any step: each shard is whole, of one run or the other, and the seal, if there is one, is right."""
    save_all(tmp_path, 7, 2, run="one")
    assert run_forked(lambda: _killed(tmp_path, stop, after=after)) == -9
    values = values_of(tmp_path / "version-7")
    assert values["variables-1-of-2.ckpt"] == {1.0}
    assert values["variables-0-of-2.ckpt"] in ({1.0}, {2.0})
    is_mixture = values["variables-0-of-2.ckpt"] == {2.0}
    assert not (is_mixture and has_seal(tmp_path, 7))
    assert is_mixture == bool(mixed_runs(only(tmp_path)))
    assert verify_version(only(tmp_path), level="deep").ok is not is_mixture
    recover(str(tmp_path))
    assert [name for name in elasticdl_rules.leftovers(tmp_path) if not name.startswith("shards-0")] == []
    assert save_all(tmp_path, 7, 2, run="two", value=2.0).sealed
    assert verify_version(only(tmp_path), level="deep").findings == ()
    assert elasticdl_rules.leftovers(tmp_path) == []


def _killed(place: Path, stop: str, *, after: bool) -> None:
    """Save a shard of a second run, and die before or after a step."""
    owner: Any = commit_shard.DiskShard if stop == "_replace" else commit_shard.ShardOutput
    real = getattr(owner, stop)

    def dying(*args: Any, **more: Any) -> Any:
        if after:
            real(*args, **more)
        os.kill(os.getpid(), 9)

    setattr(owner, stop, dying)
    save_part(place, 7, 0, 2, run="two", value=2.0)


def test_notes_on_what_is_gone(tmp_path: Path) -> None:
    """`recover` removes notes of versions that are gone, once they are old; those of a version that is saved stay."""
    save_part(tmp_path, 7, 0, 2, run="one")
    save_part(tmp_path, 8, 0, 2, run="one")
    shutil.rmtree(tmp_path / "version-7")
    recover(str(tmp_path))
    assert (len(notes(tmp_path, 7)), len(notes(tmp_path, 8))) == (1, 1)  # its shard may be about to appear
    for path in (tmp_path / ".edl-ckpt-0/shards-0/7").iterdir():
        os.utime(path, (1, 1))
    assert recover(str(tmp_path)).done == ("removed the notes on the shards of version 7",)
    assert (notes(tmp_path, 7), len(notes(tmp_path, 8))) == ([], 1)
    assert save_part(tmp_path, 8, 1, 2, run="one").sealed


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"schema": "edl-ckpt/shard/1", "run": "one"}'])
def test_damaged_notes(tmp_path: Path, damage: bytes) -> None:
    """A note that cannot be used costs the seal, with a warning, and nothing else."""
    reporter = Recorder()
    save_part(tmp_path, 7, 0, 2, run="one")
    (note,) = (tmp_path / ".edl-ckpt-0/shards-0/7").iterdir()
    note.write_bytes(damage)
    saved = save_part(tmp_path, 7, 1, 2, run="one", reporter=reporter)
    assert (saved.complete, saved.sealed, len(reporter.warnings)) == (True, False, 1)
    assert verify_version(only(tmp_path), level="deep").findings == ()


def test_something_else_in_the_place_of_the_notes(tmp_path: Path) -> None:
    """A link where our notes belong is not followed: nothing is written through it, and readers go on."""
    outside = tmp_path / "outside"
    outside.mkdir()
    save_all(tmp_path / "run", 1, 1)
    (tmp_path / "run/.edl-ckpt-0/shards-0").symlink_to(outside)
    with pytest.raises(RefusedError, match="symbolic link"):
        save_part(tmp_path / "run", 2, 0, 1)
    assert list(outside.iterdir()) == []
    assert (latest(tmp_path / "run").version, verify_version(only(tmp_path / "run")).ok) == (1, True)
    recover(str(tmp_path / "run"))
    assert files_of(outside) == {}


def test_contradicting_servers_are_not_sealed(tmp_path: Path) -> None:
    """Servers that describe a table differently have saved no checkpoint: no seal, and `verify` says which table."""
    reporter = Recorder()
    save_part(tmp_path, 7, 0, 2)
    part = small_parts(2)[1]
    del part.tables["none"]
    with CheckpointSaver(tmp_path, ps_id=1, ps_num=2, run="a run", reporter=reporter) as saver:
        saved = saver.save(7, part.dense, part.tables)
    assert (saved.complete, saved.sealed) == (True, False)
    assert {f.subject for f in verify_version(only(tmp_path)).findings} == {"none"}
