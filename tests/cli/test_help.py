"""The help: its groups, its lines, its examples, and what it costs to print it."""

from __future__ import annotations

import re
import shlex
from importlib import import_module
from typing import Any

import pytest
import typer.main

from edl_ckpt.cli.app import COMMANDS, GROUPS, SECTIONS, build
from edl_ckpt.cli.help import example_lines, first_line
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
    """The parser that judges the examples refuses what is wrong."""
    name, *words = line.split()
    with pytest.raises(Exception) as refusal:  # noqa: PT011 - its class has no public name in typer 0.28
        parser_of(program, name).make_context(name, words)
    assert message in str(refusal.value.format_message())  # type: ignore[attr-defined]
