"""Faults at random moments of commands on a cluster of real processes.

Whatever dies, stops or is cut off: nothing is visible that is not whole, ElasticDL's scan works, the next command
sweeps what was left and has the right bytes, and no worker that goes on later changes what was published. In the suite
there is one such fault; `EDL_CKPT_TEST_EXAMPLES=N pytest -n 0 -m hours tests/core/cluster/test_fault_sweep.py` has N of
each kind in each command, at moments that `EDL_CKPT_TEST_SEED` chooses.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import drop_seal, only, shards_of
from cluster_tasks import signal_writer
from dask_processes import DaskProcesses, dask_processes
from edl_ckpt.core import (
    Table,
    diff_versions,
    execute_copy,
    list_versions,
    plan_copy,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.progress import SILENT
from edl_ckpt.core.cluster.address import connected
from edl_ckpt.core.commit.repair.recovery import recover
from examples import TIMES
from program import PROGRAM
from scan_guard import scan_of
from tcp_proxy import TcpProxy
from waiting import wait_until

SEED: Final = int(os.environ.get("EDL_CKPT_TEST_SEED", "1"))
COMMANDS: Final = ("reshard", "copy", "verify", "diff")
SUCCESS: Final = {"reshard": 0, "copy": 0, "verify": 0, "diff": 3}
FAULTS: Final = (
    "kill a worker",
    "kill the scheduler",
    "kill the command",
    "stop a worker",
    "cut a worker off",
    "cut the command off",
    *("SIGINT", "SIGTERM", "SIGHUP"),
)
TTL_SECONDS: Final = 8
"""After so long without a sign of life the scheduler gives a worker's tasks to others."""
ENDS: Final = {
    "kill the scheduler": {13},
    "kill the command": {-signal.SIGKILL},
    "cut the command off": {13},
    **{f"SIG{name}": {128 + getattr(signal, f"SIG{name}")} for name in ("INT", "TERM", "HUP")},
}
"""How a command may end at a fault, beside success: a fault at its end changes nothing."""


class Places:
    """A version of 27 MB, what it becomes, and a place for each command's result."""

    def __init__(self, place: Path) -> None:
        self.run, self.other, self.there = place / "run", place / "other", place / "there"
        rows = np.random.default_rng(3).standard_normal((200_000, 32), np.float32)
        ids = np.arange(200_000) * 5
        save_checkpoint(self.run, 7, 4, variables={}, tables={"t": Table(ids, rows)}, layout="elasticdl")
        rows[::9] += 1
        save_checkpoint(self.other, 7, 2, variables={}, tables={"t": Table(ids, rows)}, layout="elasticdl")
        reshard_version(only(self.run), 6, output=place / "resharded")
        self.resharded, self.source = shards_of(place / "resharded"), shards_of(self.run)
        self.difference = diff_versions(only(self.run), only(self.other)).tables[0].changed

    def arguments(self, command: str) -> list[str]:
        """Return the words of a command."""
        if command == "reshard":
            return [command, str(self.run), "--ps", "6", "--output", str(self.there)]
        if command == "copy":
            return [command, str(self.run), str(self.there)]
        if command == "verify":
            return [command, str(self.there), "--seal", "--json"]
        return [command, str(self.run), str(self.other), "--json"]

    def prepare(self, command: str) -> None:
        """Make the place of a command as it is before it."""
        shutil.rmtree(self.there, ignore_errors=True)
        if command == "verify":
            shutil.copytree(self.run, self.there)
            drop_seal(self.there, 7)

    def do_again(self, command: str) -> None:
        """Do the work of a command without a cluster, as the next command."""
        if command == "reshard":
            is_there = self.there.exists() and list_versions(self.there).versions
            recover(self.there) if is_there else reshard_version(only(self.run), 6, output=self.there)
        elif command == "copy":
            execute_copy(plan_copy([only(self.run)], self.there))
        elif command == "verify":
            done = subprocess.run([*PROGRAM, *self.arguments(command)], capture_output=True, check=False)
            assert done.returncode == 0, done.stderr.decode()

    def check(self, command: str, out: str | None) -> None:
        """Compare the whole result of a command with what it must be; `out` is what one that succeeded printed."""
        if command == "diff":
            if out is not None:
                assert json.loads(out)["tables"][0]["changed"] == self.difference
            return
        assert shards_of(self.there) == (self.resharded if command == "reshard" else self.source)
        found = verify_version(only(self.there), level="deep")
        assert (found.ok, found.sealed, list(found.findings)) == (True, True, [])
        assert elasticdl_rules.leftovers(self.there) == []
        assert elasticdl_rules.latest_valid(self.there) == "version-7"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    """Return the versions."""
    return Places(tmp_path_factory.mktemp("sweep"))


