"""The lock on storage without rename needs no conditional write, and a dead one is always taken over."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.state import remote_lock
from edl_ckpt.core.state.lock import holding
from edl_ckpt.core.state.remote_lock import RemoteLock
from edl_ckpt.core.storage import Location, open_store
from reporters import Recorder
from s3_fixtures import Bucket
from s3_proxy import Call, Fault, Forward, Reply, hook, status
from waiting import wait_until

OTHER = "20260101T000000-elsewhere_00000000-7-{:08x}"
"""The claim of a process on another host."""


class Board:
    """A storage with its own clock, as much of one as the lock needs: each listing shows all that was written."""

    location = Location("board://run")

    def __init__(self) -> None:
        self.now = 0.0
        self.files: dict[str, tuple[float, bytes]] = {}

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a file."""
        self.files[relative] = self.now, data

    def read_small(self, relative: str) -> bytes | None:
        """Return a file."""
        return self.files.get(relative, (0.0, None))[1]

    def remove(self, relative: str) -> None:
        """Remove a file."""
        self.files.pop(relative, None)

    def remove_directory(self, relative: str) -> None:
        """Do nothing: there are no directories."""

    def ages(self, relative: str) -> dict[str, float]:
        """Return the files of a directory and their ages."""
        found = dict(self.files)
        return {name.removeprefix(f"{relative}/"): self.now - at for name, (at, _) in found.items()}


@pytest.fixture
def board() -> Board:
    """Return an empty storage."""
    return Board()


def lock_of(store: Any, purpose: str = "test", recorder: Recorder | None = None) -> RemoteLock:
    return RemoteLock(store, purpose, (recorder or Recorder()).warn)


def files(store: Any) -> set[str]:
    """The names of all objects of the lock, but for the marks of claims that were lost: those stay for a day."""
    return {name for name in store.ages(".edl-ckpt-0/lock-0") if not name.endswith(".lost")}


