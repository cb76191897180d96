"""A location that changes, and the events of one that watches it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from checkpoints import at, save_small
from edl_ckpt.core import State, list_versions, reshard_version, verify_and_seal
from edl_ckpt.core.base.errors import UnavailableError
from edl_ckpt.core.operations.follow.observe import EventKind, WatchEvent
from edl_ckpt.core.operations.follow.watch import watch_location
from edl_ckpt.core.storage.local import LocalStore
from examples import TIMES
from following import Job, Script, endless, script, shard_data
from reporters import Recorder

K = EventKind


def events(run: Path, steps: Script, *, seconds: float = 30.0, after: int | None = None) -> list[WatchEvent]:
    """Watch a location for some time."""
    return [*watch_location(run, after=after, interval_seconds=1.0, timeout_seconds=seconds, clock=steps.clock)]


def words(found: list[WatchEvent]) -> list[str]:
    """Return events in short."""
    return [f"{e.kind} {e.version.version}" + (f".{e.shard.ps_id}" if e.shard else "") for e in found]


def test_a_version_is_followed(tmp_path: Path) -> None:
    """A location appears, shards arrive, the last one is written in place: complete comes when it is whole."""
    job = Job(tmp_path / "run")
    steps = script(
        lambda: job.shard(10, 1),
        lambda: job.shard(10, 0, part=0.1),
        lambda: job.shard(10, 0, part=0.9),
        lambda: job.shard(10, 0),
        lambda: verify_and_seal(at(job.run, 10)),
        lambda: shutil.rmtree(job.run / "version-10"),
    )
    assert words(events(job.run, steps)) == [
        *("new-version 10", "shard-arrived 10.1", "shard-arrived 10.0", "complete 10", "sealed 10", "deleted 10"),
    ]


def test_what_is_there_already_is_no_news(tmp_path: Path) -> None:
    """A watch begins now, or behind a version; a version in the making is followed to its end in both cases."""
    job = Job(tmp_path / "run")
    job.save(10, 20)
    job.shard(30, 0)
    assert words(events(job.run, script(lambda: job.shard(30, 1)))) == ["shard-arrived 30.1", "complete 30"]
    found = words(events(job.run, script(), after=10))
    assert found == [
        w
        for n in (20, 30)
        for w in (f"new-version {n}", f"shard-arrived {n}.0", f"shard-arrived {n}.1", f"complete {n}")
    ]


def test_torn_at_the_start_and_complete_later(tmp_path: Path) -> None:
    """A version whose last shard is half written when the watch begins is not taken for complete."""
    job = Job(tmp_path / "run")
    job.save(10, 20)
    job.shard(20, 1, part=0.5)
    assert words(events(job.run, script(lambda: job.shard(20, 1)))) == ["complete 20"]


def test_corrupt_and_stalled(tmp_path: Path) -> None:
    """A damaged version is corrupt after half a minute; one that lacks a shard is stalled after the time asked for."""
    job = Job(tmp_path / "run")
    job.run.mkdir()

    def begin() -> None:
        job.shard(10, 0)
        job.shard(20, 0)
        job.shard(20, 1, part=0.5)

    found = events(job.run, script(begin), seconds=2000.0)
    late = [(str(e.kind), e.version.version, e.at) for e in found[-2:]]
    begun = found[0].at
    assert late == [("corrupt", 20, begun + 30), ("stalled", 10, begun + 600)]
    assert "variables-1-of-2" in found[-2].why
    assert found[-1].why == "it has 1 of 2 shards"


def test_a_reshard_in_place_is_a_replacement(tmp_path: Path) -> None:
    """A version that another command replaces is never gone or incomplete: it is complete again, with other shards."""
    save_small(tmp_path / "run", 10)
    found = events(tmp_path / "run", script(lambda: reshard_version(at(tmp_path / "run", 10), 3)))
    assert words(found) == [*(f"shard-arrived 10.{i}" for i in range(3)), "complete 10"]
    assert all(e.replaced for e in found)


def test_storage_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage is warned of once, deletes nothing, and ends without a person."""
    job, reporter = Job(tmp_path / "run"), Recorder()
    job.save(10)
    real = LocalStore.entries

    def silent(*_: object) -> list[object]:
        raise UnavailableError("storage does not answer", path=str(job.run))

    steps = script(
        lambda: monkeypatch.setattr(LocalStore, "entries", silent),
        lambda: job.save(20),
        lambda: None,
        lambda: monkeypatch.setattr(LocalStore, "entries", real),
    )
    watched = watch_location(job.run, interval_seconds=1.0, timeout_seconds=9, clock=steps.clock, reporter=reporter)
    assert [e.version.version for e in watched] == [20] * 4
    assert len(reporter.warnings) == 1


def actions(run: Path, data: st.DataObject) -> Iterator[Callable[[], object]]:
    """Yield steps of a job that does anything at random to four versions of two shards, for as long as it is asked."""
    job = Job(run)
    numbers, ids = st.integers(1, 4), st.integers(0, 1)
    parts = st.sampled_from([0.0, 0.3, 1.0, 1.0])

    def write() -> None:
        job.shard(data.draw(numbers), data.draw(ids), part=data.draw(parts))

    def remove() -> None:
        shutil.rmtree(run / f"version-{data.draw(numbers)}", ignore_errors=True)

    def several() -> None:
        for _ in range(data.draw(st.integers(0, 3))):
            write()

    for _ in range(12):
        yield data.draw(st.sampled_from([several, several, remove]))


@settings(
    max_examples=5 * TIMES,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(st.data())
def test_events_tell_the_whole_story(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever a job does, the events alone give the state of the location: versions, shards, and which are complete.

    A version is complete once, unless its shards were written again; then `replaced` says so.
    """
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    shards: dict[int, set[int]] = {}
    completed: Counter[int] = Counter()
    last: dict[int, tuple[object, ...]] = {}
    for event in events(run, endless(actions(run, data)), seconds=13.0):
        number = event.version.version
        match event.kind:
            case K.NEW_VERSION:
                assert number not in shards
                shards[number] = set()
            case K.SHARD_ARRIVED:
                assert event.shard is not None
                assert event.replaced or event.shard.ps_id not in shards[number]
                shards[number].add(event.shard.ps_id)
            case K.COMPLETE:
                assert shards[number] == {0, 1}
                assert last.get(number) != event.version.shards
                assert event.replaced == (completed[number] > 0)
                completed[number] += 1
                last[number] = event.version.shards
            case K.DELETED:
                del shards[number]
                completed[number] = 0
                last.pop(number, None)
    listed = {v.version: v for v in list_versions(run).versions}
    assert shards == {n: {s.ps_id for s in v.shards} for n, v in listed.items()}
    whole = {
        n
        for n, v in listed.items()
        if v.state is State.COMPLETE
        and [s.size_bytes for s in v.shards] == [len(shard_data(n, i, 2)) for i in range(2)]
    }
    assert {n for n in whole if last.get(n) == listed[n].shards} == whole
    assert {n for n, count in completed.items() if count} >= whole