class Cluster:
    """A scheduler, and two workers of which the first is behind a network that can be cut."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.dask: DaskProcesses = stack.enter_context(
            dask_processes(place, env={"DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL_SECONDS} s"})
        )
        self.proxy, self.network = self._proxy(), self._proxy()

    def _proxy(self) -> TcpProxy:
        where = urlsplit(self.dask.address)
        return self._stack.enter_context(TcpProxy(str(where.hostname), int(where.port or 0)))

    def renew(self) -> None:
        """Start what is gone."""
        assert self.dask.scheduler is not None
        if self.dask.scheduler.poll() is not None:
            self.dask.start_scheduler()
            for name in list(self.dask.workers):
                self.dask.stop(name)
            self.network.cut()
        if self.network.is_cut:
            self.network = self._proxy()
            if "behind" in self.dask.workers:
                self.dask.stop("behind")
        self.proxy.cut()
        self.proxy = self._proxy()
        for name, at in (("behind", self.network.address), ("beside", "")):
            if name not in self.dask.workers or self.dask.workers[name].poll() is not None:
                self.dask.start_worker(name, at=at)
        wait_until(lambda: self.count() == 2, seconds=60)

    def count(self) -> int:
        """Return how many workers the scheduler has."""
        with connected(self.dask.address, SILENT) as client:
            return len(client.scheduler_info(n_workers=-1)["workers"])

    def strike(self, fault: str, command: subprocess.Popen[str], chosen: str) -> None:
        """Let a fault happen now."""
        if fault == "kill a worker":
            self.dask.stop(chosen)
        elif fault == "kill the scheduler":
            assert self.dask.scheduler is not None
            self.dask.scheduler.kill()
            self.dask.scheduler.wait()
        elif fault == "kill the command":
            command.kill()
        elif fault == "stop a worker":
            self.dask.workers[chosen].send_signal(signal.SIGSTOP)
        elif fault == "cut a worker off":
            self.network.cut()
        elif fault == "cut the command off":
            self.proxy.cut()
        else:
            command.send_signal(getattr(signal, fault))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of real processes."""
    pytest.importorskip("distributed")
    with ExitStack() as stack:
        yield Cluster(tmp_path_factory.mktemp("dask"), stack)


def run_with(fault: str, moment: float, command: str, places: Places, cluster: Cluster, chosen: str) -> None:
    """Run a command with a fault at a moment, seconds after its first line; check everything that must hold."""
    places.prepare(command)
    cluster.renew()
    address = cluster.proxy.address if fault == "cut the command off" else cluster.dask.address
    words = [*PROGRAM, *places.arguments(command), "--cluster", address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            cluster.strike(fault, process, chosen)
        try:
            out, err = process.communicate(timeout=300)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            pytest.fail(f"the command does not end: {process.communicate()[1]}")
    assert process.returncode in {SUCCESS[command]} | ENDS.get(fault, set()), err
    assert "Traceback" not in err
    succeeded = process.returncode == SUCCESS[command]
    if command in {"reshard", "copy"} and not succeeded:
        assert "crash" not in str(scan_of(places.there).chosen)
        assert not places.there.exists() or not list_versions(places.there).versions or fault == "kill the command"
    if succeeded:
        places.check(command, out)
    if fault == "stop a worker" and chosen in cluster.dask.workers:
        go_on_late(cluster, chosen, places)
    places.do_again(command)
    places.check(command, out if succeeded else None)


def go_on_late(cluster: Cluster, chosen: str, places: Places) -> None:
    """Let a stopped worker go on: what was published stays the same, to the inode and the time of each file."""

    def facts() -> dict[str, Any]:
        files = sorted(places.there.rglob("*.ckpt")) if places.there.exists() else []
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = facts()
    worker = cluster.dask.workers[chosen]
    worker.send_signal(signal.SIGCONT)
    used, since = -1.0, time.monotonic()
    while worker.poll() is None and time.monotonic() < since + 1.5:  # it is idle when it takes no more CPU
        time.sleep(0.3)
        now = _cpu_seconds(worker.pid)
        if now - used < 0.02:
            break
        used = now
    assert facts() == before
    cluster.dask.stop(chosen)


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.hours
@pytest.mark.parametrize("command", ["reshard", "copy"])
def test_a_stopped_worker(command: str, places: Places, cluster: Cluster, tmp_path: Path) -> None:
    """A worker is stopped with a staged file open; its task is given to another, and it goes on after the commit."""
    places.prepare(command)
    cluster.renew()
    marker = tmp_path / "stopped"
    with connected(cluster.dask.address, SILENT) as client:
        client.run(signal_writer, signal.SIGSTOP, str(marker))
    words = [*PROGRAM, *places.arguments(command), "--cluster", cluster.dask.address]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    places.check(command, None)
    pid = int(marker.read_text())
    (chosen,) = (name for name, worker in cluster.dask.workers.items() if worker.pid == pid)
    go_on_late(cluster, chosen, places)
    places.check(command, None)
    for name in list(cluster.dask.workers):  # they wait no more for a marker
        cluster.dask.stop(name)


@pytest.mark.hours
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_faults(command: str, fault: str, places: Places, cluster: Cluster) -> None:
    """A fault at any moment of a command leaves the old state or the whole result."""
    chance = random.Random(f"{SEED} {command} {fault}")
    places.prepare(command)
    cluster.renew()
    begin = time.monotonic()
    words = [*PROGRAM, *places.arguments(command), "--cluster", cluster.dask.address]
    assert subprocess.run(words, check=False, capture_output=True).returncode == SUCCESS[command]
    whole = time.monotonic() - begin
    for _ in range(TIMES):
        moment, chosen = chance.uniform(0.2, 1.0) * whole, chance.choice(["behind", "beside"])
        print(f"{command}: {fault} after {moment:.3f} of {whole:.3f} s, {chosen}", flush=True)
        run_with(fault, moment, command, places, cluster, chosen)