def test_never_two_holders(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many processes that want the lock at once, one has it at a time, and all of them get it."""
    real = Board.ages

    def slow(self: Board, relative: str) -> dict[str, float]:
        for _ in range(random.randrange(20)):
            os.sched_yield()
        found = real(self, relative)
        for _ in range(random.randrange(20)):
            os.sched_yield()
        return found

    monkeypatch.setattr(Board, "ages", slow)
    monkeypatch.setattr(RemoteLock, "poll_seconds", 0.002)
    monkeypatch.setattr(remote_lock, "ROUND_SECONDS", 0.002)
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        lock = lock_of(board)
        for _ in range(5):
            with holding(lock, board.location, wait_seconds=300):
                inside.append(number)
                most.append(len(inside))
                os.sched_yield()
                inside.remove(number)
            lock = lock_of(board)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert (max(most), len(most)) == (1, 30)
    assert files(board) == set()


def refuse_conditions(call: Call, forward: Forward) -> Reply | None:
    """Answer 412 to every conditional request, as no dialect is worse."""
    if call.request.if_match or call.request.if_none_match:
        return status(412, "PreconditionFailed")(call, forward)
    return forward(call)


def without_conditions(call: Call, forward: Forward) -> Reply | None:
    """Forward without the conditions."""
    kept = tuple((name, value) for name, value in call.headers if not name.lower().startswith("if-"))
    return forward(replace(call, headers=kept))


@pytest.mark.parametrize("dialect", [refuse_conditions, without_conditions])
def test_dead_lock_is_taken_over_in_every_dialect(s3: Bucket, dialect: Any) -> None:
    """Whatever a service makes of conditions, there is one holder, and the lock of a dead one is taken."""
    s3.proxy.fail(Fault(dialect, times=None))
    store = open_store(s3.url)
    recorder = Recorder()
    first = lock_of(store, "first")
    assert first.take()
    assert not lock_of(store).take()
    first.check()
    first.release()
    assert files(store) == set()
    script = "import os, sys\nfrom edl_ckpt.core.commit.repair.recovery import location_lock\n"
    script += "with location_lock(sys.argv[1], 'killed', create=True): os._exit(9)\n"
    assert subprocess.run([sys.executable, "-c", script, s3.url], check=False).returncode == 9
    next_one = lock_of(store, "next", recorder)
    assert next_one.take()
    assert "took over the stale lock of process" in recorder.warnings[0]
    assert "(killed)" in recorder.warnings[0]
    next_one.release()
    assert files(store) == set()


def test_a_release_that_fails(s3: Bucket) -> None:
    """A claim that could not be removed at the end stops neither this process nor another one later."""
    store = open_store(s3.url)
    first = lock_of(store)
    assert first.take()
    armed = s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="delete", times=None))
    first.release()
    assert armed.hits >= 1
    s3.proxy.heal()
    assert len(files(store)) == 1
    second = lock_of(store)
    assert second.take()
    second.release()
    assert files(store) == set()


def test_other_host(board: Board) -> None:
    """A holder on another host counts as dead after ten minutes without a sign of life, and not before."""
    claim = OTHER.format(1)
    board.write_small(f".edl-ckpt-0/lock-0/{claim}", json.dumps({"pid": 7, "host": "elsewhere"}).encode())
    recorder = Recorder()
    lock = lock_of(board, recorder=recorder)
    assert not lock.take()
    assert lock.read()["host"] == "elsewhere"
    board.now = 700
    board.write_small(f".edl-ckpt-0/lock-0/{claim}.alive", b"{}")
    board.now = 1299
    assert not lock.take()
    board.now = 1300
    assert lock.take()
    assert "took over the stale lock of process 7 on elsewhere" in recorder.warnings[0]
    lock.release()
    assert files(board) == set()


def test_a_holder_that_wakes_up_is_not_robbed(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes over while the holder proves its lock; in every order, not both of them go on."""
    real = Board.ages
    for step in range(1, 6):  # the listing of the taker before which the holder proves its lock
        outcome: list[bool] = []
        holder, taker = lock_of(board, "holder"), lock_of(board, "taker")
        assert holder.take()
        count = 0

        def ages(self: Any, relative: str, step: int = step, holder: Any = holder, outcome: Any = outcome) -> Any:
            nonlocal count
            if threading.current_thread().name == "taker":
                count += 1
                if count == step:
                    thread = threading.Thread(target=prove, args=(holder, outcome))
                    thread.start()
                    thread.join()
            return real(self, relative)

        def prove(holder: RemoteLock, outcome: list[bool]) -> None:
            try:
                holder.check()
            except LockedError:
                outcome.append(False)
            else:
                outcome.append(True)

        taken: list[bool] = []
        board.now += 1000  # the holder sleeps beyond its lock
        with monkeypatch.context() as patch:
            patch.setattr(Board, "ages", ages)
            thread = threading.Thread(target=lambda t=taker, b=taken: b.append(t.take()), name="taker")
            thread.start()
            thread.join()
        if count < step:  # the taker had the lock before: now the holder knows
            prove(holder, outcome)
        assert not (outcome[0] and taken[0]), step
        assert outcome[0] or taken[0] or step == 2
        holder.release()
        taker.release()
        assert files(board) == set()


def test_a_doubt_of_a_dead_process_is_swept(board: Board) -> None:
    """What a process left that was killed while it took the lock over is gone after the next command."""
    claim = OTHER.format(1)
    for name in (f"{claim}.doubt.{OTHER.format(2)}", f"{claim}.alive"):
        board.write_small(f".edl-ckpt-0/lock-0/{name}", b"{}")
    lock = lock_of(board)
    assert lock.take()
    lock.release()
    assert files(board) == set()


def test_late_requests_of_the_last_holder(board: Board) -> None:
    """A holder that was robbed and wakes up removes and replaces nothing of the next one."""
    first, second = lock_of(board, "first"), lock_of(board, "second")
    assert first.take()
    board.now += 1000
    assert second.take()
    first._sign()
    with pytest.raises(LockedError, match=r"lost the lock while it was stopped.*\(second\)"):
        first.check()
    second.check()
    first.release()
    second.check()
    second.release()
    assert files(board) == set()


def test_a_storage_that_lists_late(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a listing does not show what was just written there can be no lock: a warning says so."""
    monkeypatch.setattr(Board, "ages", lambda *_: {})
    recorder = Recorder()
    lock = lock_of(board, recorder=recorder)
    assert lock.take()
    assert not lock.is_exclusive
    assert "has no locks; do not run another edl-ckpt command" in recorder.warnings[0]
    monkeypatch.undo()
    assert files(board) == set()


def test_a_proof_is_one_listing(s3: Bucket) -> None:
    """Taking the lock takes four requests at most, its proof one, and giving it back one."""
    lock = lock_of(open_store(Location(s3.url)))
    assert lock.take()
    assert s3.proxy.count() <= 4
    s3.proxy.reset()
    lock.check()
    assert (s3.proxy.count(), s3.proxy.count("list")) == (1, 1)
    lock.release()
    assert (s3.proxy.count(), s3.proxy.count("delete")) == (2, 1)


def test_heartbeat(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    """The holder shows every minute that it is alive; at its end nothing of that is left."""
    monkeypatch.setattr(remote_lock, "TOUCH_SECONDS", 0.01)
    lock = lock_of(board)
    assert lock.take()
    wait_until(lambda: any(name.endswith(".alive") for name in files(board)))
    lock.release()
    assert files(board) == set()


def test_two_at_once_on_s3(s3: Bucket) -> None:
    """Another process writes its claim between our claim and our listing: one of both has the lock."""
    first, second = lock_of(open_store(s3.url)), lock_of(open_store(s3.url))
    results: list[bool] = []
    s3.proxy.fail(Fault(hook(lambda _: results.append(second.take())), operation="list", nth=2))
    results.append(first.take())
    assert sorted(results) == [False, True]
    first.release()
    second.release()
    assert files(open_store(s3.url)) == set()
