"""A reader never finds a version incomplete, or missing, because another command of ours is replacing it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from checkpoints import save_small
from edl_ckpt.core import (
    list_versions,
    open_checkpoint,
    parse_ref,
    reshard_version,
    resolve,
    verify_version,
    watch_location,
)
from edl_ckpt.core.base.errors import LockedError, ReplacedError
from edl_ckpt.core.catalog import annotated, swaps
from edl_ckpt.core.catalog.files import open_location
from edl_ckpt.core.catalog.listing import list_everything
from edl_ckpt.core.model.seals import Seal
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.export import export_version
from edl_ckpt.core.operations.verify import check
from edl_ckpt.core.operations.verify.check import find_seal
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.proof.trust import check_trust
from edl_ckpt.core.reading.reader import check_not_replaced
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import LocationLike
from edl_ckpt.core.storage.interface import Store
from following import START, script
from fork_server import server
from program import edl
from s3_fixtures import Bucket

LOOP = """
import os, sys, time
from edl_ckpt.core import open_checkpoint, parse_ref, reshard_version, resolve
from edl_ckpt.core.commit.publish import objects as remote
from edl_ckpt.core.storage import files

place, gap, times = sys.argv[1], sys.argv[2], int(sys.argv[3])
rest = 0 if gap == "ask" else 10 * float(gap)  # most of the time a reader meets no replacement
files.RENAME_EXCHANGE = 1 << 20  # a flag that no kernel knows: two renames
rename, settle = os.rename, remote.settle_remote

def wait():
    print("between", flush=True)
    if gap == "ask":
        sys.stdin.readline()
    else:
        time.sleep(float(gap))

def slow_rename(old, new, **kwargs):
    rename(old, new, **kwargs)
    if os.path.basename(new) == "old-version-7":
        wait()

def slow_settle(store, stage, journal):
    if journal.seal is not None:
        wait()
    return settle(store, stage, journal)

os.rename, remote.settle_remote = slow_rename, slow_settle
print("ready", flush=True)
for i in range(times):
    begin = time.monotonic()
    reshard_version(resolve(parse_ref(f"{place}@7")), 3 - i % 2)
    took = time.monotonic() - begin
    time.sleep(max(rest, 3 * took) if rest else 0)  # on a slow machine a reader needs more time between two of them
"""


@contextmanager
def resharding(place: str | Path, gap: str, times: int) -> Iterator[subprocess.Popen[str]]:
    """Run reshards in place, to 3 and 2 servers in turns, in a process that stays a while between the two states."""
    process = subprocess.Popen(
        [sys.executable, "-c", LOOP, str(place), gap, str(times)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def until_between(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "between\n"


def go_on(process: subprocess.Popen[str]) -> None:
    process.communicate("\n" * 9, timeout=120)
    assert process.returncode == 0


def read_all(place: LocationLike, tmp_path: Path, rounds: int, waits: list[str]) -> None:
    """Look at the version in every way until that succeeded so often, and a listing has met a replacement."""
    done = number = 0
    while done < rounds or "version-7" not in waits:
        number += 1
        listing = list_versions(place)
        assert [(v.version, v.state) for v in listing.versions] == [(7, State.COMPLETE)], number
        assert verify_version(resolve(parse_ref(f"{place}@7")), level="deep", beside=False).findings == ()
        try:
            with open_checkpoint(resolve(parse_ref(f"{place}@7"))) as checkpoint:
                assert sum(len(rows.ids) for rows in checkpoint.table("t")) == 60
            version = resolve(parse_ref(f"{place}@7"))
            assert export_version(version, str(tmp_path / "x.npz"), force=True).rows == 60
            done += 1
        except ReplacedError:  # between the listing and the reading: the program begins again by itself
            continue


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note each time that a listing finds a command at work."""
    found: list[str] = []
    real = swaps.replacements_at_work

    def noted(store: object) -> Iterator[tuple[str, tuple[int, str]]]:
        for directory, swap in real(store):  # type: ignore[arg-type]
            found.append(directory)
            yield directory, swap

    monkeypatch.setattr(swaps, "replacements_at_work", noted)
    return found


