"""Writers never guess: what a script did not say is asked for, and no default of a shell or a machine stands for it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from checkpoints import at, files_of, save_small
from edl_ckpt.cli.catalogue import COMMANDS
from edl_ckpt.cli.manual.parsing import kinds_of
from edl_ckpt.cli.options import common
from edl_ckpt.cli.options.config import COMMAND_LINE_ONLY, variable_of
from edl_ckpt.cli.options.decorator import with_output
from edl_ckpt.cli.options.program import parser
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core import RefusedError, add_tag
from program import PROGRAM, document, edl

MAY_BE_EMPTY = {"NAME", "GLOB"}
"""A table, a variable or a metric may have the empty name."""
NEVER_BY_DEFAULT = {
    *("FORCE", "TABLE", "VARIABLE", "DTYPE", "PARTIAL", "MAP", "RENAME", "QUANTIZE", "DROP", "DROP_ROWS"),
    *("IGNORE_SEAL", "DROP_TAG", "DELETE", "PURGE", "APPLY", "YES", "INCOMPLETE", "SINCE", "ORDER", "DENSE_ROWS", "ID"),
}
"""Options that change what comes out, or lift a guard: whether a command has them today or not."""
BY_DEFAULT = {
    *("JSON", "CSV", "JSONL", "QUIET", "VERBOSE", "NO_COLOR", "PROGRESS", "CONFIG", "STORAGE_OPTION", "NO_MOUSE"),
    *(
        "WORKERS",
        "CLUSTER",
        "MAX_MEMORY",
        "LOCK_WAIT",
        "GRACE",
        "INTERVAL",
        "TIMEOUT",
        "STALL_AFTER",
        "LAYOUT",
    ),
    *("KEEP", "KEEP_BEST", "KEEP_EXPERIMENT_BEST", "KEEP_EVERY", "KEEP_WITHIN", "KEEP_TAG", "MAX_SIZE", "POLICY"),
    *("SAVE_EXPERIMENT_BEST", "SAVE_TRIAL_BEST", "SAVE_TRIAL_LATEST", "METRIC", "MODE", "MAX_DELETE", "OLDER_THAN"),
    *("TRASH", "KEEP_OLD", "IF_NEEDED", "DRY_RUN", "PLAN_OUT", "LIST", "OUTPUT", "NPY", "JUNIT", "SUMMARY"),
    *("ALL", "ROWS", "TOP", "STATS", "LAST", "HEADERS", "NO_VALUES", "SORT", "RECURSIVE", "NULL", "PROMETHEUS"),
    *("ORIGIN", "NO_WRITE", "QUICK", "DEEP", "STRICT", "SEAL", "VERSION_GE", "COMPLETE", "ON", "AFTER", "NEAREST"),
    *("EVERYWHERE", "MOVE", "IDS", "RANKS"),
}
"""Options that a machine, a user or a job may set once: looks, resources, rules of retention, levels of checks."""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location with the complete versions 10 and 20, and 30, which lacks a shard."""
    place = tmp_path_factory.mktemp("saved") / "run"
    save_small(place, 10, 20, 30, sealed=False)
    next(place.glob("version?30/*-1-of-2*")).unlink()
    return place


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """Return a copy of that location, which a test may change."""
    shutil.copytree(saved, tmp_path / "run")
    return tmp_path / "run"


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command with its parser."""
    program = parser()
    for name in COMMANDS:
        command = program
        for word in name.split():
            command = command.commands[word]
        yield name, command


def empty_calls() -> Iterator[tuple[str, Any, list[str]]]:
    """Yield a call of every command with each of its arguments, and each option that takes a text, left empty."""
    for name, command in commands():
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option"]
        needed = [word for p in options if p.required for word in (p.opts[0], "2")]
        counts = [len(p.metavar.split()) if p.nargs == -1 else 1 for p in arguments]
        words = ["run@10"] * sum(counts)
        texts = [p.metavar.endswith("TEXT") for p, n in zip(arguments, counts, strict=True) for _ in range(n)]
        for i in range(len(words)):
            if not (texts[i] and i):
                yield name, command, [*words[:i], "", *words[i + 1 :], *needed]
        for option in options:
            if kinds_of(command)[option.name].type is str and option.metavar not in MAY_BE_EMPTY:
                yield name, command, [*words, *needed, option.opts[0], ""]


def test_an_empty_text_is_refused_by_every_command(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An argument or option that is empty is a usage error (2): it is neither the default nor left out."""
    monkeypatch.chdir(run.parent)
    monkeypatch.setenv("EDL_CKPT_DIR", "run")
    before, calls = files_of(run), list(empty_calls())
    for name, command, words in calls:
        with pytest.raises(SystemExit) as end:
            command.main(words, prog_name=f"edl-ckpt {name}", standalone_mode=False)
        error = capsys.readouterr().err
        assert (end.value.code, error[:7]) == (2, "error: "), (name, words)
        assert "an empty text" in error or "''" in error or "KEY=VALUE" in error, (name, words, error)
    assert len(calls) > 2 * len(COMMANDS)
    assert files_of(run) == before


