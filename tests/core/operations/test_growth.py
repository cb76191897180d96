"""The work of an operation grows with the number of variables, and not with its square."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from edl_ckpt.core import (
    Version,
    diff_versions,
    export_version,
    open_checkpoint,
    reshard_version,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.operations.summary import summarize

FEW, MANY = 20, 200


@pytest.fixture(autouse=True)
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give operations one core: then all of their work is done in the thread whose steps are counted."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})


def _steps(action: Callable[[], object]) -> int:
    """Return how many steps of the interpreter an action takes in this thread: the same number on every machine."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def _read_all(version: Version) -> None:
    with open_checkpoint(version) as checkpoint:
        for name in checkpoint.variable_names:
            checkpoint.variable(name)


ACTIONS: dict[str, Callable[[Version, str], object]] = {
    "read": lambda version, _: _read_all(version),
    "export": lambda version, target: export_version(version, target + ".safetensors"),
    "diff": lambda version, _: diff_versions(version, version, tolerance=0.5),
    "verify": lambda version, _: verify_version(version, level="deep"),
    "reshard": lambda version, target: reshard_version(version, 3, output=target),
}


def _inspect(version: Version, _: Version) -> None:
    with open_checkpoint(version) as checkpoint:
        assert len(summarize(version, checkpoint.shards).tables) == len(checkpoint.tables)


TABLE_ACTIONS: dict[str, Callable[[Version, Version], object]] = {
    "inspect": _inspect,
    "diff": lambda version, other: diff_versions(version, other, workers=1),
}


@pytest.mark.parametrize("name", TABLE_ACTIONS)
def test_linear_in_tables(name: str, tmp_path: Path) -> None:
    """Ten times as many tables take about ten times the work (a diff of 2,000 took 15 s)."""
    counts = []
    for number in (1, 10, 100):
        pair = [
            save_checkpoint(
                str(tmp_path / f"{number}-{add}"),
                1,
                2,
                variables={},
                tables={f"table_{i}": (np.arange(2), np.full((2, 1), i + add, np.float32)) for i in range(number)},
            )
            for add in (0, 1)
        ]
        counts.append(_steps(partial(TABLE_ACTIONS[name], *pair)))
    assert counts[2] < 11 * counts[1]


@pytest.mark.parametrize("name", ACTIONS)
def test_linear(name: str, tmp_path: Path) -> None:
    """Ten times as many variables take about ten times the work (an export of 100,000 took 105 s)."""
    counts = []
    for number in (1, FEW, MANY):  # the first run imports
        variables = {f"layer_{i}/bias:0": np.full(2, i, np.float32) for i in range(number)}
        version = save_checkpoint(str(tmp_path / str(number)), 1, 2, variables=variables, tables={})
        counts.append(_steps(partial(ACTIONS[name], version, str(tmp_path / f"{number}-out"))))
    assert counts[2] < 11 * counts[1]
