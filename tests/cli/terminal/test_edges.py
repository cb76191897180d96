"""The command line where streams are odd and settings are wrong."""

from __future__ import annotations

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
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest
from rich.cells import cell_len

from edl_ckpt.core import Table, save_checkpoint
from places import GOLDEN
from program import PROGRAM, edl, without_reader


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of bash in which `edl` is the program."""
    define = f'edl() {{ {shlex.join(PROGRAM)} "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", define + script], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("mode", ["", "--json", "--csv"])
def test_full_stdout(mode: str, tmp_path: Path) -> None:
    """Output that finds no room ends with 14 and a sentence, not with a traceback."""
    done = shell(f"edl list {GOLDEN / 'multi'} {mode} >/dev/full", tmp_path)
    assert done.returncode == 14
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr


def test_closed_streams(tmp_path: Path) -> None:
    """A closed stdout or stderr is /dev/null: words never change streams, files never take their numbers."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    assert shell("edl list run >&-", tmp_path).returncode == 0
    for script in ("edl --version >&-", "edl --version 2>&-", "edl --help >&- 2>&-"):
        done = shell(script, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
    done = shell("edl list nowhere 2>&-", tmp_path)
    assert (done.returncode, done.stdout) == (10, "")
    assert shell("edl reshard run@20 --ps 3 >&- 2>&- <&-", tmp_path).returncode == 0
    assert shell("edl verify run@20 --deep --strict", tmp_path).returncode == 0


def test_full_stderr(tmp_path: Path) -> None:
    """A log on a full disk changes no exit code, and loses no result."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    assert shell("edl list nowhere 2>/dev/full", tmp_path).returncode == 10
    assert shell("edl list --nowhere 2>/dev/full", tmp_path).returncode == 2
    done = shell("edl copy run@20 out 2>/dev/full", tmp_path)
    assert (done.returncode, "copied" in done.stdout) == (0, True)


def test_an_export_to_a_closed_stdout(tmp_path: Path) -> None:
    """An export to stdout, which nobody can read, is refused; it never says that it was written."""
    done = shell(f"edl export {GOLDEN / 'multi'}@20 - --format npz >&-", tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "error: stdout is closed")


def test_a_program_around_ours(tmp_path: Path) -> None:
    """A profiler, coverage or a wrapper gets its turn when a command has ended, and the exit code."""
    (tmp_path / "script.py").write_text("from edl_ckpt.cli.app import main\n\nmain()\n")
    (tmp_path / "wrapper.py").write_text(
        "import runpy\n\ntry:\n    runpy.run_path('script.py')\nfinally:\n    print('turn')\n"
    )
    shell(f"{sys.executable} -m cProfile -o profile script.py list nowhere", tmp_path)
    assert (tmp_path / "profile").stat().st_size
    done = shell(f"{sys.executable} wrapper.py list nowhere", tmp_path)
    assert (done.returncode, done.stdout) == (10, "turn\n")


@pytest.mark.parametrize("command", ["--help", "list --help", "demo made"])
def test_reader_that_goes_away(command: str, tmp_path: Path) -> None:
    """Help and the walk of `demo` end with 141, as every command does, when their reader goes away."""
    done = without_reader(*command.split(), cwd=tmp_path)
    assert "Traceback" not in done.stderr
    assert done.returncode == 141


def test_ascii_stdout() -> None:
    """A stdout that has only ASCII gets tables and bars drawn in it."""
    done = edl("list", GOLDEN / "multi", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "##########" in done.stdout
    assert done.stdout.isascii()
    assert "\\u" not in done.stdout


def test_json_is_ascii(tmp_path: Path) -> None:
    """A JSON document cannot control a terminal: all but ASCII is escaped."""
    (tmp_path / "run\u202e\x9b31m").mkdir()
    done = edl("list", tmp_path / "run\u202e\x9b31m", "--json")
    assert done.stdout.isascii()
    assert json.loads(done.stdout)["locations"][0]["location"].endswith("run\u202e\x9b31m")


def on_terminal(*arguments: str | Path, columns: int = 80, **env: str) -> tuple[int, str]:
    """Run on a pseudo-terminal of so many columns; return the exit code and all that it got."""
    pid, terminal = pty.fork()
    if pid == 0:
        env = {**os.environ, "TERM": "xterm-256color", "XDG_CONFIG_HOME": "/nowhere", **env}
        env.pop("COLUMNS", None)
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        os.execve(
            PROGRAM[0], [*PROGRAM, *map(str, arguments)], env
        )  # not execv: readline sets COLUMNS behind os.environ
    got = b""
    while True:
        try:
            block = os.read(terminal, 65536)
        except OSError:  # Linux's word for the end
            break
        if not block:
            break
        got += block
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), got.decode()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_errors_fold_between_words(tmp_path: Path) -> None:
    """An error, its hint and a warning have their line breaks between words; a path and a command stay whole."""
    columns = 30
    place = tmp_path / "a directory with blanks" / "and_one_long_name_behind_them_that_fits_no_window"
    code, got = on_terminal("inspect", place, columns=columns, NO_COLOR="1")
    assert (code, got.count(f"{place}:")) == (10, 1)
    shutil.copytree(GOLDEN / "current/ps3", tmp_path / "run")
    for words in (["prune"], ["prune", "--keep-tag", "x", "--dry-run"]):
        narrow = on_terminal(*words, columns=columns, NO_COLOR="1", EDL_CKPT_DIR=str(tmp_path / "run"))[1]
        plain = edl(*words, EDL_CKPT_DIR=str(tmp_path / "run")).stderr.splitlines()
        folded = narrow.replace("\r\n", "\n").splitlines()[: narrow.count("\n")]
        assert all(len(line) <= columns or line.strip().startswith("edl-ckpt ") for line in folded)
        assert " ".join(narrow.split()).startswith(" ".join(" ".join(plain[:2]).split()))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_terminal(tmp_path: Path) -> None:
    """On a terminal there are colours, no line passes 80 columns, and no bar or hidden cursor is left behind."""
    shutil.copytree(GOLDEN / "current/ps3", tmp_path / "run")
    for command, flags in (("list", ()), ("inspect", ()), ("reshard", ("--ps", "2"))):
        code, got = on_terminal(command, tmp_path / "run", *flags)
        assert code == 0
        assert "\x1b[" in got
        assert got.count("\x1b[?25l") == got.count("\x1b[?25h")
        assert "proving" not in got.rpartition("\x1b[K")[2]  # a slow proof had a bar, which is erased
    assert "\x1b" not in on_terminal("list", tmp_path / "run", "--no-color")[1]
    assert "\x1b" not in on_terminal("list", tmp_path / "run", NO_COLOR="1")[1]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_fingerprints_have_twelve_digits_on_a_terminal(tmp_path: Path) -> None:
    """A pipe, JSON and --verbose have them whole."""
    run = tmp_path / "run"
    save_checkpoint(run, 1, 2, variables={"bias": np.ones(3, np.float32)}, tables={})
    whole = json.loads(edl("verify", run, "--deep", "--json").stdout)["fingerprint"]
    assert len(whole) >= 69
    assert whole in edl("diff", run, run).stdout
    shown = on_terminal("diff", run, run, NO_COLOR="1")[1]
    assert whole[: 5 + 12] in shown.split()
    assert whole[: 5 + 13] not in shown
    assert whole in on_terminal("diff", run, run, "--verbose", NO_COLOR="1", columns=200)[1].split()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("columns", "env", "is_ascii"),
    [(30, {}, False), (60, {"TERM": "dumb"}, False), (72, {"LC_ALL": "C"}, True), (80, {"TERM": "vt100"}, False)],
)
def test_windows(columns: int, env: dict[str, str], is_ascii: bool, tmp_path: Path) -> None:
    """A real terminal of any kind gets whole numbers and lines that fit; one without UTF-8 gets ASCII only."""
    rows = {"嵌入/table": Table(np.arange(12345), np.ones((12345, 1), np.float32))}
    save_checkpoint(tmp_path / "r", 1234567, 2, variables={}, tables=rows)
    code, got = on_terminal("inspect", tmp_path / "r", "--no-color", columns=columns, **env)
    assert code == 0
    lines = re.sub("\x1b[^m]*m", "", got).splitlines()
    assert max(map(cell_len, lines)) <= columns
    assert "12,345" in got
    assert "float32" in got
    assert got.isascii() == is_ascii
    assert ("嵌入/table" in got) != is_ascii
    assert ("█" in got or "─" in got) == (not is_ascii and env.get("TERM") != "vt100")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('workers = "many"', "workers must be a whole number"),
        ("workers = 2.5", "workers must be a whole number"),
        ("workers = true", "workers must be a whole number"),
        ("workers = 0", "workers must be at least 1"),
        ('quiet = "yes"', "quiet must be true or false"),
        ("grace = 7", "grace must be a string"),
        ('storage-option = "a=b"', "storage-option must be a list of strings"),
        ('ref = "x"', "no command has an option 'ref'"),
        ("[reshard]\nps = [1]", "ps must be a whole number"),
        ("[list]\nall = true", "the command 'list' has no option 'all'"),
    ],
)
def test_wrong_configuration(line: str, what: str, tmp_path: Path) -> None:
    """A wrong type or an unknown key is code 2, naming the file and the key, though the command line overrules it."""
    (tmp_path / "edl-ckpt").mkdir()
    (tmp_path / "edl-ckpt" / "edl-ckpt.toml").write_text(line + "\n")
    arguments = ("reshard", GOLDEN / "multi", "--ps", "2", "--workers", "1", "--dry-run")
    done = edl(*arguments, XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode == 2
    assert f"edl-ckpt.toml, line {line.count(chr(10)) + 1}: {what}" in done.stderr
    assert done.stdout == ""


def test_options_have_their_command_line_name_everywhere(tmp_path: Path) -> None:
    """`--all` is EDL_CKPT_ALL in the environment and `all` in the file."""
    by_environment = edl("verify", GOLDEN / "multi", "--quick", "--json", EDL_CKPT_ALL="1")
    assert json.loads(by_environment.stdout)["schema"] == "edl-ckpt/verify-all/1"
    (tmp_path / "a.toml").write_text('storage-option = ["a=b"]\n[verify]\nall = true\nquick = true\n')
    by_file = edl("verify", GOLDEN / "multi", "--json", "--config", "a.toml", cwd=tmp_path)
    refs = [[each["ref"] for each in json.loads(done.stdout)["results"]] for done in (by_file, by_environment)]
    assert refs[0] == refs[1] != []
    assert {each["level"] for each in json.loads(by_file.stdout)["results"]} == {"quick"}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("verify run --force", "--force can only be used with --seal"),
        ("verify run --quick --seal", "--quick cannot be used with --deep or --seal"),
        ("verify run@9 --all", "run@9: --all and --newest need a location without a version"),
        ("diff run run --rows", "--rows can only be used with --json, --jsonl or --csv"),
        ("get run", "expected --table NAME with --id, --ids-file or --slice, or --variable NAME"),
        ("get run --table t", "no ids were given (expected --id, --ids-file or --slice)"),
        ("copy run@9 out@9", "expected [REF] LOCATION; the copy has the same version number"),
        ("copy run@9 out --all", "run@9: --all and --since need a location without a version"),
        ("import x.npz run --ps 2", "'run': expected LOCATION@VERSION, where VERSION is a number"),
        ("prune run --keep-best 1", "rules for the best versions need --metric NAME"),
        ("prune run --policy orbax", "--policy: expected determined, got 'orbax'"),
        (
            "prune run --keep-within soon",
            "--keep-within: 'soon' is not a duration (expected one such as 90m, 36h or 7d)",
        ),
        ("prune run --keep 1 --max-size big", "--max-size: 'big' is not a size (expected one such as 512MiB or 10GB)"),
        ("prune run --keep 1 --apply f", "--apply takes locations and rules from its plan; do not give others"),
        ("metrics set run@9 auc", "'auc': expected NAME=VALUE"),
        ("metrics set run@9 auc=high", "'auc=high': the value is not a number"),
        ("note run@9 two words", "expected REF TEXT; put a text of several words in quotes"),
        ("list run --storage-option x", "--storage-option expects KEY=VALUE"),
    ],
)
def test_usage_messages(line: str, message: str, tmp_path: Path) -> None:
    """A wrong use of a command is code 2; its message says what the command expects."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    done = edl(*line.split(), cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {message}")