@pytest.mark.parametrize(
    "line",
    [
        'prune "$RUN" --keep 1',
        'prune "$RUN" --delete 10 --yes',
        'reshard "$RUN" --ps 4',
        'reshard run@20 --ps 4 --output "$RUN"',
        'tag add "$RUN" prod',
        'tag remove "$RUN" prod',
        'copy "$RUN" ../copy',
        'copy run@20 "$RUN"',
        'verify "$RUN" --seal',
        'export "$RUN" ../x.npz',
        'undo "$RUN"',
    ],
)
def test_an_unset_variable_of_a_script_changes_nothing(line: str, run: Path) -> None:
    """In a directory of versions, a writer that gets an empty word ends with 2, says so, and touches nothing."""
    before, words = files_of(run), [word.replace('"$RUN"', "") for word in line.split()]
    for flag in ("-q", "--json"):
        done = edl(*words, flag, cwd=run)
        assert (done.returncode, done.stdout, "got an empty text" in done.stderr) == (2, "", True)
    assert json.loads(done.stderr.splitlines()[-1])["id"] == "usage"
    assert files_of(run) == before
    assert sorted(p.name for p in run.parent.iterdir()) == ["run"]


def test_in_a_shell(run: Path) -> None:
    """A script without `set -u` is stopped, in a pipe too; one with a location goes on."""
    script = 'set -o pipefail; "$@" prune "$RUN" --keep 1 --json | cat'
    words = ["bash", "-c", script, "bash", *PROGRAM]
    done = subprocess.run(words, cwd=run, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, json.loads(done.stderr)["code"]) == (2, "", 2)
    assert document("list", run)["locations"][0]["versions"][0]["version"] == 10


def test_empty_variables(run: Path) -> None:
    """EDL_CKPT_DIR that is empty is an error where it would count, and @20 alone is in the default location."""
    before = files_of(run)
    for line in ("prune --keep 1", "reshard --ps 4", "verify @20", "tag add @20 prod", "list"):
        done = edl(*line.split(), cwd=run, EDL_CKPT_DIR="")
        assert (done.returncode, done.stderr) == (2, "error: EDL_CKPT_DIR is empty\n  unset it, or name a location\n")
    assert edl("list", run, EDL_CKPT_DIR="").returncode == 0
    shown = edl("config", "show", EDL_CKPT_DIR="")
    assert (shown.returncode, "EDL_CKPT_DIR: it is empty" in shown.stdout) == (3, True)
    done = edl("reshard", run, "--ps", "4", EDL_CKPT_OUTPUT="")
    assert (done.returncode, done.stderr) == (2, "error: EDL_CKPT_OUTPUT is empty\n  unset it, or name a location\n")
    for words, env in ((["--config", ""], {}), ([], {"EDL_CKPT_CONFIG": ""})):
        done = edl("prune", run, "--keep", "1", *words, cwd=None, **env)
        assert (done.returncode, "--config or EDL_CKPT_CONFIG is empty" in done.stderr) == (2, True)
    assert files_of(run) == before
    assert edl("verify", "@20", cwd=run).returncode == 0
    assert edl("note", f"{run}@20", "").returncode == 0
    assert edl("verify", f"{run}@20").returncode == 0


RECORDS = {
    "tag add {} prod": "tag add {}@latest prod",
    "tag remove {} prod": "tag remove {}@latest prod",
    "metrics set {} auc=0.5": "metrics set {}@latest auc=0.5",
    "metrics remove {} auc": "metrics remove {}@latest auc",
    "metadata set {} owner=ads": "metadata set {}@latest owner=ads",
    "metadata remove {} owner": "metadata remove {}@latest owner",
    "note {} words": "note {}@latest words",
}
"""Commands that record, and what they say is to be typed."""


