from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from fault_sweep import Outcome, Point, disturb, find_points, prepare, why_not
from sweep_commands import COMMANDS, Command

KNOWN: dict[tuple[str, str, int, str], str] = {}
"""Faults of ours that the sweep found and that are not mended yet; one that is mended must leave this table."""


def faults(command: Command, outcomes: Iterable[Outcome]) -> tuple[list[str], list[str]]:
    """Return what is wrong and not known, and what is known and not wrong."""
    wrong = {(command.name, o.point.calls, o.point.k, o.point.fault): o for o in outcomes if o.problems}
    mended = [str(key) for key in KNOWN if key[0] == command.name and key not in wrong]
    return [f"{o.point}: {problem}" for key, o in wrong.items() if key not in KNOWN for problem in o.problems], mended


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


SAMPLES = [
    pytest.param(
        command,
        *point,
        id=f"{command.name}, {number}",
        marks=() if number == 0 or "reshard" in command.name else pytest.mark.slow,
    )
    for command in COMMANDS
    for number, point in enumerate(command.sample)
]
"""A few faults of each command; the suite takes the first, and all of those with the most steps."""


@pytest.mark.parametrize(("command", "calls", "k", "fault"), SAMPLES)
def test_sample(tmp_path: Path, command: Command, calls: str, k: int, fault: str) -> None:
    """After a fault what was there or what is to be is there whole, and running the command again brings it."""
    outcome = disturb(prepare(command, tmp_path / "trial"), Point(calls, k, fault, threads=True))
    assert not outcome.problems, "\n".join(outcome.problems)
    assert outcome.fired, "the sample names calls that are made no more"


@pytest.mark.hours
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_call(
    tmp_path: Path, command: Command, pool: ProcessPoolExecutor, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same for every fault at every call that writes, allocates, flushes, renames, removes or creates."""
    trial = prepare(command, tmp_path / "trial")
    points = find_points(trial, tmp_path.resolve() / "count")
    assert len(points) > 20
    outcomes = list(pool.map(partial(disturb, trial), points, chunksize=4))
    tried = Counter("lost" if "retval" in p.fault else p.fault.partition("=")[2] for p in points)
    with capsys.disabled():
        told = ", ".join(f"{fault} {count}" for fault, count in tried.most_common())
        print(f"\n{command.name}: {len(points)} points ({told}), {sum(o.fired for o in outcomes)} met")
    wrong, mended = faults(command, outcomes)
    assert not wrong, "\n".join(wrong)
    assert not mended, f"mended, so take it out of KNOWN: {mended}"
