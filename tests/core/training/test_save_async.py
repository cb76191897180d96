"""Saving in the background: the snapshot, one save at a time, errors, and the end of the interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from checkpoints import numbers, only
from edl_ckpt.core import CheckpointSaver, EdlCkptError, Table, TableBatches, open_checkpoint, verify_version
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.training.background import PendingSave
from reporters import Recorder


class Gate(Recorder):
    """A reporter at which a save waits, when it begins to write, until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened = threading.Event()
        self.arrived = threading.Event()

    def start(self, what: str, total_bytes: int) -> None:
        """Wait for the test."""
        if what == "saving":
            self.arrived.set()
            assert self.opened.wait(300)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return a gate that is open at the end, so that no thread waits for ever."""
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Return an event that is set when the loop begins to wait for a save under way."""
    begun, real = threading.Event(), PendingSave.wait

    def wait(pending: PendingSave) -> None:
        begun.set()
        real(pending)

    monkeypatch.setattr(PendingSave, "wait", wait)
    return begun


def read(place: Path, version: int, name: str = "w") -> list[float]:
    """Return a variable of a version."""
    with open_checkpoint(f"{place}@{version}") as checkpoint:
        values: list[float] = checkpoint.variable(name).tolist()
    return values


def test_the_snapshot_is_of_the_moment(tmp_path: Path, gate: Gate) -> None:
    """What the loop changes while the save is under way is not in it; neither in variables nor in tables."""
    weights, ids, rows = np.ones(3), np.arange(4), np.ones((4, 2), np.float32)
    strided = np.ones((4, 4), np.float32)[:, ::2]
    with CheckpointSaver(tmp_path, reporter=gate) as saver:
        pending = saver.save_async(1, {"w": weights, "s": strided}, {"t": Table(ids, rows)})
        assert gate.arrived.wait(300)
        weights[:], rows[:], ids[:], strided[:] = 2, 2, 9, 2
        assert not pending.is_done
        gate.opened.set()
        assert pending.result().sealed
    with open_checkpoint(f"{tmp_path}@1") as checkpoint:
        assert checkpoint.variable("w").tolist() == [1, 1, 1]
        assert checkpoint.variable("s").tolist() == [[1, 1]] * 4
        (batch,) = checkpoint.table("t")
        assert (batch.ids.tolist(), batch.vectors.tolist()) == ([0, 1, 2, 3], [[1, 1]] * 4)


def test_buffers_are_used_again(tmp_path: Path) -> None:
    """A snapshot after a snapshot has its own values, whether arrays grow, shrink, change their dtype or go."""
    with CheckpointSaver(tmp_path) as saver:
        for version in range(1, 6):
            size, dtype = (3, 5, 2, 2, 90)[version - 1], ("f4", "f4", "f4", "i8", "f8")[version - 1]
            dense = {"w": np.full(size, version, dtype)} | ({"x": np.zeros(1)} if version % 2 else {})
            saver.save_async(version, dense, {"t": (np.arange(version), np.full((version, 2), version, "f4"))})
    assert [read(tmp_path, v) for v in (1, 2, 3, 4)] == [[1] * 3, [2] * 5, [3] * 2, [4] * 2]
    assert read(tmp_path, 5) == [5] * 90
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]


def test_one_save_at_a_time(tmp_path: Path, gate: Gate, waiting: threading.Event) -> None:
    """The next call waits for the save under way, and reports how long: that is the back-pressure."""
    saver = CheckpointSaver(tmp_path, reporter=gate)
    first = saver.save_async(1, {"w": np.ones(3)}, {})
    assert gate.arrived.wait(300)

    def let_wait() -> None:
        waiting.wait()
        threading.Event().wait(0.2)
        gate.opened.set()

    opener = threading.Thread(target=let_wait)
    opener.start()
    second = saver.save_async(2, {"w": np.ones(3)}, {})
    opener.join()
    assert first.is_done
    assert second.blocked_seconds >= 0.2
    assert second.result().blocked_seconds == second.blocked_seconds
    saver.close()
    assert numbers(tmp_path) == [1, 2]


def test_a_signal_while_the_loop_waits(tmp_path: Path, gate: Gate, waiting: threading.Event) -> None:
    """An interrupted wait forgets no save: the next one takes no buffer away from the save that is still under way."""
    weights, loop, interrupted = np.ones(3), threading.get_ident(), threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            threading.Timer(0.2, gate.opened.set).start()
            raise KeyboardInterrupt

    def alarm() -> None:
        waiting.wait()
        while not interrupted.wait(0.1):  # a signal that comes just before the wait begins does not end it
            signal.pthread_kill(loop, signal.SIGALRM)

    sender = threading.Thread(target=alarm)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with CheckpointSaver(tmp_path, reporter=gate) as saver:
            first = saver.save_async(1, {"w": weights}, {})
            weights[:] = 2
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                saver.save_async(2, {"w": weights}, {})
            second = saver.save_async(2, {"w": weights}, {})
            assert first.is_done
            assert (first.result().version, second.result().version) == (1, 2)
    finally:
        interrupted.set()
        waiting.set()
        if sender.is_alive():
            sender.join()
        signal.signal(signal.SIGALRM, before)
    assert (read(tmp_path, 1), read(tmp_path, 2)) == ([1.0] * 3, [2.0] * 3)


