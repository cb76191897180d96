"""A reporter of a library user: what it is called with while an operation works."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from edl_ckpt.core import Progress, Table, save_checkpoint


def test_it_follows_an_operation(tmp_path: Path) -> None:
    """Each phase begins at 0 and ends at its total; warnings come in order, and stay in the reporter."""
    calls: list[tuple[str, int, int]] = []
    heard: list[str] = []
    progress = Progress(lambda *call: calls.append(call), on_warning=heard.append, every_seconds=0)
    table = Table(np.arange(50_000), np.ones((50_000, 16), np.float16), "unknown")
    save_checkpoint(tmp_path, 1, 2, variables={}, tables={"t": table}, reporter=progress)
    phases = list(dict.fromkeys(what for what, _, _ in calls))
    assert phases
    for phase in phases:
        steps = [(done, total) for what, done, total in calls if what == phase]
        assert steps == sorted(steps)
        assert (steps[0][0], steps[-1][0]) == (0, steps[-1][1])
        assert len({total for _, total in steps}) == 1
    assert heard == progress.warnings
    assert any("float16" in text for text in heard)
    assert any("initializer" in text for text in heard)


def test_calls_are_rare_and_the_last_is_made() -> None:
    """However often an operation advances, in between nothing is called before its time; the end always is."""
    calls: list[int] = []
    progress = Progress(lambda _what, done, _total: calls.append(done), every_seconds=3600)
    progress.start("rows", 1000)
    for _ in range(1000):
        progress.advance(1)
    assert calls == [0, 1000]


def test_threads_count_together() -> None:
    """Bytes from several threads add up, and no two threads are in the callback at a time."""
    inside = threading.Lock()
    free: list[bool] = []

    def callback(_what: str, _done: int, _total: int) -> None:
        free.append(inside.acquire(blocking=False))
        if free[-1]:
            inside.release()

    progress = Progress(callback, every_seconds=0)

    def advance() -> None:
        for _ in range(1000):
            progress.advance(1)

    progress.start("rows", 4000)
    threads = [threading.Thread(target=advance) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert progress.done_bytes == 4000
    assert len(free) == 4001
    assert all(free)
