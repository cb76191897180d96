"""A lock ends with the process that took it: no process that it started keeps it, and none goes on with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from checkpoints import only, save_small
from edl_ckpt.core import recover, verify_version
from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.operations.annotate import add_tag
from edl_ckpt.core.state.lock_proof import prove_lock
from edl_ckpt.core.storage import Location
from forked import run_forked
from program import edl
from reporters import Recorder
from s3_fixtures import Bucket

HOLDER = """
import multiprocessing, os, signal, subprocess, sys, threading
from edl_ckpt.core.commit.repair.recovery import location_lock
from edl_ckpt.core.commit.publish.staging import StageLock
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.storage.beneath import Directory

def start(way):
    words = [sys.executable, "-c", "import signal; signal.pause()"]
    if way == "os.fork":
        child = os.fork()
        return child or signal.pause()
    if way == "subprocess":
        return subprocess.Popen(words, close_fds=False).pid
    if way == "foreign fork":  # by a library, say, which knows nothing of Python
        lock = next(n for n in os.listdir("/proc/self/fd") if "lock-0" in os.path.realpath("/proc/self/fd/" + n))
        return subprocess.Popen(words, pass_fds=[int(lock)]).pid
    process = multiprocessing.get_context(way).Process(target=signal.pause)
    process.start()
    return process.pid

if __name__ == "__main__":
    way, run = sys.argv[1:]
    root = Directory.open(run)
    with location_lock(run, "holder"), root.enter(f".edl-ckpt-0/stage-0/{new_id()}", make=True) as stage:
        StageLock().take(stage, "holder")
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        print(start(way), flush=True)
        signal.pause()
"""
WAYS = [
    "os.fork",
    "fork",
    *(pytest.param(way, marks=pytest.mark.slow) for way in ("spawn", "forkserver")),
    "subprocess",
]


@contextmanager
def killed_holder(folder: Path, way: str) -> Iterator[int]:
    """Kill the holder of the lock of `folder/run`, and yield the process that it had started, which lives on."""
    save_small(folder / "run", 7)
    (folder / "holder.py").write_text(HOLDER)
    words = [sys.executable, "-W", "ignore", str(folder / "holder.py"), way, str(folder / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    try:
        yield child
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("way", WAYS)
def test_a_child_keeps_no_lock(tmp_path: Path, way: str) -> None:
    """The holder is killed, and a process that it had started lives on: the next command takes the lock.

    A forked process may need a moment until it runs and closes its copy of the lock's file.
    """
    with killed_holder(tmp_path, way) as child:
        recorder = Recorder()
        with location_lock(tmp_path / "run", "next", wait_seconds=5, reporter=recorder):
            os.kill(child, 0)
        assert "took over the stale lock" in recorder.warnings[0]
        assert "removed the abandoned staging directory" in recorder.warnings[1]
    assert verify_version(only(tmp_path / "run"), level="deep").findings == ()
    assert not (tmp_path / "run/.edl-ckpt-0/lock-0").exists()


def test_unlock_names_who_keeps_the_lock(tmp_path: Path) -> None:
    """A process that was forked behind Python's back keeps the lock: the error says so, and `unlock` removes it."""
    with killed_holder(tmp_path, "foreign fork") as child:
        refused = edl("tag", "add", f"{tmp_path / 'run'}@7", "good", "--lock-wait", "0s")
        assert refused.returncode == 11
        assert "that process has ended, and another one keeps its lock: edl-ckpt unlock" in refused.stderr
        done = edl("unlock", tmp_path / "run", "--yes")
        assert (done.returncode, f"its lock is kept by process {child}" in done.stdout) == (0, True)
        add_tag(only(tmp_path / "run"), "good", wait_seconds=0)
        os.kill(child, 0)
    recover(tmp_path / "run")
    assert only(tmp_path / "run").tags == ("good",)
    assert verify_version(only(tmp_path / "run"), level="deep").findings == ()


def test_a_child_has_no_part_in_the_lock(tmp_path: Path, s3: Bucket) -> None:
    """A forked process proves nothing, and takes nothing away when it leaves the block: the lock is its parent's."""
    save_small(tmp_path / "run", 7)
    save_small(s3.url, 7)
    for where in (str(tmp_path / "run"), s3.url):

        def prove(where: str = where) -> None:
            with pytest.raises(LockedError, match=f"held by process {os.getppid()}"):
                prove_lock(Location(where))

        lock = location_lock(where, "parent")
        lock.__enter__()
        assert run_forked(prove) == 0
        assert run_forked(partial(lock.__exit__, None, None, None)) == 0
        prove_lock(Location(where))
        with pytest.raises(LockedError), location_lock(where, "other", wait_seconds=0):
            pass
        lock.__exit__(None, None, None)
        add_tag(only(where), "good", wait_seconds=0)
        assert verify_version(only(where), level="deep").findings == ()
