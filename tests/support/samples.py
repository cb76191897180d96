"""Which cases of a test are slow: `tests/slow.toml` says how many of them the fast suite runs.

A sweep has dozens of cases of one kind. The fast suite runs a few of them, so that it sees each kind of fault; the
others have the marker `slow`, and `.ci/run` runs them. The table is apart from the tests:
it follows what a run measures.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import pytest

from places import TESTS

TABLE = TESTS / "slow.toml"
APART = frozenset({"slow", "hours", "root", "bench"})
"""The markers of what the fast suite leaves out."""
_GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True)
class Table:
    """What the fast suite runs of slow tests, which are named by their file below `tests` and their name."""

    samples: Mapping[str, int]
    """How many cases of a test are fast, one at least."""
    whole: Mapping[str, str]
    """Tests that are slow as a whole, each with the fast test that meets the same kind of fault."""


@cache
def table() -> Table:
    """Return the table of the suite."""
    read = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return Table(read["samples"], read["whole"])


def spread(count: int, kept: int) -> set[int]:
    """Return so many of the numbers below a count, the first among them, far from each other and in no rhythm.

    Cases often alternate, with the kernel and without: every second or fourth one would always be of one sort.
    """
    return set(sorted(range(count), key=lambda number: number * _GOLDEN % 1)[:kept])


def name_of(node: str) -> str:
    """Return the name of a test in the table: its file below `tests`, its class and its name, without its case."""
    return node.partition("[")[0].removeprefix("tests/")


def slow_cases(nodes: Sequence[str], known: Table) -> set[str]:
    """Return those of these cases, given in their order, that the table makes slow."""
    cases = defaultdict(list)
    for node in nodes:
        cases[name_of(node)].append(node)
    found: set[str] = set()
    for name, some in cases.items():
        if name in known.whole:
            found.update(some)
        elif name in known.samples:
            fast = spread(len(some), known.samples[name])
            found.update(node for number, node in enumerate(some) if number not in fast)
    return found


def mark_slow(items: Iterable[pytest.Item]) -> None:
    """Give the marker to the cases that the table makes slow; what the fast suite leaves out anyway does not count."""
    counted = {item.nodeid: item for item in items if APART.isdisjoint(mark.name for mark in item.iter_markers())}
    for node in slow_cases([*counted], table()):
        counted[node].add_marker(pytest.mark.slow)
