"""Servers as real processes, without a coordinator: jitter, kills, and readers at any moment."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import at, numbers, only
from edl_ckpt.core import list_versions, mixed_runs, open_checkpoint, recover, restore, verify_version
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.versions import State
from s3_fixtures import Bucket
from saving import save_all, values_of
from waiting import wait_until

# Each line of stdin is a server's whole life; the children start when all of them are there.
_SERVERS = """
import json, os, random, sys, traceback
import s3fs  # imported once, for all children
from saving import small_parts
from edl_ckpt.core import CheckpointSaver

def live(task):
    parts, jitter = {}, random.Random(task["seed"])
    with CheckpointSaver(task["location"], checkpoint_steps=task["steps"], ps_id=task["ps_id"], ps_num=task["ps_num"],
                         keep_checkpoint_max=task["keep"], run=task["run"], layout=task["layout"]) as saver:
        for version in range(task["start"], task["stop"]):
            if not saver.need_to_checkpoint(version):
                continue
            value = float(version if task["value"] is None else task["value"])
            part = small_parts(task["ps_num"], value, task["rows"])[task["ps_id"]]
            save = saver.save_async if jitter.random() < task["asynchronous"] else saver.save
            save(version, part.dense, part.tables)
            sum(range(jitter.randrange(task["jitter"] + 1)))

gate, go = os.pipe()
children = []
for task in json.loads(sys.stdin.readline()):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(gate, 1)
        try:
            live(task)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    children.append(pid)
