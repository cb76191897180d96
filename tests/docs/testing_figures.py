"""Writes how many tests there are, and how long they take, into docs/testing.md, from what a run of pytest printed.

    (time pytest) > suite.txt 2>&1; python tests/docs/testing_figures.py suite.txt

The numbers stand between the marks `<!-- figures: suite -->` and `<!-- end -->`. Nothing writes them by hand.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))  # when this file is the program

from measure import fill

from places import TOP
from samples import table

PAGE: Final = TOP / "docs/testing.md"
PLACE: Final = "suite"
_SUMMARY: Final = re.compile(r"^=*\s*(\d+) passed(?:, (\d+) skipped)?[^\n]* in ([\d.]+)s", re.MULTILINE)
_CPU: Final = re.compile(r"^(?:user|sys)\s+(\d+)m([\d.]+)s$", re.MULTILINE)


class NoSummaryError(Exception):
    """The text is not what `time pytest` prints of a run without failures."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the fast suite took, on how many cores."""

    passed: int
    skipped: int
    wall_seconds: float
    cpu_seconds: float
    cores: int


def run_of(printed: str, cores: int) -> Run:
    r"""Return the figures in what `time pytest` printed.

    >>> run_of("8 passed, 2 skipped in 60.5s (0:01:00)\nreal\t1m1.0s\nuser\t1m30.5s\nsys\t0m2.0s", 2)
    Run(passed=8, skipped=2, wall_seconds=60.5, cpu_seconds=92.5, cores=2)

    Raises:
        NoSummaryError: a test failed, or the summary or the times are missing.
    """
    found = _SUMMARY.search(printed)  # where a test has failed, the line begins with `1 failed`
    times = _CPU.findall(printed)
    if found is None or len(times) != 2:
        raise NoSummaryError("no summary of a run without failures, or no `user` and `sys` of `time`")
    cpu_seconds = sum(60 * int(minutes) + float(seconds) for minutes, seconds in times)
    return Run(int(found[1]), int(found[2] or 0), float(found[3]), cpu_seconds, cores)


def lines_of(run: Run) -> Iterator[str]:
    """Yield a run in words, and how much of the tests `tests/slow.toml` leaves out of it."""
    rows = table()
    yield f"* The fast suite has {run.passed:,} tests. {run.skipped:,} more need what was not installed."
    yield f"* On {run.cores} cores it took {run.wall_seconds / 60:.1f} minutes, and {run.cpu_seconds:,.0f} CPU seconds."
    yield f"* Of {len(rows.samples)} tests it runs some cases; {len(rows.whole)} tests are left to `pytest -m slow`."


def written(page: str, run: Run) -> str:
    """Return the page with a run in its place."""
    return fill(page, PLACE, lines_of(run))


def main() -> None:
    """Write the figures of a run into the page."""
    run = run_of(Path(sys.argv[1]).read_text(encoding="utf-8"), len(os.sched_getaffinity(0)))
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")


if __name__ == "__main__":
    main()
