"""`list` for scripts: references, NUL bytes, and lines of the user's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import save_small
from edl_ckpt.cli.terminal.template import Template
from program import document, edl


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location with two versions, one of which has a metric and a tag."""
    run = tmp_path_factory.mktemp("runs") / "run"
    save_small(run, 10, 20)
    edl("metrics", "set", f"{run}@20", "auc=nan")
    edl("tag", "add", f"{run}@20", "serving")
    return run


def test_references(run: Path) -> None:
    """`-q` prints references only, with `-0` each ends with NUL; every command takes them; filters still hold."""
    assert edl("list", run, "-q").stdout == f"{run}@10\n{run}@20\n"
    assert edl("list", run, "-0").stdout == f"{run}@10\0{run}@20\0"
    assert edl("list", run, "-q", "--tag", "serving").stdout == f"{run}@20\n"
    assert edl("list", "--experiment", run.parent, "-q").stdout == f"{run}@20\n"
    assert edl("inspect", edl("list", run, "-q").stdout.splitlines()[0]).returncode == 0


def test_quiet_for_good(run: Path) -> None:
    """Quiet in the environment is about warnings: it does not change what `list` prints, nor does it with --json."""
    assert edl("list", run, EDL_CKPT_QUIET="1").stdout.startswith(f"{run}  2 versions")
    assert len(document("list", run, "-q")["locations"][0]["versions"]) == 2
    assert edl("list", run, "--format", "{ref}", "--json").returncode == 2


def test_lines(run: Path) -> None:
    """A template takes every key of a version's document, and metrics; what a version lacks is empty."""
    done = edl("list", run, "--format", r"{version:>4}\t{state}|{metrics.auc:.3f}|{tags}|{note}|{{}}")
    assert done.stdout == "  10\tcomplete||||{}\n  20\tcomplete|nan|serving||{}\n"
    version = document("list", run)["locations"][0]["versions"][1]
    shown = {key: Template(f"{{{key}}}", end="").of([version], safe=False) for key in version}
    assert shown["missing_count"] == "0"
    assert shown["metadata"] == "{}"
    assert shown["size_bytes"] == str(version["size_bytes"])
    assert [key for key, value in version.items() if value not in (None, "", []) and not shown[key]] == []


@pytest.mark.parametrize(
    ("template", "word"),
    [
        ("{vers}", "did you mean version?"),
        ("{version", "{{"),
        ("{version!r}", ""),
        ("{state:d}", ""),
        ("{0.x}", "fields"),
    ],
)
def test_wrong_templates(template: str, word: str, run: Path) -> None:
    """A field that there is not, and what a template cannot do, is code 2 and says what there is."""
    done = edl("list", run, "--format", template)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr


def test_a_terminal_is_safe() -> None:
    """On a terminal a name cannot send control sequences; a pipe gets it as it is."""
    row = {"ref": "run\x1b[31m@1"}
    assert Template("{ref}").of([row], safe=True) == "run\\x1b[31m@1\n"
    assert Template("{ref}").of([row], safe=False) == "run\x1b[31m@1\n"
