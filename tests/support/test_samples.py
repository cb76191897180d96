"""The fast suite has a sample of every slow test."""

from __future__ import annotations

import re
import tomllib

from places import TESTS, TOP
from samples import TABLE, Table, slow_cases, spread, table

NAMES = [*table().samples, *table().whole]


def defined(name: str) -> bool:
    """Say whether there is a test of this name; the tests of a class may be those of the class that it extends."""
    file, *inner = name.split("::")
    path = TESTS / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if len(inner) == 2 and re.search(rf"^class {inner[0]}\b", text, re.MULTILINE):
        text += "".join(other.read_text(encoding="utf-8") for other in (TESTS / "support").glob("*.py"))
    return f"def {inner[-1]}(" in text


def test_each_name_is_a_test() -> None:
    """A test that is renamed or moved takes its row along."""
    assert [name for name in NAMES if not defined(name)] == []


def test_each_kind_is_seen() -> None:
    """Of each sample a case is fast, and a test that is slow as a whole names a fast one that meets the same faults."""
    assert min(table().samples.values()) >= 1
    for name, other in table().whole.items():
        assert defined(other), f"tests/slow.toml names {other} for {name}"
        assert other not in table().whole
    assert not set(table().samples) & set(table().whole)


def test_the_table_is_sorted() -> None:
    """A row is found by its name, and two branches that add rows seldom meet."""
    read = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    assert [list(read[part]) for part in ("samples", "whole")] == [sorted(read[part]) for part in ("samples", "whole")]


def test_which_cases_are_slow() -> None:
    """So many cases stay as the table says, whichever they are; one that is asked for alone is never slow."""
    known = Table({"core/a.py::test_a": 3}, {"core/a.py::TestB::test_b": "core/a.py::test_a"})
    cases = [f"tests/core/a.py::test_a[{number}]" for number in range(40)]
    slow = slow_cases([*cases, "tests/core/a.py::TestB::test_b", "tests/core/a.py::test_c"], known)
    assert "tests/core/a.py::TestB::test_b" in slow
    assert len(slow) == 38
    assert cases[0] not in slow
    assert slow_cases(cases[7:8], known) == set()


def test_a_sample_has_no_rhythm() -> None:
    """Numbers are both odd and even as soon as there are four of them."""
    for count in range(4, 200):
        for kept in range(4, count + 1):
            numbers = spread(count, kept)
            assert len(numbers) == kept
            assert {number % 2 for number in numbers} == {0, 1}
    assert spread(1, 3) == {0}


def test_every_marker_is_run_by_ci() -> None:
    """What is slow runs in `.ci/run`, and what takes hours by the command that CONTRIBUTING names."""
    assert "(slow or hypothesis) and not (hours or root or bench)" in (TOP / ".ci/run").read_text(encoding="utf-8")
    assert "pytest -m slow " in (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert "pytest -n 0 -m hours " in (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
