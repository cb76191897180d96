"""The help: its groups, its panels, its examples, the pages made of it, and what it costs to print it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import manual
import roff
from edl_ckpt.cli.catalogue import COMMANDS, GROUPS, OLD_FLAGS, SECTIONS, function_of
from edl_ckpt.cli.commands.demo_ import make_checkpoints
from edl_ckpt.cli.manual import marks, terminal
from edl_ckpt.cli.manual.front import front_page
from edl_ckpt.cli.manual.pages import ORDER, OTHER, Block, ManualPage, every, is_for_all, root, topics
from edl_ckpt.cli.options.program import parser, run
from edl_ckpt.cli.terminal.window import painted, uses_colour
from places import GOLDEN, TOP
from program import PROGRAM, document, edl

PAGES = {page.name: page for page in reversed([*every(parser)])}  # `config` is a group, and a topic too
"""All pages; that of the program is ''."""
MOST_LINES = {"": 85, "prune": 70}
"""The pages that may have more than 60 lines."""


def block(page: ManualPage, heading: str) -> Block:
    """Return a block of a page, an empty one where it has none."""
    return next((b for b in page.blocks if b.heading == heading), Block(heading))


@pytest.fixture(scope="module")
def program() -> Any:
    """Return the program as typer's parser sees it."""
    return parser()


def parser_of(program: Any, command: str) -> Any:
    """Return the parser of a command such as `list` or `tag add`."""
    for name in command.split():
        program = program.commands[name]
    return program


def test_every_command_stands_in_one_section() -> None:
    """The sections name each command once, each group's sub-commands are commands, and each has its page."""
    names = [name for section in SECTIONS.values() for name in section]
    assert len(names) == len(set(names))
    assert set(names) == {command.partition(" ")[0] for command in COMMANDS}
    assert set(GROUPS) == {command.partition(" ")[0] for command in COMMANDS if " " in command}
    assert len(COMMANDS) == len(set(COMMANDS)) >= 24
    assert set(PAGES) == {"", *COMMANDS, *GROUPS, *topics()}


def test_root_help_shows_the_groups() -> None:
    """`--help` lists every command under its heading, in order, with the whole first line of its help."""
    done = edl("--help", COLUMNS="80")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    for heading, names in SECTIONS.items():
        start = lines.index(f"{heading}:") + 1
        rows = [lines[start + k].split(maxsplit=1) for k in range(len(names))]
        assert rows == [[name, PAGES[name].summary] for name in names]
        assert lines[start + len(names)] == ""
    headings = [line[:-1] for line in lines if line.endswith(":") and line == line.lstrip()]
    assert headings == [*SECTIONS, "Topics", "Options", "Exit codes", "Examples"]


def test_the_front_page_is_that_of_the_commands() -> None:
    """`--help` shows a page that was made before: it is the one that the commands would make now."""
    assert front_page() == root()


@pytest.mark.parametrize(("columns", "width"), [("64", 64), ("0", 80), ("-3", 80), ("wide", 80)])
def test_the_page_is_as_wide_as_columns_say(columns: str, width: int) -> None:
    """COLUMNS is the width of the help where it is a number above 0; without a terminal, 80 is the other."""
    lines = edl("--help", COLUMNS=columns).stdout.splitlines()
    assert "\n".join(lines) == terminal.draw(root(), width=width)


def test_each_way_to_the_help() -> None:
    """`--help`, `-h` and `help` print the same, of the program, a group and a command; `help` knows topics too."""
    for ways in ("--help|-h|help", "tag --help|help tag", "tag add -h|help tag add"):
        done = [edl(*way.split(), COLUMNS="100") for way in ways.split("|")]
        assert {each.returncode for each in done} == {0}
        assert len({each.stdout for each in done}) == 1
    for name in topics():
        assert edl("help", name).stdout.startswith(topics()[name].summary)
    refused = edl("help", "prun")
    assert (refused.returncode, refused.stderr) == (2, "error: no help on prun\n  did you mean prune?\n")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_help_fits_any_terminal(name: str) -> None:
    """A page fits 60 columns with its examples, uses 200, has only ASCII, and no more lines than a person reads."""
    narrow, usual, wide = (terminal.draw(PAGES[name], width=width).splitlines() for width in (60, 80, 200))
    assert max(map(len, narrow)) <= 60
    assert max(map(len, wide)) <= 200
    assert len(wide) <= len(usual) <= len(narrow)
    assert len(usual) <= MOST_LINES.get(name, 60)
    assert "".join((*narrow, *usual, *wide)).isascii()


