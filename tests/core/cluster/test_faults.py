"""Faults of a cluster: workers, the scheduler and tasks that end; and what travels."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints import only, save_large
from cluster_tasks import Gated, Opened, Slow, closed, left_open, never, pause, renewed, tasks_known
from edl_ckpt.core import CorruptError, UnavailableError, reshard_version, verify_version
from edl_ckpt.core.base import errors
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.progress import SILENT, Progress, SilentReporter
from edl_ckpt.core.cluster import executor as executor_module
from edl_ckpt.core.cluster import worker
from edl_ckpt.core.cluster.address import cluster_at
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.cluster.messages import packed
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.sources.elasticdl.names import DESIGN
from edl_ckpt.core.storage.location import Location
from waiting import wait_until


def ignore(size_bytes: int) -> None:
    """Count nothing."""


def test_order_and_progress(processes: Any) -> None:
    """Results come in the order of the tasks; bytes are counted; what was opened is closed once in each process."""
    processes.run(closed)
    before = processes.run(left_open)  # by a command that another test killed
    done: list[int] = []
    executor = ClusterExecutor(processes)
    results = list(executor.run(Slow(0.0), Opened(), range(200), done.append))
    assert [number for number, _ in results] == list(range(200))
    assert sum(done) == sum(range(200))
    pids = {process for _, process in results}
    assert executor.bytes_read() == 3 * len(pids)
    assert {pid for found in processes.run(closed).values() for pid in found} == pids
    assert processes.run(left_open) == before


def test_who_does_it(tmp_path: Path, client: Any) -> None:
    """The progress counts every task that is done, also before the first of all, and names the workers."""
    executor = ClusterExecutor(client)
    assert executor.named() == "2 workers of the cluster (0, 1)"
    said = [executor.doing() for _ in executor.run(Slow(0.01), Opened(), range(20), ignore)]
    assert said[-1] == "20 tasks, 2 workers"
    assert int(said[0].split()[0]) >= 1
    gate = tmp_path / "gate"
    running = executor.run(Gated(0.0, gate=str(gate), held=0), Opened(), range(4), ignore)
    reader = threading.Thread(target=next, args=(running,))
    reader.start()
    try:
        wait_until(lambda: executor.doing() == "23 tasks, 2 workers")
    finally:
        gate.touch()
    reader.join()
    assert len(list(running)) == 3


def test_the_first_error_ends_the_work(processes: Any) -> None:
    """An error of a task arrives as it was raised, with path, offset and hint; while it is there, no task is."""
    before, known = processes.run(left_open), processes.run_on_scheduler(tasks_known)
    with pytest.raises(CorruptError) as caught:
        list(ClusterExecutor(processes).run(Slow(0.0, bad=5), Opened(), range(100), ignore))
    assert (caught.value.code, caught.value.path, caught.value.offset) == ("truncated", "x", 5)
    assert caught.value.hint == "look"
    wait_until(lambda: processes.run(left_open) == before)  # tasks that were on their way close what they open
    wait_until(lambda: processes.run_on_scheduler(tasks_known) <= known)


def test_paused_workers(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """People are told that all workers are paused; the work goes on when they do, and ends with 13 when they do not."""
    monkeypatch.setattr(executor_module, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(executor_module, "PAUSED_SECONDS", 0.0)
    executor = ClusterExecutor(client)
    executor.reporter = told = Progress(on_warning=lambda _: client.run(pause, 0.8) and None)
    text = r"worker 0 at inproc.*, worker 1 at inproc.*: paused by Dask"

    def pause_all() -> None:
        client.run(pause, 1e-9)
        wait_until(lambda: {info["status"] for info in executor.workers(now=True).values()} == {"paused"})

    try:
        pause_all()
        assert len(list(executor.run(Slow(0.0), Opened(), range(5), ignore))) == 5
        assert re.match(text, told.warnings[0])
        pause_all()
        executor.reporter = SILENT
        monkeypatch.setattr(executor_module, "NO_WORKER_SECONDS", 0.2)
        with pytest.raises(UnavailableError, match=f"{text} for 0 seconds"):
            list(executor.run(Slow(0.0), Opened(), range(5), ignore))
    finally:
        client.run(pause, 0.8)
    wait_until(lambda: {info["status"] for info in executor.workers(now=True).values()} == {"running"})


def test_a_scheduler_that_does_not_answer(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for ever for a scheduler that is stopped: the command ends with 13."""
    executor = ClusterExecutor(client)
    monkeypatch.setattr(executor_module, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(executor_module, "SCHEDULER_SECONDS", 0.1)
    monkeypatch.setattr(worker, "look", never)
    with pytest.raises(UnavailableError, match="the scheduler has not answered for 0 seconds"):
        executor.ask_scheduler(worker.look)
    executor.client = SimpleNamespace(status="running", sync=client.sync, scheduler=SimpleNamespace(identity=never))
    with pytest.raises(UnavailableError, match="the scheduler has not answered for 0 seconds"):
        executor.workers(now=True)


def test_a_fork_has_a_name_of_its_own() -> None:
    """A worker that was started by a fork is counted apart from the process that it was forked from."""
    mine, (end, begin) = worker.do_task.__globals__["_process"](os.getpid()), os.pipe()
    pid = os.fork()
    if not pid:
        os.write(begin, worker.do_task.__globals__["_process"](os.getpid()).encode())
        os._exit(0)
    os.close(begin)
    os.waitpid(pid, 0)
    with os.fdopen(end) as found:
        assert found.read() not in {"", mine}


def test_the_end_waits_for_no_stopped_worker(processes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is stopped right after its last task does not hold up the results of all."""
    monkeypatch.setattr(executor_module, "END_SECONDS", 0.5)
    running = ClusterExecutor(processes).run(Slow(0.0), Opened(), range(8), ignore)
    found = [next(running)[0] for _ in range(8)]
    pid = max(processes.run(os.getpid).values())
    os.kill(pid, signal.SIGSTOP)
    try:
        last = threading.Thread(target=lambda: found.extend(number for number, _ in running), daemon=True)
        last.start()
        last.join(300)
        assert not last.is_alive()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert found == list(range(8))
    wait_until(lambda: len(processes.run(os.getpid)) == 2)


ERRORS = [c for c in vars(errors).values() if isinstance(c, type) and not issubclass(c, Warning)]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda c: c.__name__)
def test_errors_travel(kind: type[EdlCkptError]) -> None:
    """Every error is the same after a journey between processes."""
    error = kind("what happened", path="runs/a", offset=3, hint="do that")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.hint, again.offset) == (kind, str(error), "do that", 3)


def test_credentials_do_not_travel() -> None:
    """What is packed for a worker has a location without its credentials, wherever in a value it is."""
    place = Location("s3://bucket/run", {"key": "AKIA", "secret": "hidden", "profile": "ops", "region": "eu"})
    version = Version(place, 7, "s3://bucket/run/version_7", DESIGN, State.COMPLETE, 1, ())
    data = packed({"deep": [version]})
    assert not any(word in data for word in (b"hidden", b"AKIA", b"ops"))
    assert pickle.loads(data)["deep"][0].location == Location("s3://bucket/run", {"region": "eu"})
    assert pickle.loads(pickle.dumps(version)).location.options == place.options  # that of a user's own processes


def test_killed_workers(tmp_path: Path, processes: Any) -> None:
    """A worker that is killed in the middle loses nothing: its tasks are done again, with the same result."""
    executor = ClusterExecutor(processes)
    pids = sorted(processes.run(os.getpid).values())
    results, gate = [], tmp_path / "gate"
    try:
        for each in executor.run(Gated(0.0, gate=str(gate)), Opened(), range(40), ignore):
            results.append(each)
            if len(results) == 10:
                os.kill(pids[0], signal.SIGKILL)
                gate.touch()
    finally:
        renewed(processes, pids[0])
    assert [number for number, _ in results] == list(range(40))
    assert results[-1][1] != pids[0]


def test_killed_scheduler(tmp_path: Path) -> None:
    """When the scheduler dies the work ends with an error, long before the tasks would."""
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    options = ["--scheduler-file", str(file), "--port", "0", "--no-dashboard", "--host", "127.0.0.1"]
    scheduler = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
    worker = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_worker", "--scheduler-file", str(file), "--no-nanny",
         "--no-dashboard", "--nthreads", "1", "--local-directory", str(tmp_path)],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )  # fmt: skip
    try:
        wait_until(lambda: file.exists() and file.read_text().endswith("}"))
        with cluster_at(str(file)) as executor:
            begin, running = time.monotonic(), executor.run(Slow(0.2), Opened(), range(5000), ignore)
            assert next(running)[0] == 0
            scheduler.kill()
            with pytest.raises(UnavailableError, match="scheduler"):
                list(running)
        assert time.monotonic() - begin < 400  # the tasks would take 1000
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()


class Failing(SilentReporter):
    """Stands for a consumer that fails between two results of one pass."""

    def __init__(self, passage: str) -> None:
        self.passage, self.what = passage, ""

    def start(self, what: str, total_bytes: int) -> None:
        """Remember the pass."""
        self.what = what

    def advance(self, size_bytes: int) -> None:
        """Fail in the pass."""
        if self.what == self.passage:
            raise BrokenPipeError("nobody looks any more")


@pytest.mark.parametrize("passage", ["reading ids", "resharding", "checking ids", "checking values"])
def test_a_consumer_that_fails(tmp_path: Path, client: Any, monkeypatch: pytest.MonkeyPatch, passage: str) -> None:
    """Tasks are dropped and openings end at once, while the error, and with it every frame, is still there."""
    save_large(tmp_path / "run")
    monkeypatch.setattr("edl_ckpt.core.cluster.executor.LEAST_TASK_BYTES", 256 << 10)
    before, known = client.run(left_open), client.run_on_scheduler(tasks_known)
    version, reporter = only(tmp_path / "run"), Failing(passage)

    def run() -> None:
        if passage.startswith("checking"):
            verify_version(version, level="deep", executor=client, reporter=reporter)
        else:
            reshard_version(version, 3, output=tmp_path / "out", executor=client, reporter=reporter)

    with pytest.raises(BrokenPipeError) as caught:
        run()
    assert caught.tb is not None
    wait_until(lambda: client.run(left_open) == before)
    wait_until(lambda: client.run_on_scheduler(tasks_known) <= known)
    assert not list(tmp_path.glob("out/version*"))
