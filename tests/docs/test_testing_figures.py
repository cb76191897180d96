"""The numbers of the page about tests are those that a script writes, in the words of today's script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import testing_figures
from testing_figures import PAGE, NoSummaryError, Run, lines_of, run_of, written

TIMES = "\nreal\t0m9.0s\nuser\t0m12.5s\nsys\t0m1.5s\n"
_NUMBER = re.compile(r"\d[\d,.]*(?<=\d)")


def test_the_page_has_the_words_of_the_script() -> None:
    """But for its numbers the page has what the script would write: no sentence there is written by hand."""
    page = PAGE.read_text(encoding="utf-8")
    new = written(page, Run(1, 2, 3.0, 4.0, 5))
    assert _NUMBER.sub("N", new) == _NUMBER.sub("N", page)


def test_a_run_is_written() -> None:
    """What pytest and `time` printed is in the lines, with thousands apart, minutes, and both kinds of CPU seconds."""
    run = run_of(f"==== 7987 passed, 212 skipped, 21 warnings in 90.00s (0:01:30) ===={TIMES}", 2)
    first, second, _ = lines_of(run)
    assert "7,987 tests. 212 more" in first
    assert "On 2 cores it took 1.5 minutes, and 14 CPU seconds" in second
    assert run_of(f"8 passed in 1.25s{TIMES}", 3) == Run(8, 0, 1.25, 14.0, 3)


@pytest.mark.parametrize(
    "printed",
    [
        f"1 failed, 8 passed in 1.25s{TIMES}",
        f"=== 1 failed, 8 passed, 2 skipped in 1.25s ==={TIMES}",
        "8 passed in 1.25s\n",
        TIMES,
    ],
)
def test_a_run_that_says_nothing_is_refused(printed: str) -> None:
    """A run with a failure, or without its times, gives no figures."""
    with pytest.raises(NoSummaryError):
        run_of(printed, 2)


def test_the_program_changes_only_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the page stays as it was."""
    page, printed = tmp_path / "testing.md", tmp_path / "suite.txt"
    page.write_text("a 1\n<!-- figures: suite -->\nold\n<!-- end -->\nb 2\n", encoding="utf-8")
    printed.write_text(f"8 passed in 1.25s{TIMES}", encoding="utf-8")
    monkeypatch.setattr(testing_figures, "PAGE", page)
    monkeypatch.setattr("sys.argv", ["testing_figures.py", str(printed)])
    testing_figures.main()
    head, tail = page.read_text(encoding="utf-8").split("* The fast suite has 8 tests.")
    assert head == "a 1\n<!-- figures: suite -->\n"
    assert tail.endswith("`pytest -m slow`.\n<!-- end -->\nb 2\n")
