"""What errors say beside what is wrong: what was perhaps meant, where a value came from, and how to go on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.cli.app import run
from edl_ckpt.cli.options import hints
from edl_ckpt.cli.options.resuming import half_done, resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core import Progress, UsageError, open_checkpoint, save_checkpoint
from edl_ckpt.core.base.errors import NameNotFoundError, NoSpaceError, UnavailableError
from edl_ckpt.core.catalog.experiment import locations_below
from edl_ckpt.core.storage import Location
from places import GOLDEN
from program import document, edl


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with the location `run`, which has names of all kinds, and with the trials `runs/a` and b."""
    top = tmp_path_factory.mktemp("place")
    table = (np.arange(3), np.ones((3, 2), np.float32))
    for version in range(1000, 1100, 10):
        save_checkpoint(top / "run", version, 1, variables={"dense/kernel:0": np.ones(2)}, tables={"user": table})
    for line in ("tag add run@1000 serving", "metrics set run@1000 auc=0.7 loss=1", "metadata set run@1000 owner=ads"):
        assert edl(*line.split(), cwd=top).returncode == 0
    for name in ("a", "b"):
        shutil.copytree(top / "run/version_1000", top / "runs" / name / "version_1000")
    (top / "night.toml").touch()
    return top


SLIPS = [
    ("inspect run@1034", 10, "run: no version 1034", "the nearest versions there: 1030, 1040"),
    ("inspect run@servin", 10, "run: no version or tag 'servin'", "did you mean serving?"),
    ("inspect run@lates", 10, "run: no version or tag 'lates'", "did you mean latest?"),
    ("inspect run@best:auk", 10, "run: no complete version has a value of 'auk'", "did you mean auc?"),
    ("list run --best los", 10, "run: no complete version has a value of 'los'", "did you mean loss?"),
    ("inspect run --table usr", 10, "run@1090: no table 'usr'", "did you mean user?"),
    ("inspect run --variable kernel", 10, "run@1090: no variable 'kernel'", "did you mean dense/kernel:0?"),
    ("get run --table User --id 1", 10, "run@1090: no table 'User'", "did you mean user?"),
    ("get run --variable x", 10, "run@1090: no variable 'x'", "variables there: dense/kernel:0"),
    ("export run x.npz --table us", 10, "no table matches 'us'", "did you mean user?"),
    ("export run x --format npx", 2, "no format 'npx'; ", "did you mean npz"),
    ("tag remove run@1000 servin", 10, "run@1000: no tag 'servin'", "did you mean serving?"),
    ("metrics remove run@1000 auk", 10, "run@1000: no metric 'auk'", "did you mean auc?"),
    ("metadata remove run@1000 ower", 10, "run@1000: no metadata 'ower'", "did you mean owner?"),
    ("list rum", 10, "rum: no such file or directory", "did you mean run?"),
    ("import run/version_1000/varables-0-of-1.chkpt x@1 --ps 1", 10, "run/", "did you mean run/version_1000/variables"),
    ("list run --config nigth.toml", 2, "nigth.toml: no such configuration file", "did you mean night.toml?"),
    ("list run --sort los", 10, "run: no version has a value of 'los'", "did you mean loss?"),
    (
        "prune run --keep-best 1 --metric auk",
        16,
        "no version has a value of 'auk', so its rule keeps none; did you mean auc? (metrics there: auc, loss)",
        "nothing was deleted; --allow-empty-rule continues",
    ),
    ("prune run --delete 1034", 10, "no version 1034 to delete", "the nearest versions there: 1030, 1040"),
    ("list runs/aa", 10, "runs/aa: no such file or directory", "did you mean runs/a?"),
    (
        "reshard run --ps 2 --layout desing",
        2,
        "--layout: expected design or elasticdl, got 'desing'",
        "did you mean design?",
    ),
    ("wait run --best auc --mode mix", 2, "--mode: expected max or min, got 'mix'", "did you mean min or max?"),
    ("watch run --on complet", 2, "--on: no event 'complet'", "did you mean complete?"),
    ("inspect runs", 10, "runs: no checkpoint here", "versions are below: runs/a, runs/b; --experiment takes them"),
    ("list run@1000", 10, "run@1000: no such file", "a location is expected here, and 1000 is a version: try run"),
    ("tag list run@1000", 10, "run@1000: no such", "a location is expected here, and 1000 is a version: try run"),
    ("tag add run@1000", 2, "TAG is missing", "expected REF TAG"),
    ("note run@1000", 2, "TEXT is missing", "expected REF TEXT"),
    ("copy run@1000", 2, "LOCATION is missing", "expected [REF] LOCATION"),
    ("export run@1000", 2, "OUTPUT is missing", "expected [REF] OUTPUT"),
    ("copy run", 10, ".: no checkpoint here", "run was taken for LOCATION; expected [REF] LOCATION"),
    ("tag add run", 2, "TAG is missing", "expected REF TAG"),
    (
        "tag add serving",
        2,
        "the version to change must be named, as in run@100",
        "expected: edl-ckpt tag add LOCATION@VERSION serving",
    ),
    (
        "metrics set run auc=1",
        2,
        "run: the version to change must be named",
        "try: edl-ckpt metrics set run@latest auc=1;",
    ),
    ("list S3://bucket/run", 15, "S3://bucket/run: unknown kind of storage", "did you mean s3://bucket/run?"),
    ("export run", 10, ".: no checkpoint here", "run was taken for OUTPUT; expected [REF] OUTPUT"),
    ("metrics set run@1000", 2, "NAME=VALUE is missing", "expected REF NAME=VALUE..."),
    ("metrics mode run auc", 2, "max or min is missing", "expected [LOCATION] NAME max|min"),
    ("metadata set run@1000", 2, "KEY=JSON is missing", "expected REF KEY=JSON..."),
    ("list runss/a", 10, "runss/a: no such file or directory", "did you mean runs/a?"),
    ("inspect s4://bucket/run", 15, "s4://bucket/run: unknown kind of storage", "expected a path, s3://, or"),
    ("prune run --keep", 2, "--keep: its value is missing", "try: edl-ckpt prune --help"),
    ("prune run --keep-tag --dry-run", 2, "--keep-tag: its value is missing, because --dry-run is an option", "try:"),
    ("head run -n -q", 2, "--rows: its value is missing, because -q is an option (write --rows=-q if", "try:"),
    ("reshard run@1000 --ps 2 --output run@5", 2, "--output: expected a location, got 'run@5'", "the result has the"),
    ("list s3:/bucket/run", 10, "s3:/bucket/run: no such file", "did you mean s3://bucket/run?"),
    ("get run --table t --id 1 --id 9223372036854775808", 2, "ids: 9223372036854775808 is no int64", ""),
    ("get run --table t --id 99999999999999999999", 2, "ids: 99999999999999999999 is no int64", ""),
    ("list run --format --json=1", 2, "--format: its value is missing, because --json=1 is an option", "try:"),
]