def test_readers_beside_reshards(tmp_path: Path, waits: list[str]) -> None:
    """During a loop of reshards in place, without an exchange, the version is always there and complete."""
    run = tmp_path / "run"
    save_small(run, 7)
    with resharding(run, "0.03", 10_000) as process:
        read_all(str(run), tmp_path, 10, waits)
        assert process.poll() is None


def test_followers_beside_a_reshard(tmp_path: Path) -> None:
    """One that follows the location sees a replacement when it is done, and between its two renames nothing at all."""
    run = tmp_path / "run"
    save_small(run, 7)
    with resharding(run, "ask", 1) as process:
        steps = script(lambda: until_between(process), lambda: go_on(process))
        events = list(watch_location(run, interval_seconds=1.0, timeout_seconds=5, clock=steps.clock))
    assert [(str(e.kind), e.replaced, e.at - START) for e in events] == [
        *[("shard-arrived", True, 2.0)] * 3,
        ("complete", True, 2.0),
    ]


def test_commands_beside_reshards(tmp_path: Path) -> None:
    """Commands end with 0 during such a loop too, because they begin again when a version was replaced under them."""
    run = tmp_path / "run"
    save_small(run, 7)
    with resharding(run, "0.03", 10_000) as process:
        for number in range(2):
            for arguments in (
                ["list", run],
                ["verify", f"{run}@7"],
                ["inspect", f"{run}@7"],
                ["export", f"{run}@7", tmp_path / f"{number}.npz"],
                ["copy", f"{run}@7", tmp_path / f"copy-{number}"],
            ):
                # Without the guard of ElasticDL's scan, which sees the location between two renames.
                env = {**os.environ, "XDG_CONFIG_HOME": "/nowhere"}
                done = server().run([*map(str, arguments)], cwd=None, env=env, timeout=120)
                assert done.returncode == 0, done.stderr
                assert "incomplete" not in done.stdout
        assert process.poll() is None