def test_usage_error_document() -> None:
    """A usage error that typer finds ends as every failure, with its sentence, also when the environment asks."""
    for done in (
        edl("verify", "--bogus", "--json"),
        edl("verify", "--bogus", EDL_CKPT_JSON="1"),
    ):
        error = json.loads(done.stderr.splitlines()[-1])
        assert (done.returncode, error["code"], error["id"]) == (2, 2, "usage")
        assert "--bogus" in error["message"]


def test_verify_all_wants_a_location(tmp_path: Path) -> None:
    """`--all` refuses a single version rather than to drop it silently, and says when there is nothing to verify."""
    assert edl("verify", f"{GOLDEN / 'multi'}@20", "--all").returncode == 2
    assert edl("verify", GOLDEN / "multi/version-20", "--all").returncode == 2
    done = edl("verify", tmp_path, "--all")
    assert done.returncode == 0
    assert "nothing was verified" in done.stderr


def test_verify_all_goes_on(tmp_path: Path) -> None:
    """A version that cannot be looked at does not keep `--all` from the others; its code wins over findings."""
    run = tmp_path / "run"
    shutil.copytree(GOLDEN / "multi", run)
    victim = run / "version-9" / "variables-0-of-2.ckpt"
    victim.unlink()
    victim.symlink_to(victim.name)
    done = edl("verify", run, "--all", "--json", "--junit", tmp_path / "report.xml")
    result = json.loads(done.stdout)
    if not result["failed"]:  # verify has a finding for it
        assert done.returncode == 3
        return
    assert done.returncode == result["failed"][0]["code"]
    assert result["ok"] is False
    assert [r["ref"].rpartition("@")[2] for r in result["results"]] == ["20", "100"]
    assert ET.parse(tmp_path / "report.xml").getroot()[-1].get("errors") == "1"


def test_strict_junit(tmp_path: Path) -> None:
    """With --strict a warning fails in the report too, as it does in the exit code."""
    for flags, code, failures in ((["--strict"], 3, "1"), ([], 0, "0")):
        report = tmp_path / "report.xml"
        done = edl("verify", GOLDEN / "bad/unknown-field-1000", *flags, "--junit", report)
        assert done.returncode == code
        assert ET.parse(report).getroot()[0].get("failures") == failures