@pytest.mark.parametrize(("line", "code", "message", "hint"), SLIPS, ids=[slip[0] for slip in SLIPS])
def test_slips(line: str, code: int, message: str, hint: str, place: Path) -> None:
    """Each kind of name that is not known is answered with the nearest ones; a missing argument is named."""
    done = edl(*line.split(), cwd=place)
    assert done.returncode == code
    first, *second = done.stderr.splitlines()
    assert first.startswith(f"error: {message}")
    assert [line.startswith(f"  {hint}") for line in second] == [True] * bool(hint)


def test_no_hint_is_better_than_a_wrong_one(place: Path) -> None:
    """What is there, and of another kind than expected, is not proposed again, nor as a location."""
    (place / "words.txt").write_text("words")
    for line in (
        "copy run@1000 words.txt",
        "get run --table t --ids-file run",
        "reshard run@latest --ps 2 --output words.txt",
    ):
        done = edl(*line.split(), cwd=place)
        assert (done.returncode, len(done.stderr.splitlines())) == (10, 1), done.stderr


@pytest.mark.parametrize("address", ["s3://bktt/run", "s3://bktt", "gs://b/a@b/run", "https://host:8080/run"])
def test_a_right_address_is_not_proposed_again(address: str) -> None:
    """An address that is written well gets no guess of what was meant, whatever is not there."""
    assert hints._place_hint(address, Output(), takes_ref=True) is None


def test_names_in_rules(place: Path) -> None:
    """A prune warns of tags and metrics in its rules that no version has, and `list` of tags."""
    rules = ["--keep-tag", "servin", "--keep-best", "1", "--metric", "auk", "--mode", "max"]
    done = edl("prune", "run", *rules, "--dry-run", "--allow-empty-rule", cwd=place)
    none = "no version has a value of 'auk', so its rule keeps none"
    assert done.stderr.splitlines()[:2] == [
        f"warning: {none}; did you mean auc? (metrics there: auc, loss)",
        "warning: no version has the tag 'servin'; did you mean serving? (tags there: serving)",
    ]
    listed = edl("list", "run", "--tag", "serv", cwd=place)
    assert listed.stderr == "warning: run: no version has the tag 'serv'; did you mean serving?\n"


