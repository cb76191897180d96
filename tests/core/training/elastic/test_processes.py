"""A job of real processes: errors, kills, newcomers, and checkpoints, each against a run without any of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import list_versions
from edl_ckpt.core.training.elastic import FileSystemCheckpointManager, LocalCoordinator, train
from members import Members, Model, make_step, trained
from waiting import wait_until

Note = Callable[[str], None]


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    with Members(tmp_path) as started:
        yield started


def result_of(members: Members, name: str) -> np.ndarray:
    """Return the weights that a member noted at its end."""
    return np.array([float(word) for word in members.lines(name)[-1].split()])


def run(
    tmp_path: Path,
    note: Note,
    *,
    steps: int,
    step: Callable[[Model], None] = make_step,
    min_members: int = 1,
    save_every: int = 0,
) -> None:
    """Be a member: train, and note what happened, and the weights last."""
    manager = FileSystemCheckpointManager(tmp_path / "run") if save_every else None
    with LocalCoordinator(tmp_path / "job", min_members=min_members) as coordinator:
        model = Model(coordinator, steps=steps, save_every=save_every)
        done = train(coordinator, step, model, checkpoint_manager=manager)
        note(f"rollbacks {done.rollbacks} failures {done.failures} first {model.step - done.steps}")
        note(" ".join(map(repr, model.weights.tolist())))


def test_an_error_in_one_member_is_rolled_back_in_all(tmp_path: Path, members: Members) -> None:
    """One of three members fails in the middle of a step: all roll it back and repeat it; the result is the same."""

    def fail_once(model: Model, failures: list[int]) -> None:
        if model.step == 3 and not failures:
            failures.append(model.step)
            model.weights[:] = np.nan
            raise RuntimeError("out of memory, for instance")
        make_step(model)

    def action(number: int) -> Callable[[Note], None]:
        failures = [] if number == 1 else [0]
        return lambda note: run(tmp_path, note, steps=6, step=lambda m: fail_once(m, failures), min_members=3)

    pids = [members.start(str(number), action(number)) for number in range(3)]
    assert members.wait(*pids) == [0, 0, 0]
    for number in range(3):
        np.testing.assert_array_equal(result_of(members, str(number)), trained(6))
        rollbacks, failures = members.lines(str(number))[-2].split()[1:4:2]
        assert (rollbacks, failures) == ("1", "1" if number == 1 else "0")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_member_is_replaced(tmp_path: Path, members: Members, victim: int) -> None:
    """Kill -9 of rank 0, or of another: the others go on, a newcomer gets their state, and the result is the same."""
    go = tmp_path / "go"

    def step(model: Model, note: Note) -> None:
        if model.step == 3:
            note("at 3")
            wait_until(go.exists, seconds=600)
        make_step(model)

    def action(note: Note) -> None:
        run(tmp_path, note, steps=8, step=lambda m: step(m, note), min_members=3)

    pids = []
    for number in range(3):  # one after the other, so that number 0 gets rank 0
        pids.append(members.start(str(number), action))
        wait_until((tmp_path / "job" / f"member-{number + 1}").exists, seconds=300)
    for number in range(3):
        members.wait_for_line(str(number), "at 3")
    members.kill(pids.pop(victim))
    newcomer = members.start("newcomer", action)
    go.touch()
    assert members.wait(*pids, newcomer) == [0, 0, 0]
    for name in {"0", "1", "2", "newcomer"} - {str(victim)}:
        np.testing.assert_array_equal(result_of(members, name), trained(8))
    assert members.lines("newcomer")[0] == "at 3"
    assert members.lines("newcomer")[-2] == "rollbacks 0 failures 0 first 3"


def test_a_job_that_lost_all_members_begins_at_the_latest_checkpoint(tmp_path: Path, members: Members) -> None:
    """All are killed: new members load the newest checkpoint that is whole, past a damaged one; the result is equal."""

    def stop_at(model: Model, note: Note, last: int) -> None:
        if model.step == last:
            note("stopped")
            wait_until(lambda: False, seconds=600)
        make_step(model)

    def action(last: int) -> Callable[[Note], None]:
        return lambda note: run(
            tmp_path, note, steps=9, step=lambda m: stop_at(m, note, last), min_members=2, save_every=2
        )

    pids = [members.start(name, action(7)) for name in "ab"]
    for name in "ab":
        members.wait_for_line(name, "stopped")
    for pid in pids:
        members.kill(pid)
    versions = list_versions(tmp_path / "run").versions
    assert [v.version for v in versions] == [1, 2, 3]
    shard = Path(versions[-1].shards[0].path)
    data = bytearray(shard.read_bytes())
    data[-9] ^= 1
    shard.write_bytes(data)
    pids = [members.start(name, action(-1)) for name in "cd"]
    assert members.wait(*pids) == [0, 0]
    for name in "cd":
        np.testing.assert_array_equal(result_of(members, name), trained(9))
        assert members.lines(name)[-2] == "rollbacks 0 failures 0 first 4"


@pytest.mark.parametrize("call", ["rename", "fsync"])
def test_a_commit_that_is_killed_leaves_the_older_checkpoint(tmp_path: Path, members: Members, call: str) -> None:
    """A process is killed within the commit: nothing of that checkpoint is visible, and the older one is the latest."""
    manager = FileSystemCheckpointManager(tmp_path / "run")

    def save(content: bytes) -> None:
        checkpoint = manager.create_checkpoint()
        with checkpoint.open_output_stream() as stream:
            stream.write(content)
        checkpoint.commit()

    def die(note: Note) -> None:
        setattr(os, call, lambda *_, **__: os._exit(9))
        save(b"new")

    save(b"old")
    assert members.wait(members.start("dying", die)) == [9]
    latest = manager.get_latest_checkpoint()
    assert latest is not None
    with latest.open_input_stream() as stream:
        assert stream.read() == b"old"
    assert [v.version for v in list_versions(tmp_path / "run").versions] == [1]
    save(b"newer")
    assert [v.version for v in list_versions(tmp_path / "run").versions] == [1, 2]
    assert not list((tmp_path / "run" / ".edl-ckpt-0").glob("stage-0/*"))
