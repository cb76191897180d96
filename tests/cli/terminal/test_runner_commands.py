"""Names in a checkpoint are no commands for the runner of a CI job, in no output of any command.

GitHub's runner takes a line for a command that begins with '::' after white space, or that has '##[' anywhere. Azure's
does so with '##vso[', and TeamCity's with '##teamcity['.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import hostile_state
from checkpoints import at
from edl_ckpt.cli.terminal.output import Output, reported_errors
from edl_ckpt.cli.terminal.text import without_commands
from edl_ckpt.core import (
    Table,
    add_tag,
    export_version,
    save_checkpoint,
    set_metadata,
    set_metrics,
    set_note,
    verify_version,
)
from hostile_state import run_command

NAMES = (
    "::error file=x::boom", "\n::add-mask::a", "\r\n  ::warning::b", "\u2003::debug::c", "x ##[error]d",
    "##vso[task.setvariable variable=e]f", "##teamcity[message]", "%0A::notice::g", "###[group]h",
)  # fmt: skip
PLACE = "::error title=run::x ##[error]"
MODES: tuple[tuple[str, ...], ...] = ((), ("--json",), ("--csv",), ("--jsonl",), ("-q",), ("-v",))
WORDS = {
    "list": ("RUN",), "inspect": ("RUN@20",), "get": ("RUN@20", "--table", NAMES[0], "--id", "1"),
    "head": ("RUN@20", "--table", NAMES[1]), "sample": ("RUN@20", "--table", NAMES[4]),
    "ids": ("RUN@20", "--table", NAMES[5]), "diff": ("RUN@10", "RUN@20"), "du": ("RUN@20",),
    "verify": ("RUN", "--all", "--strict"), "reshard": ("RUN@20", "--ps", "3", "--dry-run"),
    "copy": ("RUN@20", "target", "--dry-run"), "export": ("RUN@20", "out.npz", "--dry-run"),
    "import": ("arrays.npz", "RUN@50", "--ps", "2", "--dry-run"), "prune": ("RUN", "--keep", "1", "--dry-run"),
    "policy show": ("RUN",), "metrics show": ("RUN",), "tag list": ("RUN",), "note": ("RUN@10", NAMES[1]),
    "metadata show": ("RUN@20",), "wait": ("RUN", "--timeout", "0"), "recover": ("RUN",), "unlock": ("RUN", "--yes"),
    "watch": ("RUN", "--after", "-1", "--timeout", "0"), "doctor": ("RUN", "--no-write"),
    "tag add": ("RUN@20", NAMES[5]), "tag remove": ("RUN@20", NAMES[0]), "metrics remove": ("RUN@20", "##[x]"),
}  # fmt: skip
ENDS = {"tag add": {2}, "tag remove": {10}, "metrics remove": {10}, "unlock": {10}, "wait": {10, 3}}
"""Exit codes of those that have nothing to do, and say so with a name."""


def commands_in(text: str) -> Iterator[str]:
    """Yield the lines that a runner could take for commands."""
    for line in re.split(r"\r\n|\r|\n", text):
        if line.lstrip().startswith("::") or re.search(r"##(vso|teamcity)?\[", line):
            yield line


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a location whose every name and text is a command, and damaged versions in it."""
    base = tmp_path_factory.mktemp("names")
    run = base / PLACE
    ids, rows = np.arange(4), np.ones((4, 2), np.float32)
    tables = {name: Table(ids, rows) for name in NAMES}
    for number in (10, 20, 30):
        variables = {f"v{name}": np.full(3, number) for name in NAMES}
        save_checkpoint(str(run), number, 2, variables=variables, tables=tables, layout="elasticdl")
    for name in NAMES:
        if name.isprintable():
            set_metrics(at(run, 20), {name: 0.5})
            set_metadata(at(run, 20), {name: name})
    add_tag(at(run, 20), "::error::tag##[x]")
    set_note(at(run, 20), "".join(NAMES))
    export_version(at(run, 20), str(base / "arrays.npz"))
    shard = run / "version-30/variables-1-of-2.ckpt"
    shard.write_bytes(shard.read_bytes()[:-40])
    (run / "version-30" / "::error::extra").write_text("")
    return base


@pytest.mark.parametrize("command", WORDS)
def test_no_output_is_a_command(base: Path, command: str, tmp_path: Path) -> None:
    """Whatever a command prints, and however it ends, no line of stdout or stderr is a command."""
    assert command in hostile_state.COMMANDS
    modes = MODES + ((("--format", "{ref} {tags} {note}"), ("-q", "-0")) if command == "list" else ())
    work = base
    if command not in hostile_state.READING:
        work = tmp_path / "work"
        shutil.copytree(base, work)
    for mode in modes:
        words = [word.replace("RUN", PLACE) for word in (*command.split(), *WORDS[command], *mode)]
        code, out, err = run_command(work, tuple(words))
        assert code in ({0, 3} if mode[:1] not in {("--csv",), ("--jsonl",)} else {0, 2, 3}) | ENDS.get(
            command, set()
        ), err
        assert list(commands_in(out + "\n" + err)) == [], words
        if "--json" in mode and code in {0, 3}:
            [json.loads(line) for line in out.splitlines()]
    assert verify_version(at(work / PLACE, 10), level="deep").ok


def test_json_keeps_names(base: Path) -> None:
    """Programs read from JSON the names as they are."""
    code, out, _ = run_command(base, ("inspect", f"{PLACE}@10", "--json"))
    document = json.loads(out)
    assert code == 0
    assert {table["name"] for table in document["tables"]} == set(NAMES)
    assert document["ref"] == f"{PLACE}@10"


def test_csv_keeps_other_names(base: Path) -> None:
    """In CSV only what a runner would take for a command is written otherwise."""
    _, out, _ = run_command(base, ("diff", f"{PLACE}@10", f"{PLACE}@20", "--csv"))
    rows = list(csv.DictReader(io.StringIO(out)))
    assert {"v%0A::notice::g", "vx #%23[error]d"} <= {row["name"] for row in rows}


def test_annotations_are_the_only_commands(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a runner each finding and each failure is one annotation, and nothing in it begins another one."""
    monkeypatch.setitem(os.environ, "GITHUB_ACTIONS", "true")
    _, out, err = run_command(base, ("verify", f"{PLACE}@30"))
    assert list(commands_in(out)) == []
    lines = list(commands_in(err))
    assert lines
    assert all(line.startswith(("::error title=", "::warning title=")) for line in lines)
    code, _, err = run_command(base, ("inspect", f"{PLACE}@30\n::error::z"))
    assert code in {2, 10}
    assert [line.partition("::")[0] + line[:9] for line in commands_in(err)] == ["::error t"]


@pytest.mark.parametrize("as_json", [False, True])
def test_a_bug(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """The traceback of a bug has no command either, as text and as a document."""
    with pytest.raises(SystemExit), reported_errors(Output(json=as_json)):
        raise ValueError("x\n::error::a ##[error]b")
    shown = capsys.readouterr().err
    assert "internal error" in shown
    assert list(commands_in(shown)) == []


def test_what_is_no_command_stays() -> None:
    """Other text is printed as it is."""
    for text in ("a::b", "x: ::y", "## Heading", "#### bar", "a\n b::c\n", "[##]"):
        assert without_commands(text) == text