@pytest.mark.parametrize("line", sorted(RECORDS))
def test_commands_that_record_want_a_version_in_words(line: str, run: Path) -> None:
    """Without a version they are a usage error, which says what to type, and names the newest complete version."""
    before = files_of(run)
    for where, cwd in (("../run", run), ("", run)):
        done = edl(*line.format(where).split(), cwd=cwd)
        assert done.returncode == 2
        first, hint = done.stderr.splitlines()
        assert "the version to change must be named, as in @100 or @latest" in first
        assert hint == f"  try: edl-ckpt {RECORDS[line].format(where)}; the newest complete version is 20"
    assert files_of(run) == before
    if " remove " not in line:
        for where in (f"{run}@latest", f"{run}@10", f"{run}/version-20"):
            assert edl(*line.format(where).split()).returncode == 0
        assert edl("verify", f"{run}@20").returncode == 0


def test_a_tag_on_a_version_that_is_not_complete(run: Path) -> None:
    """It is refused (16), and moves nothing, unless --force is given; in the library it is a RefusedError."""
    document("tag", "add", f"{run}@20", "serving")
    before = files_of(run)
    for flags in ([], ["--also"], ["-q"]):
        done = edl("tag", "add", f"{run}@30", "serving", *flags)
        assert (done.returncode, done.stdout) == (16, "")
        assert done.stderr.startswith(f"error: {run}@30: this version is not complete (its state is writing)\n")
    with pytest.raises(RefusedError, match="not complete"):
        add_tag(at(run, 30), "serving")
    assert edl("tag", "add", f"{run}@30", "serving", EDL_CKPT_FORCE="1").returncode == 16
    assert files_of(run) == before
    hint = edl("tag", "add", f"{run}@30", "serving").stderr.rpartition("edl-ckpt ")[2].split()
    assert hint[-1] == "--force"
    forced = edl(*hint)
    assert forced.stderr == "the tag serving moved from version 20 to version 30\n"
    assert document("tag", "add", f"{run}@10", "serving")["moved_from"] == [30]
    assert edl("verify", f"{run}@serving").returncode == 0


def test_a_reshard_says_which_version_it_takes(run: Path) -> None:
    """Without a version it is the newest complete one of the location, or of the default one, and stderr says which."""
    for words, cwd in (([str(run)], None), ([], run)):
        done = edl("reshard", *words, "--ps", "3", "--dry-run", cwd=cwd)
        assert (done.returncode, done.stderr) == (
            0,
            f"{words[0] if words else '.'}@20 is the newest complete version\n",
        )
    for words in ([f"{run}@20"], [f"{run}@latest"], [f"{run}/version-20"], [str(run), "-q"]):
        assert edl("reshard", *words, "--ps", "3", "--dry-run").stderr == ""
    assert document("reshard", run, "--ps", "3")["version"] == 20
    assert edl("verify", f"{run}@20").returncode == 0