@pytest.mark.parametrize("name", PAGES)
def test_the_help_in_the_locale_c(name: str) -> None:
    """A page is printed in full where the locale has only ASCII."""
    done = edl("help", *name.split(), LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", COLUMNS="60")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip("\n") == terminal.draw(topics().get(name, PAGES[name]), width=60).rstrip("\n")


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_help_fits_the_terminal(columns: int) -> None:
    """No line of any page is cut, or wider than the terminal; examples are whole, and fit 60 columns."""
    for page in PAGES.values():
        text = terminal.draw(page, width=columns)
        examples = {line for b in page.blocks for line in b.lines}
        lines = [line for line in text.splitlines() if line.removeprefix("  ") not in examples]
        assert max(map(len, lines)) <= columns
        assert all(len(line) < 59 and f"  {line}" in text.splitlines() for line in examples)
        assert not re.search(r"[a-z,;] ?\.\.\.", text)  # NAME... says that there may be several
        said = " ".join(text.split())
        assert "[env: " not in text  # the man pages have them
        rows = [row for b in page.blocks if not is_for_all(b) for row in b.rows if row.term != "others"]
        texts = [*page.description, *(row.text for row in rows)]
        assert all(" ".join(words.split()) in said for words in texts if columns > 40)


def test_colours_change_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """In colour, each page has the words and the lines that it has without; NO_COLOR wins over FORCE_COLOR."""
    for page in PAGES.values():
        coloured = terminal.draw(page, width=72, colour=True)
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == terminal.draw(page, width=72) != coloured
    assert "\x1b" not in edl("list", "--help").stdout
    assert painted("Usage:", "heading") in edl("list", "--help", FORCE_COLOR="1").stdout
    refused = edl("lst", FORCE_COLOR="1").stderr
    assert refused == f"{painted('error:', 'error')} no such command: lst\n  {painted('did you mean list?', 'hint')}\n"
    assert "\x1b" not in edl("lst", FORCE_COLOR="1", NO_COLOR="1").stderr
    for value, shines in (("0", True), ("1", False)):
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("EDL_CKPT_NO_COLOR", value)
        assert ("\x1b" in terminal.drawn(topics()["env"])) == shines
        monkeypatch.delenv("FORCE_COLOR")
        monkeypatch.delenv("EDL_CKPT_NO_COLOR")
    assert "\x1b" not in edl("lst", "--no-color", FORCE_COLOR="1").stderr
    monkeypatch.setenv("TERM", "dumb")
    assert not uses_colour(sys.stdout)


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_help_in_a_window(columns: int) -> None:
    """On a terminal, the help is as wide as the window, and in colour; NO_COLOR is respected."""
    for variables, coloured in (({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False)):
        pid, terminal_end = pty.fork()
        if pid == 0:
            outer = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "NO_COLOR"}}
            os.execve(sys.executable, [*PROGRAM, "prune", "--help"], {**outer, **variables})
        fcntl.ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        printed = b""
        with contextlib.suppress(OSError), os.fdopen(terminal_end, "rb", 0) as reader:  # EIO is the end
            while part := reader.read(1 << 16):
                printed += part
        os.waitpid(pid, 0)
        text = printed.decode().replace("\r\n", "\n")
        assert ("\x1b[" in text) == coloured
        assert re.sub(r"\x1b\[[0-9;]*m", "", text).rstrip() == terminal.draw(PAGES["prune"], width=columns)


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPS])
def test_first_line(command: str) -> None:
    """The first line of each command's help is one sentence of at most 60 characters."""
    line = PAGES[command].summary
    assert 10 < len(line) <= 60
    assert line.endswith(".")
    assert line[0].isupper()