def test_a_value_that_looks_like_an_option(place: Path) -> None:
    """What stands behind '=', or behind an option without a value, is taken as it is written; so is a number."""
    done = edl("prune", "run", "--keep-tag=--dry-run", "--keep", "1", "--dry-run", "--allow-empty-rule", cwd=place)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "keep the latest 1, or the tag --dry-run")
    assert edl("get", "run", "--table", "user", "--id", "-5", cwd=place).returncode == 3
    assert "--keep: no such file" in edl("list", "run", "--", "--keep", cwd=place).stderr


def test_a_metric_that_no_version_has(place: Path, tmp_path: Path) -> None:
    """`wait --best` says that it waits for such a metric, and `metrics mode` takes it, but warns."""
    shutil.copytree(place / "run", tmp_path / "run")
    done = edl("wait", "run", "--best", "auk", "--mode", "max", "--timeout", "0s", cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.endswith("; no version has a value of 'auk'; did you mean auc?\n")
    done = edl("metrics", "mode", "run", "auk", "max", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "warning: no version has a value of 'auk'; did you mean auc?\n")
    bare = edl("metadata", "remove", "run@1010", "owner", cwd=place)
    assert (bare.returncode, bare.stderr) == (10, "error: run@1010: no metadata 'owner'\n")


def test_a_tag_that_is_not_there_without_its_at(place: Path) -> None:
    """Inside a location, a word that is like one of its tags is answered with that tag."""
    done = edl("inspect", "servng", cwd=place / "run")
    assert (done.returncode, done.stderr.splitlines()[1]) == (10, "  did you mean @serving?")


def test_what_is_left_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command that was stopped says how to go on: with what is left, or anew."""
    out, run = Output(), tmp_path / "run"
    run.mkdir()
    for left, words in (
        (False, "interrupted; nothing was left behind: run the same command again\n"),
        (True, f"interrupted; its commit had begun: `edl-ckpt recover {run}`"),
    ):
        if left:
            stage = run / ".edl-ckpt-0/stage-0/20200101T000000-elsewhere-7-00000001"
            stage.mkdir(parents=True)
            (stage / "journal.json").write_text("{}")
        with pytest.raises(KeyboardInterrupt), resumable(out, partial(half_done, Location(str(run)))):
            raise KeyboardInterrupt
        assert capsys.readouterr().err.startswith(words)
    failure = UnavailableError("no answer")
    with pytest.raises(UnavailableError), resumable(out, partial(half_done, Location(str(run)))):
        raise failure
    assert str(failure.hint).startswith("its commit had begun: `edl-ckpt recover")
    assert half_done(Location(str(tmp_path / "nowhere"))) == "nothing was left behind: run the same command again"


@pytest.mark.parametrize(
    ("command", "how"),
    [
        ("reshard run@1000 --ps 2", "nothing was left behind: run the same command again"),
        ("import run x@1 --ps 2", "nothing was left behind: run the same command again"),
        ("prune run --keep 1 --yes", "run the same prune again to finish it"),
        ("export run x.npz", "nothing was left behind: run the same export again"),
        ("export run /dev/null --format npz", "what /dev/null got is not whole: run the same export again"),
    ],
)
def test_a_stopped_command_says_how_to_go_on(command: str, how: str, place: Path, tmp_path: Path) -> None:
    """Ctrl-C ends a command with 130, and a line that says how to go on."""
    shutil.copytree(place / "run", tmp_path / "run")
    code = (
        "import edl_ckpt.core.commit.repair.recovery as r, sys\n"
        "def stop(*_, **__): raise KeyboardInterrupt\n"
        "import edl_ckpt.core.operations.prune.execute as p, edl_ckpt.core.operations.importing as i\n"
        "import edl_ckpt.core.operations.reshard.execute as e\n"
        "p._execute = stop; e.execute_reshard = stop; i.import_checkpoint = i.import_arrays = stop\n"
        "import edl_ckpt.core.operations.export as x; x.run_export = stop\n"
        "from edl_ckpt.cli.app import main; main(sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 130
    assert done.stderr.splitlines()[-1] == f"interrupted; {how}"


@pytest.mark.parametrize("word", ["1000", "latest", "serving", "best:auc"])
def test_a_version_without_its_at(word: str, place: Path) -> None:
    """Inside a location, a version without '@' is answered with the reference that was meant."""
    done = edl("inspect", word, cwd=place / "run")
    assert (done.returncode, done.stderr.splitlines()[1]) == (10, f"  did you mean @{word}?")
    assert edl("inspect", f"@{word}", cwd=place / "run").returncode == 0


def test_the_second_reference_of_diff(place: Path) -> None:
    """`diff A@1 @2` compares two versions of A, whatever the current directory is; A alone is its newest."""
    for first in ("run@1000", "run"):
        found = document("diff", place / first, "@1010")
        assert (found["a"], found["b"]) == (f"{place}/run@{1000 if '@' in first else 1090}", f"{place}/run@1010")


def test_list_of_a_version_and_above(place: Path) -> None:
    """`list` lists the version whose directory it is given; --recursive lists all locations below; above is a hint."""
    whole = document("list", place / "run")["locations"][0]
    one = document("list", place / "run/version_1000")["locations"][0]
    assert one == {**whole, "versions": whole["versions"][:1]}
    assert "latest" not in edl("list", place / "run/version_1000").stdout
    found = document("list", place, "--recursive")["locations"]
    names = [str(Path(each["location"]).relative_to(place)) for each in found]
    assert names == ["run", "runs/a", "runs/b"]
    assert [len(each["versions"]) for each in found] == [10, 1, 1]
    above = edl("list", place / "runs")
    assert (above.returncode, "below" in above.stderr, "crashes" in above.stderr) == (10, True, False)
    pruned = edl("prune", place / "runs", "--keep", "1")
    assert (pruned.returncode, "below" in pruned.stderr) == (10, True)


def test_locations_below(tmp_path: Path) -> None:
    """Hidden directories, links and the directories of versions are not gone into; `depth` limits how far."""
    for name in ("a/version-1", "a/b/version-1", ".hidden/version-1", "a/version-1/version-2"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [each.url.removeprefix(str(tmp_path)) for each in locations_below(Location(str(tmp_path)))]
    assert found == ["/a", "/a/b"]
    assert [each.url for each in locations_below(Location(str(tmp_path)), depth=1)] == [f"{tmp_path}/a"]


@pytest.mark.parametrize(
    ("variable", "value", "line", "message"),
    [
        ("GRACE", "ten", "list run", "EDL_CKPT_GRACE: 'ten' is not a duration"),
        ("KEEP", "x", "prune run", "EDL_CKPT_KEEP: 'x' is not a whole number"),
        ("WORKERS", "0", "verify run", "EDL_CKPT_WORKERS: must be at least 1, got 0"),
        ("MAX_MEMORY", "1X", "reshard run --ps 2", "EDL_CKPT_MAX_MEMORY: '1X' is not a size"),
        ("MODE", "up", "list run --best f1", "EDL_CKPT_MODE: expected max or min, got 'up'"),
        ("QUIET", "maybe", "list run", "EDL_CKPT_QUIET: 'maybe' is not true or false"),
        ("STORAGE_OPTION", "x", "list run", "EDL_CKPT_STORAGE_OPTION expects KEY=VALUE"),
        ("DIR", "/nowhere", "list", "/nowhere: no such file or directory\n  EDL_CKPT_DIR names it"),
    ],
)
def test_values_of_the_environment(variable: str, value: str, line: str, message: str, place: Path) -> None:
    """A wrong value in the environment is answered with the name of its variable."""
    done = edl(*line.split(), cwd=place, **{f"EDL_CKPT_{variable}": value})
    assert done.stderr.startswith(f"error: {message}")
    assert f"EDL_CKPT_{variable}" in done.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('# night\ngrace = "ten"', "line 2: grace: 'ten' is not a duration"),
        ('[prune]\nkeep = 3\nmax-size = "1X"', "line 3: max-size: '1X' is not a size"),
        ("prune.keep = 3\nprune.worker = 4", "line 2: the command 'prune' has no option 'worker'"),
        ("kep = 1", "line 1: no command has an option 'kep'\n  did you mean keep?"),
        ("\n[prune]\nkeep-tag = [\n'a',\n1]", "line 3: keep-tag must be a list of strings"),
        ("[checkpoint_storage]\ntype = 's3'\nbuckt = 'x'", "line 3: checkpoint_storage: no key 'buckt'"),
        ("[checkpoint_storage]\ntype = 's4'", "line 2: checkpoint_storage: type must be shared_fs, "),
        ("\n[checkpoint_storage]\ntype = 's3'", "line 2: checkpoint_storage: bucket is missing"),
        ("[checkpoint_storage.x]\ntype = 'directory'\ncontainer_path = 3", 'line 3: checkpoint_storage."x": '),
    ],
)
def test_lines_of_a_file(text: str, words: str, place: Path, tmp_path: Path) -> None:
    """A wrong key or value in a configuration file is answered with the line where it stands."""
    (tmp_path / "night.toml").write_text(text)
    done = edl("prune", "run", "--config", tmp_path / "night.toml", "--dry-run", cwd=place)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {tmp_path}/night.toml, {words}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("wait run --mode max", "--mode can only be used with --best"),
        ("prune --experiment runs --save-trial-best 2", "--save-trial-best can only be used with --policy determined"),
    ],
)
def test_options_without_effect(line: str, message: str, place: Path) -> None:
    """An option that would have no effect is refused; the same in the environment is not."""
    done = edl(*line.split(), cwd=place)
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")
    assert edl("wait", "run", cwd=place, EDL_CKPT_MODE="max").returncode == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prune --apply plan.json --plan-out other.json", "--apply and --plan-out together need --yes"),
        ("export run x.toml --map-template --dry-run", "--map-template cannot be used with --dry-run,"),
        ("export run x.toml --map-template --table t", "--map-template cannot be used with --dry-run,"),
        ("list run --jsonl --format {ref}", "--format and -0 cannot be used with --json, --jsonl or --csv"),
        ("list run --prometheus -0", "--prometheus cannot be used with"),
        ("demo memory://x/y", "expected a directory, got 'memory://x/y'"),
        ("demo -- -x", "expected a directory, got '-x'"),
        ("help prune --json", "help has no document to print"),
        ("metrics mode run auc max min", "too many words"),
        (f"reshard run@1000 --ps 2 --output {'b' * 200}@3", f"try: --output {'b' * 200}\n"),
    ],
)
def test_refused_before_anything_is_done(
    line: str, message: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that contradict each other, and values that stand for something else, are refused with 2."""
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit) as end:
        run(line.split())
    assert end.value.code == 2
    assert message in capsys.readouterr().err
    assert not Path("x.toml").exists()


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (UnavailableError("the server answers 503"), 13, "  run the same copy again to resume\n"),
        (NoSpaceError("no space left", hint="free some"), 14, "  free some; run the same copy again to resume\n"),
        (KeyboardInterrupt(), 130, "interrupted; run the same copy again to resume\n"),
        (SystemExit(143), 143, "terminated; run the same copy again to resume\n"),
    ],
)
def test_an_interrupted_copy_says_how_to_go_on(
    failure: BaseException,
    code: int,
    words: str,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A copy that ends half-way, by a failure or a signal, says that the same copy resumes."""

    def fail(*_: object, **__: object) -> None:
        raise failure

    monkeypatch.setattr("edl_ckpt.core.operations.copy.execute.execute_copy", fail)
    with pytest.raises(SystemExit) as end:
        run(["copy", f"{place}/run@1000", str(tmp_path / "to")])
    assert (end.value.code, capsys.readouterr().err.endswith(words)) == (code, True)


def test_hints_of_the_library(place: Path, tmp_path: Path) -> None:
    """In Python, the hint is a note below the message; a value of a wrong type is a UsageError that names it."""
    with open_checkpoint(f"{place}/run@1000") as checkpoint:
        with pytest.raises(NameNotFoundError) as unknown:
            checkpoint["dense/kernel"]
        assert unknown.value.__notes__ == ["did you mean dense/kernel:0?"]
        with pytest.raises(UsageError, match="batch_rows must be a whole number, got '5'"):
            checkpoint.table("user", batch_rows="5")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="variables must be a mapping"):
        save_checkpoint(tmp_path, 1, 1, variables=[1], tables={})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="callback must be a function, got 5"):
        Progress(5)  # type: ignore[arg-type]


def test_watch_and_list_have_one_word(tmp_path: Path) -> None:
    """A version that lacks a shard has the same state in `watch` as in `list`."""
    from edl_ckpt.core.operations.follow.observe import Limits, standing
    from edl_ckpt.core.operations.follow.watch import watch_steps

    shutil.copytree(GOLDEN / "current/ps4", tmp_path / "run")
    shards = sorted((tmp_path / "run").glob("*/*"))
    shards.pop().unlink()
    for path in (*shards, shards[0].parent):
        os.utime(path, (1, 1))
    listed = document("list", tmp_path / "run")["locations"][0]["versions"]
    look = next(iter(watch_steps(Location(str(tmp_path / "run")), timeout_seconds=0, limits=Limits(None))))
    states = [standing(seen, look.moment.tick, Limits(None)) for seen in look.moment.seen.values()]
    assert states == [version["state"] for version in listed] == ["incomplete"]