def test_arrays_that_are_handed_over(tmp_path: Path, gate: Gate) -> None:
    """With `copy=False` nothing is copied: the save takes the arrays as they are when it writes them."""
    weights = np.ones(3)
    with CheckpointSaver(tmp_path, reporter=gate) as saver:
        saver.save_async(1, {"w": weights}, {}, copy=False)
        assert gate.arrived.wait(300)
        weights[:] = 2
        gate.opened.set()
    assert read(tmp_path, 1) == [2, 2, 2]


def test_batches_can_only_be_handed_over(tmp_path: Path) -> None:
    """A table in batches has no snapshot; handed over, it is taken in the background."""
    table = TableBatches(lambda: [(np.arange(3), np.ones((3, 2), np.float32))], 2)
    with CheckpointSaver(tmp_path) as saver:
        with pytest.raises(UsageError, match="batches cannot be copied"):
            saver.save_async(1, {}, {"t": table})
        assert saver.save_async(1, {}, {"t": table}, copy=False).result().rows == 3


BAD: dict[str, Any] = {"t": (np.array([1, 1]), np.ones((2, 1)))}


def test_errors_come_once(tmp_path: Path) -> None:
    """An error of the background is raised by whoever asks first: the result, the next call, or `close`."""
    saver = CheckpointSaver(tmp_path)
    saver.save_async(1, {}, BAD)
    with pytest.raises(EdlCkptError, match="id 1 occurs twice"):
        saver.save(2, {}, {})
    saver.save_async(3, {}, BAD)
    with pytest.raises(EdlCkptError, match="id 1 occurs twice"):
        saver.save_async(4, {}, {})
    pending = saver.save_async(5, {}, BAD)
    with pytest.raises(EdlCkptError, match="id 1 occurs twice"):
        pending.result()
    saver.save(6, {}, {})
    saver.save_async(7, {}, BAD)
    with pytest.raises(EdlCkptError, match="id 1 occurs twice"):
        saver.close()
    saver.close()
    for save in (saver.save, saver.save_async):
        with pytest.raises(UsageError, match="the saver is closed"):
            save(8, {}, {})
    assert numbers(tmp_path) == [6]


def test_an_error_of_the_loop_comes_first(tmp_path: Path) -> None:
    """Where the loop itself fails, its error goes on, with a note about the save that failed too."""

    def loop() -> None:
        with CheckpointSaver(tmp_path) as saver:
            saver.save_async(1, {}, BAD)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        loop()
    (note,) = caught.value.__notes__
    assert "a save in the background failed too: table 't': id 1 occurs twice" in note


def test_bugs_are_raised_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends the thread is raised, also what is no error of ours."""
    reporter = Recorder()
    monkeypatch.setattr(reporter, "advance", Mock(side_effect=RuntimeError("a bug")))
    saver = CheckpointSaver(tmp_path, reporter=reporter)
    saver.save_async(1, {"w": np.ones(2)}, {})
    with pytest.raises(RuntimeError, match="a bug"):
        saver.close()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def run_script(text: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a script to its end in an interpreter of its own; it gets a location."""
    script = "import sys, numpy as np\nfrom edl_ckpt.core import CheckpointSaver\n" + textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", script, str(place)], capture_output=True, text=True, timeout=120, check=False
    )


def test_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """A script that ends without `close` has its last save whole; one that failed is reported on stderr."""
    done = run_script(
        """
        saver = CheckpointSaver(sys.argv[1])
        saver.save_async(1, {"w": np.ones(20_000_000, np.float32)}, {"t": (np.arange(99), np.ones((99, 2)))})
        other = CheckpointSaver(sys.argv[1] + "-2")
        other.save_async(2, {}, {"t": (np.array([1, 1]), np.ones((2, 1)))})
        """,
        tmp_path / "run",
    )
    assert done.returncode == 0
    assert "id 1 occurs twice" in done.stderr
    assert "Traceback" not in done.stderr
    assert (verify_version(only(tmp_path / "run"), level="deep").findings, numbers(tmp_path / "run")) == ((), [1])


def test_an_exception_does_not_cut_the_save_short(tmp_path: Path) -> None:
    """A loop that dies of an error leaves the save that it had begun whole."""
    done = run_script(
        """
        CheckpointSaver(sys.argv[1]).save_async(1, {"w": np.ones(20_000_000, np.float32)}, {})
        1 / 0
        """,
        tmp_path,
    )
    assert "ZeroDivisionError" in done.stderr
    assert verify_version(only(tmp_path), level="deep").findings == ()