@pytest.mark.parametrize("command", COMMANDS)
def test_page_of_a_command(command: str, program: Any) -> None:
    """Each option stands in a panel, with its default and its variable; kinds of values are explained; two examples."""
    page = PAGES[command]
    assert not block(page, OTHER).rows  # name its panel in `cli/manual/pages.py`
    rows = {row.term: row for heading in ORDER for row in block(page, heading).rows}
    shown = {flag for term in rows for flag in re.findall(r"--[a-z-]+", term)}
    options = [p for p in parser_of(program, command).params if p.param_type_name == "option"]
    flags = {flag for p in options if not p.hidden for flag in p.opts if flag.startswith("--")}
    assert shown == (flags - OLD_FLAGS) | {"--help"}
    for option in options:
        row = next((r for term, r in rows.items() if option.opts[0] in re.split(r"[ ,]+", term)), None)
        assert option.hidden or row is not None
        if row and option.envvar:
            assert f"env: {option.envvar}" in row.notes
        if row and isinstance(option.default, str | float) and not isinstance(option.default, bool):
            assert "Default:" in row.text or f"default: {option.default}" in row.notes
    named = {word for term in rows for word in ("SIZE", "DURATION") if word in term}
    assert named <= {row.term for row in block(page, "Values").rows}
    lines = block(page, "Examples").lines
    assert len(set(lines)) == 2
    assert all(f"{line} ".startswith(f"edl-ckpt {command} ") for line in lines)


@pytest.mark.parametrize("command", COMMANDS)
def test_examples_are_accepted(command: str, program: Any) -> None:
    """The argument parser of its command takes each example, without the environment's help."""
    for line in block(PAGES[command], "Examples").lines:
        words = shlex.split(line)[1:]
        name = max((c for c in COMMANDS if words[: len(c.split())] == c.split()), key=len)
        parser_of(program, name).make_context(name, words[len(name.split()) :])


def test_man_pages_and_reference_are_fresh() -> None:
    """The man pages and the pages in `docs/reference/` say what the help says; CONTRIBUTING says how to make them."""
    assert manual.stale() == []
    for page in PAGES.values():
        text = manual.files()[f"docs/man/{roff.file_name(page)}"] if page.name == "prune" else ""
        assert all(row.term.replace("-", "\\-") in text for b in page.blocks for row in b.rows if text)


def judge(*command: str) -> Callable[[Path], str]:
    """Return what a judge of man pages prints about a file."""

    def complaints(path: Path) -> str:
        done = subprocess.run(
            [*command, str(path)], capture_output=True, text=True, timeout=60, check=False, errors="replace"
        )
        return (done.stdout if command[0] == "mandoc" else "") + done.stderr

    return complaints


