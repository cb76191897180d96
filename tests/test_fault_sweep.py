from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from fault_sweep import COMMANDS, Command, Point, disturb, find_points, prepare, why_not


@pytest.fixture(scope="module", autouse=True)
def _strace() -> None:
    reason = why_not()
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    workers = min(2, os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as executor:
        yield executor


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_sample(tmp_path: Path, command: Command) -> None:
    """A few faults in each command: what was there or what is to be is there whole, and running it again brings it."""
    trial = prepare(command, tmp_path / "trial")
    outcomes = [disturb(trial, Point(calls, k, fault, threads=True)) for calls, k, fault in command.sample]
    assert [(str(o.point), o.problems) for o in outcomes if o.problems] == []
    assert all(o.fired for o in outcomes), "the sample names calls that are made no more"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_call(
    tmp_path: Path, command: Command, pool: ProcessPoolExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for every fault at every call that writes, allocates, flushes, renames, removes or creates."""
    trial = prepare(command, tmp_path / "trial")
    points = find_points(trial, tmp_path.resolve() / "count")
    assert len(points) > 20
    outcomes = list(pool.map(partial(disturb, trial), points, chunksize=4))
    tried = Counter(o.point.fault.partition("=")[2] if "retval" not in o.point.fault else "lost" for o in outcomes)
    with capsys.disabled():
        told = ", ".join(f"{fault} {count}" for fault, count in tried.items())
        print(f"\n{command.name}: {len(points)} points, {sum(o.fired for o in outcomes)} fired ({told})")
    assert [(str(o.point), o.problems) for o in outcomes if o.problems] == []