def test_readers_beside_reshards_on_s3(
    s3: Bucket, tmp_path: Path, waits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version is whole on S3 too, where placeholder objects and both sets of shards are visible for a time."""
    save_small(s3.url, 7)
    monkeypatch.setattr(swaps, "REMOTE_POLL_SECONDS", 0.05)
    with resharding(s3.url, "0.1", 10_000) as process:
        until_between(process)
        read_all(s3.url, tmp_path, 2, waits)
        assert process.poll() is None


def test_one_listing_waits(tmp_path: Path, s3: Bucket) -> None:
    """A listing in the middle of a replacement waits, up to its limit; then it names the process."""
    save_small(tmp_path / "run", 7)
    save_small(s3.url, 7)
    for place in (str(tmp_path / "run"), s3.url):
        with resharding(place, "ask", 1) as process:
            until_between(process)
            begin = time.monotonic()
            listing = list_versions(place, wait_seconds=0.3)
            assert time.monotonic() - begin >= 0.3
            assert list(listing.replacing) == [7]
            assert f"process {process.pid} on " in listing.replacing[7]
            assert any("is replacing it" in problem for problem in listing.problems)
            if listing.versions:  # on a disk it has no name just now
                with pytest.raises(LockedError, match="is replacing it"):
                    verify_version(listing.versions[0])
                with pytest.raises(LockedError, match="is replacing it"):
                    open_checkpoint(listing.versions[0])
            go_on(process)
            assert [v.state for v in list_versions(place).versions] == [State.COMPLETE]


def test_a_stopped_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the command is stopped between the two renames, naming the version is error 11, and not 10."""
    run = tmp_path / "run"
    save_small(run, 7)
    with resharding(run, "ask", 1) as process:
        until_between(process)
        os.kill(process.pid, signal.SIGSTOP)
        listed = swaps.Settling.__init__

        def short(settling: swaps.Settling, store: object, wait_seconds: float) -> None:
            listed(settling, store, min(wait_seconds, 0.3))  # type: ignore[arg-type]

        monkeypatch.setattr(swaps.Settling, "__init__", short)
        with pytest.raises(LockedError, match="is replacing it"):
            resolve(parse_ref(f"{run}@7"))
        os.kill(process.pid, signal.SIGCONT)
        go_on(process)
    assert resolve(parse_ref(f"{run}@7")).ps_num == 3


def test_a_killed_command(tmp_path: Path) -> None:
    """No reader waits for a command that was killed; the listing says how to recover."""
    run = tmp_path / "run"
    save_small(run, 7)
    with resharding(run, "ask", 1) as process:
        until_between(process)
    begin = time.monotonic()
    listing = list_versions(run, wait_seconds=120)
    assert time.monotonic() - begin < 100
    assert listing.replacing == {}
    assert any("edl-ckpt recover" in problem for problem in listing.problems)
    assert edl("recover", run).returncode == 0
    assert [v.state for v in list_versions(run).versions] == [State.COMPLETE]


def test_a_job_is_not_waited_for(tmp_path: Path) -> None:
    """A version that a job is writing is shown at once, in a location with state of ours too."""
    run = tmp_path / "run"
    save_small(run, 7)
    (run / "version-8").mkdir()
    (run / "version-8/variables-0-of-2.ckpt").touch()
    begin = time.monotonic()
    assert [v.state for v in list_versions(run, wait_seconds=120).versions] == [State.COMPLETE, State.WRITING]
    assert time.monotonic() - begin < 100


@pytest.mark.parametrize(("wait_seconds", "least"), [(120.0, 20), (0.0, 6)])
def test_a_busy_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_seconds: float, least: int) -> None:
    """A location in which names change during each listing is listed until they stay; who must not wait gives up."""
    save_small(tmp_path / "run", 7)
    reshard_version(resolve(parse_ref(f"{tmp_path}/run@7")), 3)  # state of ours
    listing, state = list_everything(tmp_path / "run")
    changes = iter(range(1, 20))
    monkeypatch.setattr(swaps, "names_changed_ns", lambda _: next(changes, 20))
    monkeypatch.setattr(swaps, "TICK_NS", 0)
    settling = swaps.Settling(open_location(tmp_path / "run"), wait_seconds)
    asked = 1
    while settling.wait(listing, state):
        asked += 1
    assert asked == least


@pytest.mark.parametrize("ps_num", [2, 3])
def test_the_seal_of_the_next_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ps_num: int) -> None:
    """A reader that has the names of the old shards and the seal of the new ones finds no damage."""
    run = tmp_path / "run"
    save_small(run, 7)
    old = resolve(parse_ref(f"{run}@7"))
    real = find_seal

    def replaced_meanwhile(store: Store, version: Version, *, use_seal: bool) -> tuple[Seal | None, Report]:
        monkeypatch.setattr(check, "find_seal", real)
        reshard_version(old, ps_num)
        return real(store, version, use_seal=use_seal)

    monkeypatch.setattr(check, "find_seal", replaced_meanwhile)
    assert verify_version(old, level="deep").findings == ()
    with pytest.raises(ReplacedError):
        open_checkpoint(old) if ps_num == 3 else check_not_replaced(old)


def test_the_seal_of_the_next_shards_in_a_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same mixture is no damage for a listing, nor for a command that relies on the seal."""
    run = tmp_path / "run"
    save_small(run, 7)
    old = resolve(parse_ref(f"{run}@7"))
    real = read_seal

    def replaced_meanwhile(store: Store, version: int, **options: bool) -> Seal | None:
        monkeypatch.setattr(annotated, "read_seal", real)
        reshard_version(old, 3)
        return real(store, version, **options)

    monkeypatch.setattr(annotated, "read_seal", replaced_meanwhile)
    (found,) = list_versions(run).versions
    assert (found.ps_num, found.seal_fault) == (3, "")
    with pytest.raises(ReplacedError):
        check_trust(old)