@pytest.mark.parametrize("command", [("mandoc", "-Tlint", "-Wwarning"), ("groff", "-man", "-ww", "-Tutf8", "-z")])
def test_man_pages_are_correct(command: tuple[str, ...]) -> None:
    """Neither mandoc nor groff has a warning about a man page."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]} on this machine")
    for name in ("edl-ckpt.1", "edl-ckpt-prune.1", "edl-ckpt-metrics-set.1", "edl-ckpt-config.7"):
        assert judge(*command)(TOP / "docs/man" / name) == ""


def test_exit_codes() -> None:
    """The table of codes is that of the errors and of the page on JSON; each command declares its own."""
    from edl_ckpt.core.base import errors

    codes = {int(row.term): row.text.partition(": ")[::2] for row in topics()["exit-codes"].blocks[0].rows}
    of_errors = {code: name for code, (name, _) in codes.items() if code < 100}
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, errors.EdlCkptError)]
    assert {k.exit_code: k.id for k in kinds} | {0: "ok", 3: "findings", 70: "internal"} == of_errors
    page = (TOP / "docs/json-and-exit-codes.md").read_text(encoding="utf-8")
    assert all(f"\n| {code} | {name} | " in page for code, name in of_errors.items())
    for command in COMMANDS:
        found = marks.exits_of(function_of(command))
        assert marks.ALWAYS <= set(found) <= set(codes)


def test_version() -> None:
    """`-V` and `--version` print one line; `version --json` says what the program runs with."""
    line = edl("--version").stdout
    assert line == edl("-V").stdout
    assert re.fullmatch(r"edl-ckpt \d+\.\d+\.\d+\n", line)
    found = document("version")
    assert found["schema"] == "edl-ckpt/version/1"
    assert f"edl-ckpt {found['version']}\n" == line
    assert found["kernel"] in {"compiled", "numpy"}
    assert found["libraries"]["numpy"]
    assert edl("version").stdout.startswith(line.strip())


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with everything that the examples name."""
    place = tmp_path_factory.mktemp("workshop")
    make_checkpoints(str(place / "run"))
    (place / "m.toml").write_text('[rename]\n"dense/bias:0" = "dense/offset:0"\n')
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
    for name in ("runs/a", "runs/b", "backup"):
        shutil.copytree(place / "run", place / name)
    return place


LINES = [line for command in COMMANDS for line in block(PAGES[command], "Examples").lines]


@pytest.mark.parametrize(
    "line", [line for line in LINES if "s3://" not in line and line.split()[1] not in {"browse", "watch"}]
)
def test_examples_work(line: str, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each example that stays on the disk, and ends, does what it says: it ends with 0, or with 3 for findings."""
    shutil.copytree(workshop, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):  # where `completion install` writes
        monkeypatch.setenv(variable, str(tmp_path / variable))
    if " export " in line:
        Path("model.safetensors").unlink()
    with pytest.raises(SystemExit) as end:
        run(shlex.split(line)[1:])
    assert end.value.code in ({0, 3} if line.split()[1] in {"diff", "get", "verify"} else {0, None})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("list --nonsense", "no such option: --nonsense\n  edl-ckpt list --help lists the options"),
        ("--quiet list", "no such option: --quiet\n  options come after the command: edl-ckpt COMMAND --quiet"),
        ("list --bst auc", "no such option: --bst\n  did you mean --best?"),
        ("lst", "no such command: lst\n  did you mean list?"),
        ("it's", "no such command: it's\n  edl-ckpt --help lists the commands"),
        ("tag ad", "no such command: ad\n  did you mean add?"),
        ("reshard run", "--ranks N is missing\n  usage: edl-ckpt reshard [REF] --ranks N [OPTIONS]"),
        ("import x.npz --ps 2", "LOCATION@VERSION is missing\n  usage: edl-ckpt import INPUT LOCATION@VERSION"),
        ("prune --keep x", "--keep: 'x' is not a whole number"),
        ("prune --keep -1", "--keep: must be at least 0, got -1"),
        ("prune --keep", "--keep: its value is missing"),
        ("get a b", "unexpected argument: b\n  try: edl-ckpt get a --table b --id ID"),
    ],
)
def test_refusals_of_the_parser(line: str, words: str) -> None:
    """What the parser refuses is an error like any other: one line, and a hint with what was perhaps meant."""
    done = edl(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {words}")
    assert done.stderr.count("\n") == 2
    failure = document_of_failure(*line.split())
    assert (failure["code"], failure["id"]) == (2, "usage")
    assert failure["message"] == words.partition("\n")[0]


def document_of_failure(*arguments: str) -> dict[str, Any]:
    """Return the document that ends stderr when a command fails with --json in its environment."""
    found: dict[str, Any] = json.loads(edl(*arguments, EDL_CKPT_JSON="1").stderr.splitlines()[-1])
    return found


def test_no_command_is_help() -> None:
    """The program and a group without a command print their help on stderr, with exit code 2."""
    for words in ((), ("tag",)):
        done = edl(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == edl(*words, "--help").stdout
