"""A whole training job of real processes: `python tests/support/training_job.py DIR --seed N [--steps 200]`.

Eight servers save a model that grows at every step. They save at their own pace, one of them slowly; one is killed
again and again, and restarted. Beside them an evaluator takes each complete version once and records a metric, the
program watches, and a pruner deletes. A saved version has all that `model(version)` has, so each of them can be judged.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from edl_ckpt.core import (
    Best,
    CheckpointSaver,
    EdlCkptError,
    Latest,
    LockedError,
    NotFoundError,
    Policy,
    Table,
    checkpoints_iterator,
    latest,
    list_versions,
    open_checkpoint,
    partition,
    prune,
    set_metrics,
)
from elasticdl_rules import latest_valid
from forked import fork
from waiting import wait_until

SERVERS = 8
EVERY = 5
KEPT = 3
VICTIM, SLOW = 3, 6
KILLS = 6
RUN = "one run"
EDL = [sys.executable, "-c", "from edl_ckpt.cli.app import main; main()"]


@dataclass
class Report:
    """What came of a job."""

    evaluated: list[int] = field(default_factory=list)
    """The versions that the evaluator was given, in the order in which it was given them."""
    recorded: list[int] = field(default_factory=list)
    """Those of which it recorded a metric before the pruner deleted them."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """(event, reference) of every line of `watch`."""
    kills: int = 0
    prunes: int = 0
    """The versions that the pruner deleted."""
    scans: int = 0
    """How often ElasticDL's scan found a version while the job ran."""