os.close(gate)
print(json.dumps(children), flush=True)
os.close(go)
print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]), flush=True)
"""


class Job:
    """Servers that live at the same time, each a process; a context manager."""

    def __init__(self, location: str | Path, ps_num: int, **options: Any) -> None:
        task = {
            "location": str(location), "ps_num": ps_num, "steps": 1, "keep": 0, "run": "one", "layout": "elasticdl",
            "start": 1, "stop": 6, "rows": 60, "asynchronous": 0.0, "jitter": 0,
            "value": None,
        } | options  # fmt: skip
        self._tasks = [task | {"ps_id": i, "seed": i} for i in range(ps_num)]

    def __enter__(self) -> Self:
        support = str(Path(__file__).parents[2] / "support")
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(_SERVERS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": support},
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(self._tasks), file=self.process.stdin, flush=True)
        self.pids: Sequence[int] = json.loads(self.process.stdout.readline())
        return self

    def wait(self) -> list[int]:
        """Wait for all servers and return their exit codes."""
        out, err = self.process.communicate(timeout=300)
        codes: list[int] = json.loads(out)
        assert 1 not in codes, err
        return codes

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate(timeout=60)


@pytest.mark.parametrize("ps_num", [pytest.param(1, marks=pytest.mark.hours), 5])
def test_servers_save_together(tmp_path: Path, ps_num: int) -> None:
    """Servers that start at once in an empty location, each at its own pace: all versions whole, sealed, of one layout.

    Retention leaves the newest ones. Nothing of ours is left, and any other number of servers restores the model.
    """
    with Job(tmp_path, ps_num, stop=9, keep=3, asynchronous=0.5, jitter=30_000, layout=None) as job:
        assert job.wait() == [0] * ps_num
    listing = list_versions(tmp_path, grace_seconds=0)
    complete = [v for v in listing.versions if v.state is State.COMPLETE]
    assert [v.version for v in complete] == [6, 7, 8]
    assert {v.layout.name for v in listing.versions} == {"design"}
    for version in complete:
        result = verify_version(version, level="deep")
        assert (result.findings, result.sealed) == ((), True)
    assert elasticdl_rules.leftovers(tmp_path) == []
    parts = [restore(complete[-1], ps_id=i, ps_num=3) for i in range(3)]
    assert sorted(i for part in parts for i in part.tables["t"].ids.tolist()) == list(range(60))
    assert {float(x) for part in parts for x in np.unique(part.tables["t"].vectors)} == {8.0}


def test_servers_save_together_on_s3(s3: Bucket) -> None:
    """The same on S3: each shard is one object, and no upload stays open."""
    with Job(s3.url, 3, stop=4, keep=2) as job:
        assert job.wait() == [0, 0, 0]
    versions = [v for v in list_versions(s3.url).versions if v.state is State.COMPLETE]
    assert [v.version for v in versions] == [2, 3]
    for version in versions:
        result = verify_version(version, level="deep")
        assert (result.findings, result.sealed) == ((), True)
    assert s3.open_uploads() == []
    assert [key for key in s3.objects() if "/shards-0/" in key or "/stage-0/" in key] == []


def test_readers_at_any_moment(tmp_path: Path) -> None:
    """While servers save again and again what is there, whoever looks finds whole shards, and no seal of a mixture.

    A version that can be opened has shards of whole saves. What passes for one run is of one run: each shard has one
    value, and unless `mixed_runs` says why not, all have the same.
    """
    save_all(tmp_path, 7, 3, run="zero", value=0.0)
    looks = number = 0
    while number < 2 or looks <= 3:  # a job may be over before a busy machine lets us look
        number += 1
        run = f"run {number}"
        with Job(tmp_path, 3, start=7, stop=8, run=run, rows=60) as job:
            while job.process.poll() is None and looks < 3000:
                looks += _look(tmp_path)
            assert job.wait() == [0, 0, 0]
        assert verify_version(only(tmp_path), level="deep").findings == ()
        assert number < 100


def _look(place: Path) -> int:
    """Read the version once, as far as it stays the same meanwhile."""
    version = only(place)
    assert version.state is State.COMPLETE
    assert elasticdl_rules.latest_valid(place) == "version-7"
    try:
        with open_checkpoint(version) as checkpoint:
            values = {float(x) for batch in checkpoint.table("t") for x in np.unique(np.asarray(batch.vectors))}
            checkpoint.check_unchanged()
    except EdlCkptError:  # replaced while it was read
        return 0
    assert values <= {0.0, 7.0}
    if len(values) == 2:
        assert mixed_runs(version) or only(place) != version
    return 1


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.hours)])
def test_killed_at_any_moment(tmp_path: Path, seed: int) -> None:
    """Servers that are killed while they save leave whole shards or none; the next run saves what they began."""
    begun = tmp_path / f"version-{2 + random.Random(seed).randrange(6)}"
    with Job(tmp_path, 3, stop=400, rows=6000) as job:
        wait_until(lambda: begun.is_dir() and elasticdl_rules.latest_valid(tmp_path))  # one server may be far behind
        for pid in job.pids:
            os.kill(pid, signal.SIGKILL)
        assert job.wait() == [-9, -9, -9]
    for path in tmp_path.glob("version-*"):
        assert all(values == {float(path.name[8:])} for values in values_of(path).values())
    newest = elasticdl_rules.latest_valid(tmp_path)
    assert newest is not None
    recover(tmp_path)
    assert [name for name in elasticdl_rules.leftovers(tmp_path) if not name.startswith("shards-0")] == []
    last = max(numbers(tmp_path))
    with Job(tmp_path, 3, start=int(newest[8:]), stop=last + 2, rows=6000, run="two") as job:
        assert job.wait() == [0, 0, 0]
    for number in range(int(newest[8:]), last + 2):
        result = verify_version(at(tmp_path, number), level="deep")
        assert (result.findings, result.sealed) == ((), True)
    assert elasticdl_rules.leftovers(tmp_path) == []


@pytest.mark.hours
@pytest.mark.parametrize("seed", range(8))
def test_epochs_of_kills_without_a_name(tmp_path: Path, seed: int) -> None:
    """A job without a name that is killed again and again: no version that passes for one run has values of two."""
    chance = random.Random(seed)
    for epoch in range(12):
        start = max((v.version for v in list_versions(tmp_path).versions if v.fingerprint), default=0) + 1
        options = {"start": start, "stop": 400, "run": "", "value": epoch, "jitter": 200_000}
        with Job(tmp_path, 3, **options) as job:
            begun = tmp_path / f"version-{start + chance.randrange(1, 3)}"
            wait_until(begun.is_dir)
            for pid in job.pids:
                os.kill(pid, signal.SIGKILL)
            assert job.wait() == [-9, -9, -9]
        recover(tmp_path)
        for version in list_versions(tmp_path).versions:
            if version.state is State.COMPLETE:
                values = set[float]().union(*values_of(Path(version.path)).values())
                assert len(values) == 1 or (mixed_runs(version) and not version.fingerprint)
    for version in list_versions(tmp_path).versions:
        if version.state is State.COMPLETE and not mixed_runs(version):
            assert verify_version(version, level="deep").ok
