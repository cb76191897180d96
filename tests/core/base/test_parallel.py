"""Whoever cleans up after an interruption waits for a storage that answers, and for no other."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from edl_ckpt.cli.terminal import signals
from edl_ckpt.core.base import parallel
from edl_ckpt.core.base.parallel import (
    SILENCE_SECONDS,
    Beside,
    answered,
    awaited,
    impatient,
    run_parallel,
    stop_requested,
)
from edl_ckpt.core.storage.files import Flusher
from edl_ckpt.core.storage.parts import Part, PartMemory


class _Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Return the clock by which silence is measured: this module's alone, as threads of others look at theirs."""
    found = _Clock()
    monkeypatch.setattr(parallel, "time", found)
    return found


def test_an_answer_gives_more_time(clock: _Clock) -> None:
    """Silence counts, and not the whole time; workers that are started in the block have the same bound."""
    with impatient(KeyboardInterrupt()):
        for _ in range(5):
            clock.now += SILENCE_SECONDS - 0.1
            assert not stop_requested()
            answered()
        assert list(run_parallel(lambda _: stop_requested(), range(3), 2)) == [False] * 3
        clock.now += SILENCE_SECONDS
        assert stop_requested()
        assert list(run_parallel(lambda _: stop_requested(), range(3), 2)) == [True] * 3
    assert not stop_requested()


def test_one_interruption_has_one_bound(clock: _Clock) -> None:
    """A second block waits no more for a storage that never answered, and again for one that did."""
    for answers in (False, True):
        end = SystemExit(143)
        with impatient(end):
            if answers:
                answered()
            clock.now += SILENCE_SECONDS
        with impatient(end):
            assert stop_requested() != answers


@pytest.mark.parametrize("error", [None, ValueError(), GeneratorExit()])
def test_other_errors_wait_as_long_as_ever(clock: _Clock, error: BaseException | None) -> None:
    """Only an interruption makes the cleaning impatient."""
    with impatient(error):
        clock.now += 1000
        assert not stop_requested()


def _in_parallel() -> None:
    list(run_parallel(lambda _: threading.Event().wait(0.005), range(20), 2))


def _beside() -> None:
    beside = Beside(2)
    try:
        for begun in [beside.begin(lambda: threading.Event().wait(0.005)) for _ in range(6)]:
            awaited(begun)
    finally:
        beside.close()


def _in_parts() -> None:
    """Fill parts that another thread sends, in memory for two of them: this thread waits for that."""
    memory = PartMemory(3 << 10)
    memory.expect(1 << 10)

    def send(part: Part) -> None:
        threading.Event().wait(0.005)
        memory.drop(part)

    try:
        for _ in range(6):
            part = memory.open(1 << 10)
            memory.lift(part)
            memory.senders.begin(functools.partial(send, part))
    finally:
        memory.close()


def _flushed() -> None:
    with Flusher([]) as flusher:
        flusher.all_written()
        flusher.wait()


@pytest.mark.parametrize(("work", "most"), [(_in_parallel, 16), (_beside, 16), (_in_parts, 16), (_flushed, 4)])
def test_a_signal_where_a_lock_is_taken(work: Callable[[], None], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal whose handler runs just when this thread has taken a condition ends the work, and no thread waits."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    enter = threading.Condition.__enter__
    for count in range(1, most):  # pool, threads, tasks and results take several
        seen: list[threading.Condition] = []

        def entered(condition: threading.Condition, count: int = count, seen: Any = seen) -> bool:
            taken = enter(condition)
            if threading.get_ident() == threading.main_thread().ident:
                seen.append(condition)
                if len(seen) == count:
                    signals._end(signal.SIGTERM, None)
            return taken

        monkeypatch.setattr(threading.Condition, "__enter__", entered)
        with pytest.raises(SystemExit) as raised:
            work()
        assert raised.value.code == 128 + signal.SIGTERM
