"""The coordinator of one machine: who belongs to a round, in which order, and what the others see of a loss."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core.base.errors import NotFoundError, UnavailableError, UsageError
from edl_ckpt.core.training.elastic import LocalCoordinator, MembershipError, StopException
from edl_ckpt.core.training.elastic.local import Registry
from members import Members
from waiting import wait_until


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    with Members(tmp_path) as started:
        yield started


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., LocalCoordinator]]:
    """Return a function that makes coordinators of one job; all are closed in the end."""
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(LocalCoordinator(tmp_path / "job", **options))


def together(*actions: Callable[[], object]) -> list[Any]:
    """Run actions of several members at once, and return the result of each, or its error."""
    results: list[Any] = [None] * len(actions)

    def run(at: int) -> None:
        try:
            results[at] = actions[at]()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[at] = error

    threads = [Thread(target=run, args=(at,)) for at in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return results


def meet(*coordinators: LocalCoordinator) -> None:
    """Let these coordinators meet, and fail if one of them cannot."""
    assert together(*(each.rendezvous_barrier for each in coordinators)) == [None] * len(coordinators)


def test_messages(job: Callable[..., LocalCoordinator]) -> None:
    """Broadcasts from any rank, gathered bytes, sums in the order of ranks: all members get the same."""
    found = [job(min_members=3) for _ in range(3)]
    meet(*found)
    assert sorted(each.rank for each in found) == [0, 1, 2]

    def talk(me: LocalCoordinator) -> list[Any]:
        me.barrier()
        large = b"x" * 3_000_000 if me.rank == 0 else b""
        summed = me.all_reduce(np.full((2, 3), me.rank + 1, np.int32))
        assert (summed.shape, summed.dtype.name) == ((2, 3), "int32")
        root = me.broadcast(b"%d" % me.rank, root=2)
        gathered = me.all_gather(b"r" * me.rank)
        return [root, gathered, summed.tolist(), len(me.broadcast(large)), me.should_rendezvous(None)]

    assert (
        together(*(lambda me=each: talk(me) for each in found))
        == [[b"2", [b"", b"r", b"rr"], [[6, 6, 6], [6, 6, 6]], 3_000_000, False]] * 3
    )
    with pytest.raises(UsageError, match="no rank 3"):
        found[0].broadcast(b"", root=3)


def test_the_oldest_member_leads(job: Callable[..., LocalCoordinator]) -> None:
    """Rank 0 is the oldest, through all rounds; who joins comes last; when the oldest leaves, the next one leads."""
    first, second = job(), job()
    meet(first)
    second_joins = Thread(target=second.rendezvous_barrier)
    second_joins.start()
    wait_until(lambda: first.should_rendezvous(None))
    first.rendezvous_barrier()
    second_joins.join(300)
    assert (first.rank, second.rank, second.world_size) == (0, 1, 2)
    first.close()
    with pytest.raises(MembershipError):
        second.barrier()
    meet(second)
    assert (second.rank, second.world_size) == (0, 1)


def test_who_does_not_fit_waits(job: Callable[..., LocalCoordinator]) -> None:
    """With max_members, one more waits and does not disturb the round; it takes the place of a member that leaves."""
    first, second, spare = (job(min_members=2, max_members=2) for _ in range(3))
    meet(first, second)
    waiting = Thread(target=spare.rendezvous_barrier)
    waiting.start()
    wait_until(lambda: len(first._registry.alive()) == 3)
    leader, other = (first, second) if first.rank == 0 else (second, first)
    wait_until(leader._knocks)
    assert together(lambda: leader.should_rendezvous(None), lambda: other.should_rendezvous(None)) == [False, False]
    other.close()
    with pytest.raises(MembershipError):
        leader.barrier()
    leader.rendezvous_barrier()
    waiting.join(300)
    assert (leader.world_size, spare.rank) == (2, 1)


def test_a_round_waits_for_late_members(job: Callable[..., LocalCoordinator]) -> None:
    """With `last_call_seconds`, a member that did not live yet when there were enough is in the same round."""
    first, second = (job(max_members=2, last_call_seconds=60.0, rendezvous_seconds=60.0) for _ in range(2))
    waiting = Thread(target=first.rendezvous_barrier)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    second.rendezvous_barrier()
    waiting.join(300)
    assert [(each.rank, each.world_size) for each in (first, second)] == [(0, 2), (1, 2)]


def test_a_last_call_ends(job: Callable[..., LocalCoordinator]) -> None:
    """A round begins without others after the last call, or when the run ends meanwhile; 0 waits for nobody."""
    began = time.monotonic()
    alone = job(last_call_seconds=0.2)
    meet(alone)
    assert (alone.world_size, time.monotonic() - began >= 0.2) == (1, True)
    alone.close()
    meet(other := job())
    assert other.world_size == 1
    other.close()
    patient = job(last_call_seconds=600.0)
    results: list[Any] = []
    waiting = Thread(target=lambda: results.extend(together(patient.rendezvous_barrier)))
    waiting.start()
    wait_until(lambda: patient._listener is not None)
    other.signal_training_done()
    waiting.join(300)
    assert [type(each) for each in results] == [StopException]
    for wrong in (-1.0, float("nan")):
        with pytest.raises(UsageError, match="last_call_seconds"):
            job(last_call_seconds=wrong)


def test_too_few_members_is_an_error(job: Callable[..., LocalCoordinator]) -> None:
    """When too few come in time, the error says how many there are."""
    alone = job(min_members=2, rendezvous_seconds=0.1)
    with pytest.raises(UnavailableError, match=r"it needs 2 living members .* and 1 live"):
        alone.rendezvous_barrier()
    with pytest.raises(UsageError, match="min_members"):
        job(min_members=3, max_members=2)


def test_a_finished_run_stays_finished(job: Callable[..., LocalCoordinator], caplog: pytest.LogCaptureFixture) -> None:
    """When one member has no more data, all stop, and nobody can join any more, which the log says."""
    first, second = job(min_members=2), job(min_members=2)
    meet(first, second)
    first.signal_training_done()
    assert second.should_stop_training()
    with pytest.raises(MembershipError):
        second.barrier()
    with pytest.raises(StopException):
        second.rendezvous_barrier()
    assert caplog.text == ""
    with pytest.raises(StopException):
        job().rendezvous_barrier()
    assert "this run has ended; a new run needs another directory" in caplog.text


def test_members_that_do_different_things(job: Callable[..., LocalCoordinator]) -> None:
    """A mistake in a program is an error that says so, and does not hang."""
    found = [job(min_members=2) for _ in range(2)]
    meet(*found)
    found.sort(key=lambda each: each.rank)
    results = together(lambda: found[0].broadcast(b"data"), lambda: found[1].all_gather(b"data"))
    results += together(lambda: found[0].all_gather(b""), found[1].barrier)
    assert any(isinstance(result, UsageError) and "the same order" in str(result) for result in results)


def test_a_loss_ends_the_round_for_all(job: Callable[..., LocalCoordinator]) -> None:
    """Who talks with no lost member itself learns of the loss from rank 0, at once and at each later try."""
    found = [job(min_members=3, timeout_seconds=60) for _ in range(3)]
    meet(*found)
    first, second, third = sorted(found, key=lambda each: each.rank)
    third.close()
    for error in [*together(first.barrier, second.barrier), *together(second.barrier)]:
        assert isinstance(error, MembershipError)
        assert "no answer in time" not in str(error)


def test_a_step_counts_when_all_have_finished_it(job: Callable[..., LocalCoordinator]) -> None:
    """`should_rendezvous` is a barrier: rank 0 does not go on before the others have finished the step."""
    found = [job(min_members=2) for _ in range(2)]
    meet(*found)
    first, second = sorted(found, key=lambda each: each.rank)
    leader = Thread(target=first.should_rendezvous, args=(None,))
    leader.start()
    leader.join(0.2)
    assert leader.is_alive()
    assert not second.should_rendezvous(None)
    leader.join(300)
    assert not leader.is_alive()


def test_a_stranger_cannot_join(job: Callable[..., LocalCoordinator]) -> None:
    """A process that does not know the secret of the job is sent away; the secret is for this user alone."""
    leader = job()
    meet(leader)
    address = leader._registry.leader()
    assert address is not None
    with socket.create_connection(("127.0.0.1", address.port), timeout=60) as stranger:
        stranger.sendall(bytes(32) + (7).to_bytes(8, "little"))
        wait_until(lambda: not leader.should_rendezvous(None) and _is_at_end(stranger))
    directory = Path(leader._registry.directory)
    assert {oct(path.stat().st_mode & 0o777) for path in directory.iterdir()} == {"0o600"}
    assert directory.stat().st_mode & 0o777 == 0o700


def _is_at_end(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


def test_a_child_of_a_member_is_no_member(tmp_path: Path, members: Members) -> None:
    """A process that a member has forked, and that outlives it, does not keep it alive for the others."""

    def member(note: Callable[[str], None]) -> None:
        coordinator = LocalCoordinator(tmp_path / "job")
        coordinator.rendezvous_barrier()
        child = os.fork()
        if child == 0:
            signal.pause()
        note(str(child))
        signal.pause()

    pid = members.start("parent", member)
    wait_until(lambda: members.lines("parent"), seconds=60)
    child = int(members.lines("parent")[0])
    registry = Registry(str(tmp_path / "job"))
    try:
        assert registry.alive() == [1]
        members.kill(pid)
        assert registry.alive() == []
        assert not list((tmp_path / "job").glob("member-*"))
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_removed_directory_is_an_error(job: Callable[..., LocalCoordinator], tmp_path: Path) -> None:
    """Without the files of its members a job cannot go on, and says so."""
    leader = job()
    meet(leader)
    (tmp_path / "job" / "member-1").unlink()
    with pytest.raises(NotFoundError, match="files of the members were removed"):
        leader.rendezvous_barrier()
