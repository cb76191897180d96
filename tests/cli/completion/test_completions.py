"""Completion: what a word can become, in the three shells as people use them, whatever names a checkpoint has.

A shell is asked what it made of a line by running `printf` on it: so the quoting is judged by the shell itself.
"""

from __future__ import annotations

import math
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pexpect
import pytest

from edl_ckpt.cli.commands.completion_ import SCRIPTS
from edl_ckpt.cli.completion import shells, values
from edl_ckpt.cli.completion.grammar import expected, load
from edl_ckpt.cli.completion.values import Completer, bounded
from edl_ckpt.core import add_tag, save_checkpoint, set_metrics
from places import GOLDEN
from program import edl
from s3_fixtures import Bucket
from system_runs import bundle_run, step_run

HOSTILE = (
    "a b", "it's", 'quo"te', "$(touch owned)", "`touch owned`", "co:lon", "at@sign", "ba!ng", "semi;touch owned",
    "sl\\ash", "glob*", "#hash", "~tilde", "naïve", "-dash", "eq=ual", "=ls", "<less", "$HOME",
)  # fmt: skip
"""Names that a shell would read as more than themselves; each has another first character."""
PATIENT = """
from edl_ckpt.cli.completion import shells, values
shells._LOCAL_SECONDS = shells._REMOTE_SECONDS = values._SECONDS = 600.0
from edl_ckpt.cli.app import main
main()
"""
"""The program with all the time that it needs: on a busy machine a shell is given fewer names, or none."""
UNSHOWN = ("new\nline", "es\x1b[31mcape", "tab\tulator", "\u202ebidi")
"""Names that no terminal can show as they are."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the location `run`, whose names are hostile, and a home with the program on PATH."""
    top = tmp_path_factory.mktemp("place")
    table = (np.arange(3), np.ones((3, 2), np.float32))
    variables = {name: np.ones(2, np.float32) for name in (*HOSTILE, *UNSHOWN)}
    for version in (100, 200, 1230):
        save_checkpoint(top / "run", version, 2, variables=variables, tables={"user": table, "item": table})
    add_tag(f"{top}/run@200", "serving")
    set_metrics(f"{top}/run@100", {"auc": 0.7, "loss": 1.0})
    for name in ("a b", "it's", "$(touch owned)"):
        shutil.copytree(top / "run", top / "odd" / f"{name} run")
    program = top / "bin" / "edl-ckpt"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{PATIENT}' \"$@\"\n")
    program.chmod(0o755)
    return top


def words(line: str, cwd: Path, **env: str) -> list[str]:
    """Return what bash would be given for a line whose end is the cursor, without the space that follows a word."""
    done = asked(line, cwd, **env)
    assert (done.stderr, done.returncode) == ("", 0)
    return [word.removesuffix(" ") for word in done.stdout.splitlines()]


