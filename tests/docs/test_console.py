"""Every example of README and the manual gives what its page shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import console


@pytest.mark.parametrize("page", console.pages(), ids=lambda page: page.name)
def test_examples(page: Path) -> None:
    """Each console block, each Python block, in order, prints what the page shows; times and the like aside."""
    outcomes = console.run_page(page.read_text(encoding="utf-8").split("\n"))
    stale = "\n".join(console.differences(outcomes))
    assert not stale, f"{page.name} is out of date; `{console.UPDATE}` rewrites it:\n{stale}"


def test_there_are_examples() -> None:
    """README shows six commands at work."""
    lines = (console.TOP / "README.md").read_text(encoding="utf-8").split("\n")
    shown = " ".join(example.source for example in console.examples(lines))
    assert all(f"edl-ckpt {name}" in shown for name in ("list", "inspect", "verify", "reshard", "prune", "export"))


PAGE = """\
# A page

```console
$ edl-ckpt list edl-ckpt-demo --best auc
something else

# A comment
$ edl-ckpt get edl-ckpt-demo@300 --table item_embedding --id -5
$ echo $?
```

<!-- file: words.txt -->
```text
one
```

```console
$ cat words.txt
two
```

```python
print("three")
```
"""


def test_stale_output_is_found_and_rewritten() -> None:
    """Output that differs is reported; the rewritten page shows the program's; a second run finds nothing more."""
    lines = PAGE.split("\n")
    outcomes = console.run_page(lines)
    report = "\n".join(console.differences(outcomes))
    assert "-something else" in report
    assert "+one" in report
    fresh = console.rewritten(lines, outcomes)
    assert "something else" not in fresh
    assert "# A comment" in fresh
    assert fresh[fresh.index("$ echo $?") + 1] == "3"
    assert fresh[fresh.index("$ cat words.txt") + 1] == "one"
    assert fresh[-4:] == ["```text", "three", "```", ""]
    again = console.run_page(fresh)
    assert not list(console.differences(again))
    assert console.rewritten(fresh, again) == fresh


def test_a_silent_failure_is_refused() -> None:
    """A page whose command fails, without the exit code behind it, is an error; a block without a command too."""
    with pytest.raises(console.ExampleError, match="ended with 10"):
        console.run_page(["```console", "$ edl-ckpt list nowhere", "```"])
    with pytest.raises(console.ExampleError, match="begins with a command"):
        console.run_page(["```console", "no command", "```"])


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1.5 MiB in 0.02 s (91.8 MiB/s)", "1.5 MiB in 12.10 s (1.8 GiB/s)", True),
        ("1.5 MiB in 0.02 s (91.8 MiB/s)", "1.6 MiB in 0.02 s (91.8 MiB/s)", False),
        ("100  now  complete", "100   3 min ago  complete", True),
        ("100  now  complete", "200  now  complete", False),
        ("a  b", "a   b", False),
        ('"modified": "2026-01-02T03:04:05.678+00:00"', '"modified": "2027-01-02T03:04:05+00:00"', True),
        ('"seconds": 0.5, "rows": 5', '"seconds": 1e-05, "rows": 5', True),
        ('"seconds": 0.5, "rows": 5', '"seconds": 0.5, "rows": 6', False),
    ],
)
def test_normalising_is_narrow(one: str, other: str, same: bool) -> None:
    """Times, ages, rates and peak memory do not count; every other character does, spaces included."""
    assert (console.normalise(one) == console.normalise(other)) is same
