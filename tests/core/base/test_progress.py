"""A reporter of a library user: what it is called with while an operation works."""

from __future__ import annotations

import linecache
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

from checkpoints import save_small
from edl_ckpt.core import (
    SILENT,
    CheckpointSaver,
    EdlCkptWarning,
    Progress,
    Table,
    save_checkpoint,
    set_note,
    variable_owner,
    verify_version,
)
from hostile_state import stage


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


def test_without_a_reporter_warnings_are_those_of_python(tmp_path: Path) -> None:
    """A warning is an EdlCkptWarning at the line of the caller, so that each line shows it once; progress is silent."""
    with pytest.warns(EdlCkptWarning, match="written in the design layout") as caught:
        save_checkpoint(tmp_path / "run", 1, 2, variables={"w": np.ones(3)}, tables={})
    assert [warning.filename for warning in caught] == [__file__]
    assert "save_checkpoint(" in linecache.getline(__file__, caught[0].lineno)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_checkpoint(tmp_path / "run", 2, 2, variables={"w": np.ones(3)}, tables={})
        save_checkpoint(tmp_path / "silent", 1, 2, variables={"w": np.ones(3)}, tables={}, reporter=SILENT)
        progress = Progress()
        save_checkpoint(tmp_path / "called", 1, 2, variables={"w": np.ones(3)}, tables={}, reporter=progress)
    assert [verify_version(f"{tmp_path / name}@latest").ok for name in ("run", "silent", "called")] == [True] * 3
    assert len(progress.warnings) == 1


def test_a_saver_warns_once(tmp_path: Path) -> None:
    """A saver without a reporter says that ElasticDL does not read its layout at its first save, and never again."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        savers = [CheckpointSaver(tmp_path, ps_id=ps_id, ps_num=2) for ps_id in (0, 1)]
        for number in (1, 2, 3):
            for ps_id, saver in enumerate(savers):
                saver.save(number, {"w": np.ones(3)} if ps_id == variable_owner("w", 2) else {}, {})
    assert [(w.category, w.filename) for w in caught] == [(EdlCkptWarning, __file__)]
    assert "written in the design layout" in str(caught[0].message)
    assert verify_version(f"{tmp_path}@3").ok


def test_a_lock_that_settles_warns_the_caller(tmp_path: Path) -> None:
    """What a context manager of ours warns of is at the line of the caller, not in the library of Python."""
    save_small(tmp_path, 1)
    stage(tmp_path, 1)
    with pytest.warns(EdlCkptWarning, match="removed the abandoned staging directory") as caught:
        set_note(f"{tmp_path}@1", "kept")
    assert [warning.filename for warning in caught] == [__file__]
    assert verify_version(f"{tmp_path}@1").ok
