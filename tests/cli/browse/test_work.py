"""Jobs: results, errors and bugs come back, and a job that is given up ends, whatever it waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from edl_ckpt.cli.browse.source import BackgroundJob
from edl_ckpt.core import Reporter
from edl_ckpt.core.base.errors import EdlCkptError, NoSpaceError, NotFoundError, ReplacedError
from edl_ckpt.core.base.parallel import pause, run_parallel, stop_requested


def done(work: Callable[[BackgroundJob], Any]) -> BackgroundJob:
    """Run a job to its end."""
    ended = threading.Event()
    job = BackgroundJob("working", work, lambda _: ended.set())
    job.begin()
    assert ended.wait(300)
    assert not job.is_running
    return job


def test_results_and_errors() -> None:
    """A result, an error of ours, an error of the system, and a bug are told apart."""

    def fails(error: BaseException) -> Callable[[BackgroundJob], None]:
        def work(_: BackgroundJob) -> None:
            raise error

        return work

    assert done(lambda _: 7).result == 7
    assert isinstance(done(fails(NotFoundError("gone"))).error, NotFoundError)
    assert isinstance(done(fails(OSError(28, "No space left on device"))).error, NoSpaceError)
    assert isinstance(done(fails(MemoryError())).error, EdlCkptError)
    bug = done(fails(ZeroDivisionError()))
    assert (bug.error, type(bug.bug)) == (None, ZeroDivisionError)


def test_a_replaced_version_is_read_again() -> None:
    """A version that was replaced between listing and reading is read again, and not for ever."""
    tries: list[int] = []

    def work(_: BackgroundJob) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ReplacedError("another command has replaced it")
        return len(tries)

    assert done(work).result == 3

    def never(_: BackgroundJob) -> None:
        raise ReplacedError("another command has replaced it")

    assert isinstance(done(never).error, ReplacedError)


def test_progress_in_words() -> None:
    """How far a job is, in one unit; warnings are kept."""

    def work(reporter: Reporter) -> None:
        reporter.warn("careful")
        reporter.start("values", 4 << 30)
        reporter.advance(1 << 30)

    job = done(work)
    assert job.progress == "values: 1.0 of 4.0 GiB, 25%"
    assert job.warnings == ["careful"]
    assert BackgroundJob("listing", lambda _: None, print).progress == "listing"


@pytest.mark.parametrize("how", ["reports", "waits", "in a pool", "in a pool that waits"])
def test_giving_up(how: str) -> None:
    """A job that is given up ends where it reports or waits for the network, in its pools too; nobody hears of it."""
    ended, gone, begun = threading.Event(), threading.Event(), threading.Event()

    def wait(_: int) -> None:
        begun.set()
        while not stop_requested():
            pause(0.01)

    def work(job: BackgroundJob) -> None:
        def report(_: int) -> None:
            begun.set()
            while True:
                job.advance(1)
                gate.wait(0.01)

        try:
            each = report if how in {"reports", "in a pool"} else wait
            if "pool" in how:
                for _ in run_parallel(each, [1, 2, 3], 2):
                    pass
            else:
                each(0)
        finally:
            gone.set()

    gate = threading.Event()
    job = BackgroundJob("working", work, lambda _: ended.set())
    job.begin()
    assert begun.wait(300)
    job.give_up()
    assert gone.wait(300)
    assert not job.is_running
    assert not ended.is_set()
