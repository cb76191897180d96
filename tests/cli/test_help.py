"""The help: its groups, its lines, its examples, and what it costs to print it."""

from __future__ import annotations

import re
import shlex
import shutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

from edl_ckpt.cli.app import COMMANDS, GROUPS, SECTIONS, build, run
from edl_ckpt.cli.commands.demo_ import make_checkpoints
from edl_ckpt.cli.help import example_lines, first_line
from places import GOLDEN
from program import edl

HELP = [*COMMANDS, *GROUPS, ""]
"""Everything that has a help of its own; the last is the program."""


def function_of(command: str) -> Any:
    """Return the function behind a command's name."""
    module = import_module(f"edl_ckpt.cli.commands.{command.partition(' ')[0]}_")
    return getattr(module, f"{command.replace(' ', '_')}_command")


@pytest.fixture(scope="module")
def program() -> Any:
    """Return the program as typer's parser sees it."""
    return typer.main.get_command(build())


def parser_of(program: Any, command: str) -> Any:
    """Return the parser of a command such as `list` or `tag add`."""
    for name in command.split():
        program = program.commands[name]
    return program


def help_of(program: Any, command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what `--help` prints on a terminal of so many columns."""
    monkeypatch.setenv("COLUMNS", str(columns))
    parser = parser_of(program, command)
    context = parser.make_context(f"edl-ckpt {command}".strip(), [], resilient_parsing=True)
    return str(parser.get_help(context))


def test_every_command_stands_in_one_section() -> None:
    """The sections name each command once, and each group's sub-commands are commands."""
    names = [name for section in SECTIONS.values() for name in section]
    assert len(names) == len(set(names))
    assert set(names) == {command.partition(" ")[0] for command in COMMANDS}
    assert set(GROUPS) == {command.partition(" ")[0] for command in COMMANDS if " " in command}
    assert len(COMMANDS) == len(set(COMMANDS)) >= 24


def test_root_help_shows_the_groups() -> None:
    """`--help` lists every command under its heading, in order, with the whole first line of its help."""
    done = edl("--help", COLUMNS="80")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for heading, names in SECTIONS.items():
        start = lines.index(f"{heading}:") + 1
        rows = [lines[start + k].split(maxsplit=1) for k in range(len(names))]
        assert rows == [[n, GROUPS[n][0] if n in GROUPS else first_line(function_of(n))] for n in names]
        assert lines[start + len(names)] == ""
    headings = [line[:-1] for line in lines if line.endswith(":") and line == line.lstrip()]
    assert headings == [*SECTIONS, "Options", "Examples"]


def test_root_help_needs_no_parameters(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program prints the same help when, for speed, its commands are built without their parameters."""
    bare = typer.main.get_command(build(parameters=False))
    assert help_of(bare, "", 80, monkeypatch) == help_of(program, "", 80, monkeypatch)


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("command", HELP)
def test_help_fits_the_terminal(command: str, columns: int, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line is cut with "...", or wider than the terminal; examples are not wrapped, and fit 80 columns."""
    text, _, examples = help_of(program, command, columns, monkeypatch).partition("\nExamples:\n")
    assert max(map(len, text.splitlines())) <= columns
    assert max(map(len, examples.splitlines())) < 80
    assert not re.search(r"[a-z,;] ?\.\.\.", text)  # NAME... says that there may be several


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS])
def test_first_line(command: str) -> None:
    """The first line of each command's help is one sentence of at most 60 characters."""
    line = GROUPS[command][0] if command in GROUPS else first_line(function_of(command))
    assert 10 < len(line) <= 60
    assert line.endswith(".")
    assert line[0].isupper()


@pytest.mark.parametrize("command", HELP)
def test_help_ends_with_two_examples(command: str, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each help ends with two different examples of the command, written as they can be copied."""
    text = help_of(program, command, 80, monkeypatch)
    examples = [line.removeprefix("  ") for line in text.partition("\nExamples:\n")[2].splitlines()]
    assert len(set(examples)) == 2
    assert all(
        line.startswith(f"edl-ckpt {command}".strip() + " ") or line == f"edl-ckpt {command}" for line in examples
    )
    if command in COMMANDS:
        assert tuple(examples) == example_lines(function_of(command))


@pytest.mark.parametrize("command", HELP)
def test_examples_are_accepted(command: str, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The argument parser of its command takes each example, without the environment's help."""
    text = help_of(program, command, 80, monkeypatch)
    for line in text.partition("\nExamples:\n")[2].splitlines():
        words = shlex.split(line)[1:]
        name = max((c for c in COMMANDS if words[: len(c.split())] == c.split()), key=len)
        parser_of(program, name).make_context(name, words[len(name.split()) :])


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with everything that the examples name."""
    place = tmp_path_factory.mktemp("workshop")
    make_checkpoints(str(place / "run"))
    (place / "names.toml").write_text('[rename]\n"dense/bias:0" = "dense/offset:0"\n')
    (place / "metrics.csv").write_text("step,auc\n100,0.71\n230,0.78\n")
    shutil.copy(GOLDEN / "logs/master-head.log", place / "master.log")
    for line in (
        *(f"metrics set run@{version} auc=0.7{version} loss=0.3 --mode max" for version in (100, 200, 300)),
        "export run@100 model.safetensors",
        "export run@100 arrays.npz",
        "tag add run@100 serving",
        "metadata set run@100 owner=ads lr=0.1",
        "policy set run --keep 9",
        "import model.safetensors run@50 --ps 2",
        "prune run --delete 50 --trash",
    ):
        done = edl(*line.split(), cwd=place)
        assert done.returncode == 0, done.stderr
    for name in ("a", "b"):
        shutil.copytree(place / "run", place / "runs" / name)
    return place


LINES = [line for command in COMMANDS for line in example_lines(function_of(command))]


@pytest.mark.parametrize("line", [line for line in LINES if "s3://" not in line and line.split()[1] != "watch"])
def test_examples_work(line: str, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example that stays on the disk, and ends, does what it says: it ends with 0, or with 3 for findings."""
    shutil.copytree(workshop, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    if " export " in line:
        Path("model.safetensors").unlink()
    with pytest.raises(SystemExit) as end:
        run(shlex.split(line)[1:])
    assert end.value.code in ({0, 3} if line.split()[1] in {"diff", "get", "verify"} else {0, None})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("list --nonsense", "No such option"),
        ("reshard run", "Missing option"),
        ("prune --keep x", "not a valid int"),
        ("get a b", "unexpected extra argument"),
    ],
)
def test_an_example_can_be_refused(line: str, message: str, program: Any) -> None:
    """The parser that checks the examples refuses a wrong one."""
    name, *words = line.split()
    with pytest.raises(Exception) as refusal:  # noqa: PT011 - its class has no public name in typer 0.28
        parser_of(program, name).make_context(name, words)
    assert message in str(refusal.value.format_message())  # type: ignore[attr-defined]
