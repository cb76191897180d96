"""What the program believes: files in the current directory, and secrets that people type."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from places import GOLDEN
from program import edl

SECRETS = ("AKIDEXAMPLE99", "very-secret-words", "session-token-words", "pass-word-words")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a directory with a location `run` in it, where commands are started."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize(
    "text",
    [
        'storage-option = ["endpoint_url=http://127.0.0.1:9"]',
        "force = true",
        "[prune]\nkeep = 1\nyes = true",
        "layout = 'elasticdl'",
        "json = true",
        "quiet = true",
    ],
)
def test_a_file_in_the_current_directory_is_somebody_elses(text: str, run: Path) -> None:
    """It sets nothing but looks and resources; a warning names what is ignored, and the command goes on."""
    plain = edl("inspect", "run", cwd=run.parent)  # which shows no age: that of `list` changes with the time
    (run.parent / "edl-ckpt.toml").write_text(text + "\n")
    done = edl("inspect", "run", cwd=run.parent)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    assert plain.stdout.startswith("run@20")
    assert (
        "ignored: a file in the current directory can only set max-memory, no-color, progress, workers" in done.stderr
    )


def test_looks_and_resources_from_the_current_directory(run: Path) -> None:
    """Workers and memory are taken from there, without a word."""
    (run.parent / "edl-ckpt.toml").write_text('workers = 1\nno_color = true\nmax-memory = "1KiB"\n')
    done = edl("verify", "run@latest", cwd=run.parent)
    assert (done.returncode, "edl-ckpt.toml" in done.stderr) == (0, False)
    done = edl("reshard", "run", "--ps", "3", "--dry-run", cwd=run.parent)
    assert done.returncode == 2
    assert "1KiB" in done.stderr or "memory" in done.stderr


@pytest.mark.parametrize("text", ["jsn = 1", "not toml", "a=" + "[" * 100_000, "workers = 'x'", "a = " + "9" * 5000])
def test_a_damaged_file_in_the_current_directory_stops_nothing(text: str, run: Path) -> None:
    """What cannot be used there is a warning, never an error or a traceback."""
    (run.parent / "edl-ckpt.toml").write_text(text)
    done = edl("list", "run", cwd=run.parent)
    assert done.returncode == 0
    assert re.match(r"warning: edl-ckpt\.toml(, line 1)?: ", done.stderr)
    assert done.stderr.count("\n") == 1
    explicit = edl("list", "run", "--config", "edl-ckpt.toml", cwd=run.parent)
    assert (explicit.returncode, explicit.stdout) == (2, "")
    assert re.match(r"error: edl-ckpt\.toml(, line 1)?: ", explicit.stderr)


def test_a_named_file_stands_for_all_others(run: Path) -> None:
    """--config FILE may set everything that a file can, and the user's own file is not read beside it."""
    own = run.parent / "home" / "edl-ckpt"
    own.mkdir(parents=True)
    (own / "edl-ckpt.toml").write_text("json = true\n")
    home = str(run.parent / "home")
    assert json.loads(edl("list", run, XDG_CONFIG_HOME=home).stdout)["locations"]
    (run.parent / "night.toml").write_text("csv = true\n")
    named = edl("list", run, "--config", run.parent / "night.toml", XDG_CONFIG_HOME=home)
    assert named.stdout.startswith("location,")
    missing = edl("list", run, "--config", "nowhere.toml", XDG_CONFIG_HOME=home)
    assert (missing.returncode, missing.stderr) == (2, "error: nowhere.toml: no such configuration file\n")


@pytest.mark.parametrize(
    "url",
    [
        "s3://AKIDEXAMPLE99:very-secret-words@bucket",
        "s3://AKIDEXAMPLE99:very/secret-words@bucket/run@100",
        "s3://AKIDEXAMPLE99:very-secret-words@bucket/run",
        "ftp://user:pass-word-words@host/run",
        "simplecache::s3://AKIDEXAMPLE99:very-secret-words@bucket/run",
    ],
)
def test_a_password_in_a_url_is_refused(url: str) -> None:
    """Code 2, and the URL is not repeated; from EDL_CKPT_DIR and from the library too."""
    from edl_ckpt.core.base.errors import UsageError
    from edl_ckpt.core.storage import Location

    for done in (
        edl("list", url),
        edl("copy", "run", url, "--json"),
        edl("inspect", "one", "two", url),
        edl("list", EDL_CKPT_DIR=url),
    ):
        assert done.returncode == 2
        assert "a URL must not contain a password" in done.stderr
        assert not any(word in done.stdout + done.stderr for word in ("words", "AKID", "bucket"))
    with pytest.raises(UsageError, match="must not contain") as raised:
        Location(url)
    assert "words" not in f"{raised.value!r}"


def test_hosts_ports_and_names_are_no_passwords() -> None:
    """A port, an ARN, a version and an '@' in a path are accepted."""
    from edl_ckpt.core.storage import Location

    for url in ("ftp://host:21/run", "s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "s3://b/a:b@c", "run:a@b", "s3://b"):
        assert Location(url).url == url


def test_a_secret_on_the_command_line_is_warned_of(run: Path) -> None:
    """`ps` shows it to everybody, so the warning names the environment; from there it is silent."""
    flag = ("--storage-option", "secret=very-secret-words")
    done = edl("list", run, *flag)
    assert done.returncode == 0
    assert "can read --storage-option secret" in done.stderr
    assert "set AWS_SECRET_ACCESS_KEY instead" in done.stderr
    assert "words" not in done.stderr
    done = edl("list", run, "--storage-option", "password=pass-word-words")
    assert "set EDL_CKPT_STORAGE_OPTION instead" in done.stderr
    assert edl("list", run, EDL_CKPT_STORAGE_OPTION="secret=very-secret-words").stderr == ""


def test_no_output_has_a_secret(run: Path) -> None:
    """Usage errors that other libraries print, tracebacks and plans contain no secret."""
    options = ("key=AKIDEXAMPLE99", "secret=very-secret-words", "token=session-token-words", "password=pass-word-words")
    flags = [word for option in options for word in ("--storage-option", option)]
    plan = run.parent / "plan.json"
    results = [
        edl("inspect", run, "extra", *flags),
        edl("inspect", run, "--storage-option", *options),  # forgotten flags: typer repeats the words
        edl("prune", run, "--keep", "1", "--plan-out", plan, *flags),
        edl("list", "nowhere", *flags, "--json"),
        edl("get", run, "--nosuch", *flags),
        edl("list", run, EDL_CKPT_STORAGE_OPTION=" ".join(options)),
    ]
    results += [edl(*command, *flags) for command in (["verify", run], ["tag", "add", f"{run}@20", "x"])]
    printed = "".join(done.stdout + done.stderr for done in results) + plan.read_text()
    state = [path.read_bytes() for path in run.rglob("*.json")]
    assert state
    for secret in SECRETS:
        assert secret not in printed
        assert not any(secret.encode() in data for data in state)
    assert "***" in printed


def test_a_traceback_has_no_secret(run: Path, tmp_path: Path) -> None:
    """The report of a bug hides secrets that are in the message of the exception."""
    import subprocess
    import sys

    code = f"""
import sys
from edl_ckpt.cli import app
from edl_ckpt.core.catalog import listing as catalog
def list_versions(location, **_):
    raise ZeroDivisionError(f"got {{location.options}}")
catalog.list_versions = list_versions
app.main(["list", {str(run)!r}, "--json", "--storage-option", "secret=very-secret-words"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 70, done.stderr
    assert "ZeroDivisionError" in done.stderr
    assert "***" in done.stderr
    assert "very-secret-words" not in done.stdout + done.stderr