def asked(line: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program as bash's script does."""
    variables = {"_EDL_CKPT_COMPLETE": "bash", "COMP_LINE": line, "COMP_POINT": str(len(line.encode()))}
    outer = {name: value for name, value in os.environ.items() if not name.startswith("EDL_CKPT")}
    return subprocess.run(
        [sys.executable, "-c", PATIENT],
        cwd=cwd,
        env={**outer, "XDG_CONFIG_HOME": "/nowhere", "HOME": str(cwd), **variables, **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


LINES = [
    ("edl-ckpt ver", ["verify", "version"]),
    ("edl-ckpt tag ", ["add", "remove", "list"]),
    ("edl-ckpt inspect ru", ["run", "run@"]),
    ("edl-ckpt inspect run@", ["@latest", "@best:auc", "@best:loss", "@serving", "@1230", "@200", "@100"]),
    ("edl-ckpt inspect run@best:", ["auc", "loss"]),
    ("edl-ckpt list ru", ["run"]),
    ("edl-ckpt diff run@100 @2", ["@200"]),
    ("edl-ckpt get run@100 --table ", ["item", "user"]),
    ("edl-ckpt get --table us", []),
    ("edl-ckpt export run x --format=np", ["npz", "npy"]),
    ("edl-ckpt export run x --dtype b", ["bfloat16"]),
    ("edl-ckpt reshard run --ps 2 --layout ", ["design", "elasticdl"]),
    ("edl-ckpt export run x --fill ", ["zeros", "initializer"]),
    ("edl-ckpt watch run --on complete,dele", ["complete,deleted"]),
    ("edl-ckpt prune run --delete 12", ["1230"]),
    ("edl-ckpt prune run --keep-tag ", ["serving"]),
    ("edl-ckpt list run --best ", ["auc", "loss"]),
    ("edl-ckpt metrics set run@100 a", ["auc="]),
    ("edl-ckpt metrics mode run auc m", ["max", "min"]),
    ("edl-ckpt tag remove run ser", ["serving"]),
    ("edl-ckpt help ex", ["export", "exit-codes"]),
    ("edl-ckpt help tag ", ["add", "remove", "list"]),
    ("edl-ckpt completion ", ["bash", "zsh", "fish", "install"]),
    ("edl-ckpt report run -o bin/", ["bin/edl-ckpt"]),
    ("edl-ckpt list --recur", ["--recursive"]),
    ("edl-ckpt inspect -- --", []),
    ("EDL_CKPT_DIR=run edl-ckpt ver", ["verify", "version"]),
    ("true && edl-ckpt ver", ["verify", "version"]),
    ("time ~/bin/edl-ckpt ver", ["verify", "version"]),
    ("edl-ckpt list run | edl-ckpt ver", ["verify", "version"]),
    ("edl-ckpt nonsense ", []),
    ("edl-ckpt inspect s3://bucket/run@", []),
    ("edl-ckpt inspect run/version_100/", []),
    ("edl-ckpt inspect ~/ru", ["~/run", "~/run@"]),
    ("edl-ckpt inspect $HOME/ru", ["$HOME/run", "$HOME/run@"]),
]


@pytest.mark.parametrize(("line", "wanted"), LINES, ids=[line for line, _ in LINES])
def test_words(line: str, wanted: list[str], place: Path) -> None:
    """Each kind of word is completed, behind the character at which readline begins its word."""
    assert words(line, place) == wanted


def test_places_of_the_environment_and_of_a_file(place: Path, tmp_path: Path) -> None:
    """Without a location on the line, $EDL_CKPT_DIR counts, and then the default storage of the configuration file."""
    assert words("edl-ckpt get --table us", tmp_path, EDL_CKPT_DIR=str(place / "run")) == ["user"]
    assert words("edl-ckpt inspect @12", tmp_path, EDL_CKPT_DIR=str(place / "run")) == ["@1230"]
    config = tmp_path / "night.toml"
    section = '[checkpoint_storage]\ntype = "directory"\ncontainer_path = "{}"\n'
    config.write_text(section.format(place / "run") + section.replace("]", ".cold]", 1).format(place / "run"))
    assert words("edl-ckpt get --table us", tmp_path, EDL_CKPT_CONFIG=str(config)) == ["user"]
    assert words(f"edl-ckpt get --config {config} --table us", tmp_path) == ["user"]
    assert words("edl-ckpt inspect cold@12", tmp_path, EDL_CKPT_CONFIG=str(config)) == ["@1230"]
    assert words("edl-ckpt inspect co", tmp_path, EDL_CKPT_CONFIG=str(config)) == ["cold", "cold@"]


def test_versions_in_the_trash(place: Path, tmp_path: Path) -> None:
    """`undo` completes the versions that it can put back, and says beside a location which it would put back."""
    shutil.copytree(place / "run", tmp_path / "run")
    assert edl("prune", "run", "--delete", "100", "--trash", "--yes", cwd=tmp_path).returncode == 0
    done = subprocess.run(
        [sys.executable, "-c", PATIENT, "undo", "ru"],
        cwd=tmp_path,
        env={**os.environ, "_EDL_CKPT_COMPLETE": "fish"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "run\tin its trash: 100\nrun@\tits versions\n"
    assert edl("tag", "remove", "run@200", "serving", cwd=tmp_path).returncode == 0
    assert edl("prune", "run", "--delete", "200", "--trash", "--yes", cwd=tmp_path).returncode == 0
    assert words("edl-ckpt undo run@", tmp_path) == ["@200", "@100"]
    assert words("edl-ckpt undo @1", tmp_path, EDL_CKPT_DIR="run") == ["@100"]
    done = edl("undo", "run@100", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "run: restored version_100\n")
    assert words("edl-ckpt undo run@", tmp_path) == ["@200"]
    done = edl("undo", "run@serving", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: run: @serving: a version in the trash has only its number\n")


@pytest.mark.parametrize(
    "place_of", sorted({p.parents[1] for p in GOLDEN.rglob("variables-*")})[::4], ids=lambda p: p.name
)
def test_names_are_those_of_the_engine(place_of: Path) -> None:
    """The names that are found at a glance are those that the engine reads, in every generation of the format."""
    from edl_ckpt.core import list_versions, open_checkpoint
    from edl_ckpt.core.sources.elasticdl.peek import Budget, names_in

    for version in list_versions(place_of).versions:
        if version.state.value != "complete":
            continue
        try:
            with open_checkpoint(version) as checkpoint:
                wanted = (set(checkpoint.tables), set(checkpoint))
        except Exception:  # noqa: BLE001 - golden data has damaged versions
            continue
        found = names_in(version.path, Budget.of(10), variables=True)
        assert (set(found.tables), set(found.variables)) == wanted, version.path


def test_it_stays_light(place: Path) -> None:
    """Completion imports neither the parser nor what draws nor numpy, and takes little time of the processor.

    Above what the interpreter needs to begin, it takes a fifth of what `list` takes, on any machine; it may take three
    fifths, for each of them is measured three times only.
    """
    code = "import sys; from edl_ckpt.cli.completion import shells\n"
    code += "try: shells.answer('fish', ['get', 'run', '--table', ''])\nfinally: print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert {"user\ttable", "item\ttable"} <= set(done.stdout.splitlines())
    heavy = {"typer", "rich", "click", "numpy", "fsspec", "s3fs", "google.protobuf", "edl_ckpt.core.storage"}
    assert not heavy & set(done.stdout.split())
    listing = "from edl_ckpt.cli.app import main; import sys; sys.argv[1:] = ['list', 'run']; main()"
    actions: dict[str, Callable[[], object]] = {
        "completion": lambda: words("edl-ckpt get run@100 --table us", place),
        "list": lambda: subprocess.run([sys.executable, "-c", listing], cwd=place, check=True, capture_output=True),
        "nothing": lambda: subprocess.run([sys.executable, "-c", "pass"], check=True),
    }
    took: dict[str, float] = {}
    for _ in range(3):
        for name, act in actions.items():
            took[name] = min(took.get(name, math.inf), _processor_seconds(act))
    assert took["completion"] - took["nothing"] < 0.6 * (took["list"] - took["nothing"]), took


def _processor_seconds(act: Callable[[], object]) -> float:
    """Return the processor's time of the processes that an action starts and waits for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    act()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_hundreds_of_thousands(tmp_path: Path) -> None:
    """Of very many versions a shell gets some, the newest first; what it types on is what all of them begin with."""
    for number in range(3000, 23_000):
        (tmp_path / f"run/version-{number}").mkdir(parents=True)
    found = words("edl-ckpt inspect run@1", tmp_path)
    assert 490 < len(found) <= 500
    assert found[0] == "@19999"
    assert "@10000" in found  # so all that the candidates have in common is @1
    assert words("edl-ckpt inspect run@", tmp_path) == ["@latest", *(f"@{n}" for n in range(22_999, 22_979, -1))]


def test_nothing_blocks_and_nothing_is_said(tmp_path: Path) -> None:
    """Pipes, links to nowhere, huge and damaged files, and places that cannot be read have no names."""
    run = tmp_path / "run"
    (run / "version-1").mkdir(parents=True)
    (run / ".edl-ckpt-0/meta-0").mkdir(parents=True)
    os.mkfifo(run / "version-1/variables-0-of-1.ckpt")
    os.mkfifo(run / ".edl-ckpt-0/meta-0/1.json")
    (run / ".edl-ckpt-0/meta-0/2.json").write_text("[" * 100_000)
    (run / ".edl-ckpt-0/meta-0/3.json").write_text('{"tags": [7, null], "metrics": ["x"], "metadata": 3}')
    (run / ".edl-ckpt-0/meta-0/4.json").symlink_to("nowhere")
    os.truncate(os.open(run / ".edl-ckpt-0/meta-0/5.json", os.O_CREAT | os.O_WRONLY), 1 << 40)
    os.mkfifo(tmp_path / "pipe.toml")
    assert words("edl-ckpt get run --table ", tmp_path) == []
    assert words("edl-ckpt inspect run@", tmp_path) == ["@latest", "@1"]
    assert words("edl-ckpt get --table ", tmp_path, EDL_CKPT_CONFIG=str(tmp_path / "pipe.toml")) == []
    assert words("edl-ckpt get missing@ --table ", tmp_path) == []
    (run / "version-1/variables-0-of-1.ckpt").unlink()
    for data in (
        b"\x1a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x00" * 99,
        b"\x12\x04\x0a\xff\xff\xff",
        os.urandom(4096),
    ):
        (run / "version-1/variables-0-of-1.ckpt").write_bytes(data)
        asked("edl-ckpt get run --variable ", tmp_path)
    before = sorted((str(p), p.lstat().st_mtime_ns) for p in tmp_path.rglob("*"))
    words("edl-ckpt undo ", tmp_path)
    assert sorted((str(p), p.lstat().st_mtime_ns) for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "line", ["", "edl-ckpt", "edl-ckpt '", 'edl-ckpt "$(', "edl-ckpt \\", "é" * 5, "edl-ckpt --\x00"]
)
def test_no_line_is_an_error(line: str, tmp_path: Path) -> None:
    """Whatever is typed, there is no error."""
    done = asked(line.replace("\x00", "\x01"), tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert shells.split(line).words


def test_other_storage_only_where_asked(s3: Bucket, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names on S3 are completed with EDL_CKPT_COMPLETE_REMOTE=1, and without it no request is made."""
    for path in (place / "run").rglob("*"):
        if path.is_file():
            s3.put(f"run/{path.relative_to(place / 'run')}", path.read_bytes())

    def found(*words: str) -> list[str]:
        asked = expected(list(words), load())
        return [each.value for each in bounded(Completer(asked, load()).candidates())]

    assert (found("inspect", f"{s3.url}@"), found("get", s3.url, "--table", "")) == ([], [])
    monkeypatch.setenv("EDL_CKPT_COMPLETE_REMOTE", "1")
    monkeypatch.setattr(values, "SECONDS", 600.0)  # the service is in this process, and takes its time too
    assert found("inspect", f"{s3.url}@12") == [f"{s3.url}@1230"]
    assert {f"{s3.url}@serving", f"{s3.url}@best:auc"} <= {*found("inspect", f"{s3.url}@")}
    assert found("get", s3.url, "--table", "") == ["item", "user"]
    assert "co:lon" in found("get", f"{s3.url}@100", "--variable", "co")


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_the_command_prints_the_script(shell: str) -> None:
    """`edl-ckpt completion SHELL` prints the script that is installed; zsh finds its first line."""
    done = edl("completion", shell)
    assert (done.stdout, done.stderr) == (SCRIPTS[shell].read_text(encoding="utf-8"), "")
    names = {"bash": "edl-ckpt.bash", "zsh": "_edl-ckpt", "fish": "edl-ckpt.fish"}  # under which the shells look
    assert SCRIPTS[shell].name == names[shell]
    assert done.stdout.startswith({"zsh": "#compdef edl-ckpt\n"}.get(shell, "# Completion of edl-ckpt in "))
    wrong = edl("completion", "fsh")
    assert (wrong.returncode, wrong.stderr.splitlines()[1]) == (2, "  did you mean fish?")


def test_the_table_has_every_command() -> None:
    """All options of a command are known, and what those take that take one of few words."""
    commands = load()["commands"]
    assert commands["export"]["options"]["--format"]["takes"].startswith("=")
    assert (commands["tag add"]["arguments"], commands["copy"]["arguments"]) == (["ref", "tag"], ["ref?", "location"])
    assert all(set(known["options"]) >= {"--help", "--json"} for known in commands.values())


class Shell:
    """An interactive shell with the script as it is installed, on a terminal of its own."""

    def __init__(self, name: str, top: Path, home: Path) -> None:
        program = shutil.which(name)
        if program is None:
            pytest.skip(f"no {name} on this machine")
        env = {"PATH": f"{top / 'bin'}:{os.environ['PATH']}", "HOME": str(home), "TERM": "xterm", "LANG": "C.UTF-8"}
        if name == "bash":
            rc = f"PS1='READY> '\nsource {SCRIPTS[name]}\nbind 'set enable-bracketed-paste off'\n"
            (home / "rc").write_text(rc)
            arguments = ["--noprofile", "--rcfile", str(home / "rc"), "-i"]
        elif name == "zsh":
            rc = f"PS1='READY> '\nfpath=({SCRIPTS[name].parent} $fpath)\nautoload -Uz compinit; compinit -u\n"
            (home / ".zshrc").write_text(f"{rc}zle_bracketed_paste=()\nunsetopt prompt_sp\n")
            arguments = ["-i"]
        else:
            folder = home / ".config/fish"
            (folder / "completions").mkdir(parents=True)
            shutil.copy(SCRIPTS[name], folder / "completions")
            (folder / "config.fish").write_text("function fish_prompt; echo 'READY> '; end\nset fish_greeting\n")
            arguments = ["-i"]
        self._child = pexpect.spawn(
            program, arguments, env=env, cwd=str(top), encoding="utf-8", timeout=180, dimensions=(40, 240)
        )
        self._child.expect("READY> ")

    def completed(self, line: str) -> list[str]:
        """Return the words that the shell would hand to the program, after a tab at the end of a line."""
        self._child.send(f"{line}\t")
        self._child.send("\x01printf '<%s>' DONE \x05 END\r")
        self._child.expect(r"<DONE>(<[^\r\n]*?)<END>")
        found = re.findall(r"<(.*?)>(?=<|$)", str(self._child.match[1]))
        return [word for word in found if word]

    def close(self) -> None:
        """End the shell."""
        self._child.close(force=True)


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, place: Path, tmp_path: Path) -> Iterator[Shell]:
    """Return each shell in turn, in the directory of `place`."""
    opened = Shell(request.param, place, tmp_path)
    yield opened
    opened.close()


def test_shells_complete(shell: Shell) -> None:
    """A tab completes commands, options, values, versions, tags, metrics and tables in each shell."""
    for line, last in {
        "edl-ckpt ins": "inspect",
        "edl-ckpt inspect run@ser": "run@serving",
        "edl-ckpt inspect run@best:a": "run@best:auc",
        "edl-ckpt inspect 'run@12": "run@1230",
        'edl-ckpt inspect "run@12': "run@1230",
        "edl-ckpt diff run@100 @ser": "@serving",
        "edl-ckpt get run --table us": "user",
        "edl-ckpt export run x --format=safe": "--format=safetensors",
        "edl-ckpt reshard run --lay": "--layout",
        "edl-ckpt tag add run@100 ser": "serving",
    }.items():
        assert shell.completed(line)[-1] == last, line


def test_hostile_names_stay_names(shell: Shell, place: Path) -> None:
    """A name that a shell would run, or take apart, reaches the program as it is, whichever quote is open."""
    for name in HOSTILE:
        begun = {"`": "\\`", "$(": "\\$", "$H": "\\$H"}.get(name[:1] if name[:1] != "$" else name[:2], name[:2])
        typed = re.sub(r"(?<!\\)([ '\"\\;*#~<!=`])", r"\\\1", begun) if not begun.startswith("\\") else begun
        if name == "$(touch owned)":
            typed = "\\$\\("
        assert shell.completed(f"edl-ckpt export run x --variable {typed}")[-1] == name
    for line, name in {"odd/a": "a b run", "odd/it": "it's run", 'edl-ckpt list "odd/a': "a b run"}.items():
        typed = line if line.startswith("edl-ckpt") else f"edl-ckpt list {line}"
        assert shell.completed(typed)[-1] == f"odd/{name}"
    assert not (place / "owned").exists()
    assert not list(place.rglob("owned"))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("edl-ckpt get torch@10 --table ", ["item", "user", "item:momentum1", "user:momentum1"]),
        ("edl-ckpt inspect torch@10 --table us", ["user", "user:momentum1"]),
        ("edl-ckpt inspect torch --variable ", ["bias", "over"]),
        ("edl-ckpt edit torch@10 --drop us", ["user", "user:momentum1"]),
        ("edl-ckpt edit torch@10 --drop ", ["item", "user", "item:momentum1", "user:momentum1", "bias"]),
        ("edl-ckpt get tf@10 --table ite", ["item", "item:freqs"]),
    ],
)
def test_names_of_other_systems(line: str, wanted: list[str], tmp_path: Path) -> None:
    """Tables, variables and companions of torch and TensorFlow are completed by the names that people type."""
    step_run(tmp_path / "torch", (10,))
    bundle_run(tmp_path / "tf", (10,))
    assert words(line, tmp_path)[: len(wanted)] == wanted
