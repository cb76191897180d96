"""What a look costs, and what wakes a follower up."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoints import save_small
from edl_ckpt.core import wait_for_version
from edl_ckpt.core.operations.follow import observe
from edl_ckpt.core.operations.follow.observe import CLOCK, Notifier, Pace
from edl_ckpt.core.operations.follow.watch import watch_steps
from edl_ckpt.core.storage.filesystems import reports_changes
from edl_ckpt.core.storage.interface import Entry
from edl_ckpt.core.storage.local import LocalStore
from edl_ckpt.core.storage.location import Location
from following import START, Job, Script, script, shard_data
from s3_fixtures import Bucket


def test_a_look_at_s3_is_one_request(s3: Bucket, tmp_path: Path) -> None:
    """Whatever the number of versions: one listing when nothing has changed, and one small read for what has."""
    save_small(tmp_path / "run", 1, 2, 3)
    s3.upload(tmp_path / "run")
    costs: list[list[str]] = []

    def counted() -> None:
        costs.append([request.operation for request in s3.proxy.requests])
        s3.proxy.reset()

    def tagged() -> None:
        counted()
        s3.put("run/.edl-ckpt-0/meta-0/2.json", b'{"schema": "edl-ckpt/meta/1", "version": 2, "tags": ["x"]}')

    def saved() -> None:
        counted()
        for ps_id in range(2):
            s3.put(f"run/version-4/variables-{ps_id}-of-2.ckpt", shard_data(4, ps_id, 2))

    steps = script(*[counted] * 4, tagged, *[counted] * 3, saved, *[counted] * 3)
    looks = watch_steps(s3.url, timeout_seconds=110, clock=steps.clock)
    events = [str(event.kind) for look in looks for event in look.events]
    assert events == ["new-version", "shard-arrived", "shard-arrived", "complete"]
    assert steps.waits[0] == 10  # seconds between two looks at storage that is far away
    assert [costs[k] for k in (1, 2, 3, 4, 6, 7, 8, 10)] == [["list"]] * 8
    assert costs[5].count("get") == 2  # the metadata, and the seal of its version
    assert costs[9].count("get") == 2  # the headers of two shards; their notes are listed


def test_a_wait_on_s3_reads_no_metadata(s3: Bucket) -> None:
    """Without a metric, a wait costs one listing, the headers and notes of one version, and in the end its metadata."""
    for number in range(1, 30):
        for ps_id in range(2):
            s3.put(f"run/version-{number}/variables-{ps_id}-of-2.ckpt", shard_data(number, ps_id, 2))
        s3.put(f"run/.edl-ckpt-0/meta-0/{number}.json", b"{}")
    found = wait_for_version(s3.url, timeout_seconds=0)
    assert found.version is not None
    assert found.version.version == 29
    assert (s3.proxy.count("list"), s3.proxy.count("get")) == (2, 4)


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the directories of versions that are listed."""
    directories: list[str] = []
    entries = LocalStore.entries

    def watched(store: LocalStore, inside: Callable[[str], bool]) -> list[Entry]:
        def noted(relative: str) -> bool:
            if is_listed := inside(relative):
                directories.extend([relative] if relative.startswith("version") else [])
            return is_listed

        return entries(store, noted)

    monkeypatch.setattr(LocalStore, "entries", watched)
    return directories


def test_settled_versions_on_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: list[str]) -> None:
    """On a file system of a network most looks leave out the versions in which nothing happens, and lose no event."""
    monkeypatch.setattr(observe, "reports_changes", lambda _: False)
    job = Job(tmp_path / "run")
    job.save(*range(10))
    costs: list[int] = []

    def counted() -> None:
        costs.append(len(listed))
        listed.clear()

    def again() -> None:  # in place: no directory changes
        counted()
        job.shard(3, 0)

    steps = script(*[counted] * 20, lambda: job.shard(10, 0), counted, again, *[counted] * 20)
    watched = watch_steps(job.run, timeout_seconds=400, clock=steps.clock)
    events = [(str(e.kind), e.version.version, e.at - START) for look in watched for e in look.events]
    assert steps.waits[0] == 10
    assert sorted(set(costs[8:20])) == [0, 10]
    assert costs[8:20].count(10) == 2
    assert [e[:2] for e in events] == [
        ("new-version", 10),
        ("shard-arrived", 10),
        ("shard-arrived", 3),
        ("complete", 3),
    ]
    assert events[-1][2] - 230 <= 60


def test_a_disk_is_listed_every_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel knows all changes, a look is cheap; an interval that is asked for is used as it is."""
    monkeypatch.setattr(observe, "reports_changes", lambda _: True)
    assert Pace(Location(str(tmp_path)), None, CLOCK).seconds == 1
    assert Pace(Location(str(tmp_path)), 0.25, CLOCK).seconds == 0.25
    assert Pace(Location("s3://bucket/run"), None, CLOCK).seconds == 10


def test_the_kernel_wakes_a_follower(tmp_path: Path) -> None:
    """A change of a file in a version ends the wait at once, and so does every change after it."""
    pytest.importorskip("watchfiles")
    if not reports_changes(str(tmp_path)):
        pytest.skip("a file system whose changes the kernel does not report")
    job = Job(tmp_path / "run")
    job.shard(10, 0, part=0.1)
    notifier = Notifier.start(str(job.run))
    assert notifier is not None
    try:
        for part in (0.5, 1.0):
            timer = threading.Timer(0.3, job.shard, (10, 0), {"part": part})
            timer.start()
            begin = time.monotonic()
            assert notifier.wait(60)
            assert time.monotonic() - begin < 30
            timer.join()
    finally:
        notifier.close()


def test_without_watchfiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is not installed, or the kernel refuses, a follower looks at its interval."""
    steps = Script(iter(()))
    monkeypatch.setattr(observe, "CLOCK", steps.clock)
    monkeypatch.setattr(observe, "reports_changes", lambda _: True)
    clock = observe.CLOCK
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    lonely = Pace(Location(str(tmp_path)), None, clock)
    lonely.pause()
    assert steps.waits == [1]

    def refused(*_: object, **__: object) -> Iterator[object]:
        raise OSError("no space left: the limit of watches")

    notifier = Notifier(str(tmp_path), refused)
    notifier._thread.start()
    assert not notifier.wait(30)


def test_metadata_of_one_instant(tmp_path: Path) -> None:
    """Metadata that is written twice within what a file system can tell apart is read again a little later."""
    save_small(tmp_path / "run", 1, sealed=False)
    run, meta = tmp_path / "run", tmp_path / "run/.edl-ckpt-0/meta-0/1.json"

    def noted(note: str) -> None:
        meta.parent.mkdir(parents=True, exist_ok=True)
        meta.write_text(json.dumps({"schema": "edl-ckpt/meta/1", "version": 1, "note": note}))
        os.utime(meta, (START, START))

    steps = script(lambda: noted("a"), lambda: noted("b"))
    *_, last = watch_steps(run, interval_seconds=1.0, timeout_seconds=9, clock=steps.clock)
    assert [seen.version.note for seen in last.moment.seen.values()] == ["b"]