def model(version: int) -> tuple[dict[str, np.ndarray], dict[str, Table]]:
    """Return the variables and tables of the model at a version; both grow."""
    values = np.random.default_rng(version)
    dense = {f"layer_{i}/kernel:0": values.standard_normal((4, i + 1)).astype(np.float32) for i in range(version // 10)}
    tables = {}
    for name, dim, step in (("user", 8, 7), ("item", 3, 11)):
        ids = values.permutation(np.arange(200 + 20 * version, dtype=np.int64) * step)
        tables[name] = Table(ids, values.standard_normal((len(ids), dim)).astype(np.float32), "normal")
    return dense, tables


def quality(version: int) -> float:
    """Return the metric that the evaluator records of a version."""
    return (version * 7 % 50) / 50


def serve(location: str, ps_id: int, seed: int, steps: int, killed: Path) -> None:
    """Be one server from the newest version that can be read to the last step; `killed` is a file that a kill makes."""
    pace = random.Random(f"{seed} {ps_id} {os.getpid()}")
    begin = 0
    with suppress(EdlCkptError):  # nothing is there yet, or nothing whole
        begin = latest(location).version
    with CheckpointSaver(
        location, checkpoint_steps=EVERY, ps_id=ps_id, ps_num=SERVERS, layout="elasticdl", run=RUN
    ) as saver:
        for version in range(begin + 1, steps + 1):
            if ps_id == VICTIM and version == steps:  # it is killed at least once, however fast it is
                wait_until(killed.exists)
            time.sleep(pace.random() * (0.012 if ps_id == SLOW else 0.004))
            if saver.need_to_checkpoint(version):
                part = partition(*model(version), SERVERS)[ps_id]
                save = saver.save_async if ps_id % 2 else saver.save
                save(version, part.dense, part.tables)


def evaluate(location: str, steps: int, found: Path) -> None:
    """Be the evaluator: take each version once, compare it with the model, and record a metric."""
    with found.open("a", encoding="utf-8") as lines:
        for version in checkpoints_iterator(location, interval_seconds=0.02, timeout_seconds=300):
            try:
                with open_checkpoint(version) as checkpoint:
                    dense, tables = model(version.version)
                    assert set(checkpoint) == set(dense)
                    for name, table in tables.items():
                        found_rows = checkpoint.table(name).to_numpy(ids=table.ids)
                        assert np.array_equal(found_rows.vectors, np.asarray(table.vectors))
                set_metrics(version, {"auc": quality(version.version)})
                print(version.version, "recorded", file=lines, flush=True)
            except (NotFoundError, LockedError) as error:  # the pruner was faster
                print(f"{version.ref}: {error}", file=sys.stderr)
                print(version.version, "deleted", file=lines, flush=True)
            if version.version == steps:
                return


def tidy(location: str, done: Path, deleted: Path) -> None:
    """Be the pruner: keep the newest versions and the best one until the job is done."""
    policy = Policy((Latest(KEPT), Best(1, "auc")))
    with deleted.open("a", encoding="utf-8") as lines:
        is_last = False
        while not is_last:
            is_last = done.exists()  # then once more, with nothing beside it
            try:
                for ref in prune([location], policy).deleted:
                    print(ref, file=lines, flush=True)
            except EdlCkptError as error:  # nothing is there yet, another command has the lock, no metric yet
                print(f"prune: {error}", file=sys.stderr)
            time.sleep(0.05)


@contextmanager
def _watching(location: str, lines: Path, steps: int) -> Iterator[None]:
    """Run `edl-ckpt watch` beside the block, and until it has seen the last version and a deletion."""
    with lines.open("w", encoding="utf-8") as out:
        command = [*EDL, "watch", location, "--json", "--interval", "0.1s"]
        process = subprocess.Popen(command, stdout=out)
        try:
            while not lines.stat().st_size:  # it tells of what changes once it has looked
                assert process.poll() is None, "watch has ended"
                os.mkdir(os.path.join(location, "version-1"))
                time.sleep(0.15)
                os.rmdir(os.path.join(location, "version-1"))
                time.sleep(0.15)
            yield
            wait_until(lambda: f'@{steps}"' in _refs(lines, "complete") and _refs(lines, "deleted"))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(300)


def _refs(lines: Path, event: str) -> str:
    """Return the lines about one kind of event."""
    return "".join(line for line in lines.read_text("utf-8").splitlines() if f'"{event}"' in line)


def _fork(action: Callable[[], None], children: set[int]) -> int:
    """Run an action in a child process, and return its pid. This process has no threads."""
    pid = fork(action)
    children.add(pid)
    return pid


def run_job(directory: Path, *, seed: int, steps: int) -> Report:
    """Run the job to its end and return what came of it; AssertionError when a process failed, and none is left."""
    location, report = directory / "run", Report()
    location.mkdir()
    done, found, deleted, lines = (directory / name for name in ("done", "evaluated", "deleted", "events"))
    children: set[int] = set()
    with _watching(str(location), lines, steps), _killed(children):
        evaluator = _fork(lambda: evaluate(str(location), steps, found), children)
        pruner = _fork(lambda: tidy(str(location), done, deleted), children)
        _run_servers(location, report, children, seed=seed, steps=steps)
        assert _wait(evaluator, children) == 0, "the evaluator failed"
        done.touch()
        assert _wait(pruner, children) == 0, "the pruner failed"
    for line in found.read_text("utf-8").splitlines():
        number, _, what = line.partition(" ")
        report.evaluated.append(int(number))
        report.recorded += [int(number)] if what == "recorded" else []
    report.prunes = len(deleted.read_text("utf-8").split())
    for line in lines.read_text("utf-8").splitlines():
        event = json.loads(line)
        report.events.append((event["event"], event["ref"]))
    return report


def _run_servers(location: Path, report: Report, children: set[int], *, seed: int, steps: int) -> None:
    """Run all servers to the last step; kill one of them again and again, and restart it."""
    chance = random.Random(seed)

    killed = location.parent / "killed"

    def start(ps_id: int) -> int:
        return _fork(lambda: serve(str(location), ps_id, seed, steps, killed), children)

    servers = {start(ps_id): ps_id for ps_id in range(SERVERS)}
    next_kill = time.monotonic() + 0.2
    while servers:
        for pid in [pid for pid in servers if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)]:
            ps_id, code = servers.pop(pid), _wait(pid, children)
            assert code == 0 or (ps_id == VICTIM and code == -signal.SIGKILL), f"server {ps_id} ended with {code}"
            if code:
                servers[start(ps_id)] = ps_id
        if time.monotonic() > next_kill and report.kills < KILLS:
            next_kill = time.monotonic() + 0.1 + chance.random() * 0.3
            for pid in [pid for pid, ps_id in servers.items() if ps_id == VICTIM]:
                os.kill(pid, signal.SIGKILL)
                report.kills += 1
                killed.touch()
        report.scans += _scan(location)
        time.sleep(0.01)


def _wait(pid: int, children: set[int]) -> int:
    status = os.waitpid(pid, 0)[1]
    children.discard(pid)
    return os.waitstatus_to_exitcode(status)


@contextmanager
def _killed(children: set[int]) -> Iterator[None]:
    """Kill what is left of these processes at the end of the block."""
    try:
        yield
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _scan(location: Path) -> bool:
    """Scan as ElasticDL does while everybody works; ValueError where its code would crash."""
    try:
        return latest_valid(location) is not None
    except FileNotFoundError:  # a version was deleted during the scan, which ElasticDL itself survives no better
        return False


def main() -> None:
    """Run one job, and print what came of it."""
    parser = argparse.ArgumentParser(description="Run a training job of real processes")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    given = parser.parse_args()
    report = run_job(given.directory, seed=given.seed, steps=given.steps)
    print(json.dumps(asdict(report)))
    for version in list_versions(given.directory / "run").versions:
        print(version, file=sys.stderr)


if __name__ == "__main__":
    main()