def test_every_option_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that changes what comes out has no variable; each later option is to be put into one of the sets."""
    found: dict[str, set[bool]] = {}
    for _, command in commands():
        for option in command.params:
            if option.param_type_name == "option" and option.name != "help":
                flag = next(flag for flag in option.opts if flag.startswith("--"))
                found.setdefault(variable_of(flag).removeprefix("EDL_CKPT_"), set()).add(option.envvar is not None)
    settable = {name for name, has in found.items() if True in has}
    assert settable == BY_DEFAULT
    assert found.keys() - settable <= {variable_of(name).removeprefix("EDL_CKPT_") for name in COMMAND_LINE_ONLY}
    homonyms = {name for name, has in found.items() if len(has) > 1}
    assert homonyms == {"ALL", "ROWS", "MODE", "RANKS", "LAYOUT"}


def test_later_options_of_the_same_kind() -> None:
    """An option of such a name gets no variable from the moment that a command has it."""
    for name in NEVER_BY_DEFAULT:
        flag = "--" + name.lower().replace("_", "-")

        def command(out: Output, value: Any = None) -> None: ...

        kind = Annotated[str | None, common.option("NAME", "", flag)]
        command.__annotations__ = {"out": Output, "value": kind, "return": None}
        app = typer.Typer()
        app.command()(with_output(command))
        (value,) = [p for p in typer.main.get_command(app).params if p.name == "value"]
        assert (value.opts, value.envvar) == ([flag], None)


@pytest.mark.parametrize("name", ["FORCE", "TABLE", "DTYPE"])
def test_the_environment_and_a_file_change_no_content(name: str, run: Path) -> None:
    """An export is the same whatever these are set to, with a warning; a configuration file cannot set them."""
    target = run.parent / "x.npz"
    assert edl("export", f"{run}@20", target).returncode == 0
    plain = target.read_bytes()
    env = {"FORCE": "1", "TABLE": "nothing*", "DTYPE": "float16"}
    done = edl("export", f"{run}@20", target, cwd=None, **{f"EDL_CKPT_{name}": env[name]})
    words = f"warning: EDL_CKPT_{name} sets nothing: this option can only be given on the command line\n"
    assert (done.returncode, done.stderr.startswith(words)) == (16, True)
    other = run.parent / "y.npz"
    assert edl("export", f"{run}@20", other, cwd=None, **{f"EDL_CKPT_{name}": env[name]}).returncode == 0
    assert other.read_bytes() == plain
    for text in (f"{name.lower()} = '{env[name]}'\n", f"[export]\n{name.lower()} = '{env[name]}'\n"):
        (run.parent / "night.toml").write_text(text)
        done = edl("export", f"{run}@20", target, "--config", run.parent / "night.toml")
        line = len(text.splitlines())
        error = f"error: {run.parent}/night.toml, line {line}: {name.lower()} can only be given on the command line\n"
        assert (done.returncode, done.stderr) == (2, error)
    assert edl("verify", f"{run}@20", "--deep").returncode == 0


def test_unknown_variables(run: Path) -> None:
    """A variable that sets nothing, and looks like ours, is named on stderr with a guess; -q hides that."""
    env = {"EDL_CKPT_LOKWAIT": "1m", "EDL_CKPT_TABEL": "t", "EDL_CKPT_XYZZY": "1"}
    words = [
        "warning: EDL_CKPT_LOKWAIT sets nothing: no option has this variable; did you mean EDL_CKPT_LOCK_WAIT?",
        "warning: EDL_CKPT_TABEL sets nothing: no option has this variable; did you mean --table?",
        "warning: EDL_CKPT_XYZZY sets nothing: no option has this variable",
    ]
    for line in ("list", "version", "help", "config show", "prune --keep 5 --dry-run"):
        done = edl(*line.split(), cwd=run, **env)
        assert (done.returncode, done.stderr.splitlines()[:3], "sets nothing" in done.stdout) == (0, words, False)
    done = edl("list", "--json", cwd=run, **env)
    assert (json.loads(done.stdout)["schema"], done.stderr.splitlines()) == ("edl-ckpt/list/1", words)
    assert edl("list", "-q", cwd=run, **env).stderr == ""
    known = {"DIR": str(run), "TEST_EXAMPLES": "1", "KEEP": "3", "COMPLETE_REMOTE": "1", "REF": "x", "PS": "4"}
    assert edl("list", cwd=None, **{f"EDL_CKPT_{name}": value for name, value in known.items()}).stderr == ""
    assert "sets nothing" not in edl("list", cwd=run, _EDL_CKPT_COMPLETE="none").stderr
    assert document("config", "show")["warnings"] == []


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("rm run@10", "did you mean `edl-ckpt prune LOCATION --delete VERSION --dry-run`?"),
        ("delete run@10", "did you mean `edl-ckpt prune LOCATION --delete VERSION --dry-run`?"),
        ("cp run@10 out", "try: edl-ckpt copy run@10 out"),
        (
            "mv run@10 out",
            "`edl-ckpt copy REF LOCATION` and then `edl-ckpt prune LOCATION --delete VERSION --dry-run`?",
        ),
        ("convert run@10", "did you mean `edl-ckpt export REF OUTPUT`?"),
        ("restore run@10", "did you mean `edl-ckpt undo LOCATION` or `edl-ckpt copy REF LOCATION`?"),
        ("tag rm run@10 x", "did you mean `edl-ckpt tag remove REF TAG`?"),
        ("tag run@10 x", "try: edl-ckpt tag add run@10 x"),
        ("metrics run", "did you mean `edl-ckpt metrics show run`?"),
        ("ls run", "try: edl-ckpt list run"),
        ("metrics shov", "did you mean show?"),
    ],
)
def test_words_of_other_programs(line: str, hint: str, run: Path) -> None:
    """A command of another program, or a group without its command, is refused with the command that is meant."""
    done = edl(*line.split(), cwd=run.parent)
    assert done.returncode == 2
    assert hint in done.stderr
