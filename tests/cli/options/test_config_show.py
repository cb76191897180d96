"""`config show`: every setting in force, and where it comes from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from checkpoints import save_small
from program import document, edl

TOML = """\
workers = 2

[prune]
keep = 3

[tag.add]
lock-wait = "1m"

[checkpoint_storage]
type = "s3"
bucket = "models"
access_key = "AKIATOPSECRET"
secret_key = "verysecretkey"

[checkpoint_storage.cold]
type = "directory"
container_path = "/cold"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return a configuration file with settings of all kinds."""
    path = tmp_path / "night.toml"
    path.write_text(TOML)
    return path


def shown(*words: str | Path, code: int = 0, **env: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the settings of the JSON document by name and first command."""
    done = edl("config", "show", *words, "--json", cwd=None, **env)
    assert done.returncode == code, done.stderr
    found = json.loads(done.stdout)["settings"]
    return {(each["name"], each["commands"][0] if each["commands"] else ""): each for each in found}


def test_origins(config: Path) -> None:
    """Each setting names its variable, or the file and the line; the environment wins over the file."""
    found = shown("--config", config, EDL_CKPT_GRACE="2m", EDL_CKPT_KEEP="7")
    at = {key: (each["value"], each["source"], each["origin"]) for key, each in found.items()}
    assert at["workers", ""] == (2, "file", f"{config}, line 1")
    assert at["grace", ""] == ("2m", "environment", "EDL_CKPT_GRACE")
    assert at["keep", ""] == (7, "environment", "EDL_CKPT_KEEP")
    assert at["lock-wait", "tag add"] == ("1m", "file", f"{config}, line 7")
    assert at["progress", ""] == ("auto", "default", None)
    assert at["location", ""] == ("s3://models", "file", f"{config}, line 9")
    assert at["checkpoint_storage.cold", ""] == ("/cold", "file", f"{config}, line 15")
    assert shown(EDL_CKPT_DIR="runs")["location", ""]["value"] == "runs"


def test_one_name_has_one_meaning(config: Path, tmp_path: Path) -> None:
    """EDL_CKPT_ROWS, and `rows` in a file, are a number of rows; `diff` has a switch of this name, and goes without."""
    save_small(tmp_path / "run", 1, 2)
    config.write_text("rows = 2\n")
    for name, value in (("EDL_CKPT_ROWS", "2"), ("EDL_CKPT_CONFIG", str(config))):
        assert edl("diff", tmp_path / "run@1", "@2", cwd=None, **{name: value}).returncode == 3
        ids = edl("ids", tmp_path / "run", "--table", "t", cwd=None, **{name: value})
        assert len(ids.stdout.splitlines()) == 2


def test_it_says_what_a_command_would_do(config: Path) -> None:
    """A value that a command would refuse is named with its variable (3), and what a command takes is what is shown."""
    done = edl("config", "show", EDL_CKPT_GRACE="soon", EDL_CKPT_KEEP="x", EDL_CKPT_LOKWAIT="1m", EDL_CKPT_PURGE="1")
    assert done.returncode == 3
    assert "EDL_CKPT_GRACE: 'soon' is not a duration" in done.stdout
    assert "EDL_CKPT_KEEP: 'x' is not a whole number" in done.stdout
    assert done.stderr.splitlines() == [
        "warning: EDL_CKPT_LOKWAIT sets nothing: no option has this variable; did you mean EDL_CKPT_LOCK_WAIT?",
        "warning: EDL_CKPT_PURGE sets nothing: this option can only be given on the command line",
    ]
    config.write_text("[prune]\nkeeep = 3\n")
    wrong = edl("config", "show", "--config", config)
    assert (wrong.returncode, wrong.stderr.splitlines()) == (
        2,
        [f"error: {config}, line 2: the command 'prune' has no option 'keeep'", "  did you mean keep?"],
    )


def test_secrets_are_hidden(config: Path) -> None:
    """No key, token or password is shown, whatever it comes from."""
    for form in ((), ("--json",), ("--csv",), ("--origin", "--all")):
        done = edl(
            "config",
            "show",
            "--config",
            config,
            *form,
            EDL_CKPT_STORAGE_OPTION="token=abcdefgh",
        )
        assert done.returncode == 0
        assert not [word for word in ("AKIA", "verysecret", "abcdefgh") if word in done.stdout + done.stderr]


def test_a_password_in_a_url_is_hidden() -> None:
    """A location with a password is one that every command refuses; it is not repeated."""
    done = edl("config", "show", EDL_CKPT_DIR="ftp://me:hunter22@host/run")
    assert (done.returncode, "hunter22" in done.stdout + done.stderr) == (3, False)
    assert "EDL_CKPT_DIR: a URL must not contain a password" in done.stdout


def test_files(config: Path, tmp_path: Path) -> None:
    """The files that count are named; one in the current directory is limited, and its other keys are ignored."""
    (tmp_path / "edl-ckpt.toml").write_text("workers = 3\n[prune]\nkeep = 1\n")
    done = edl("config", "show", cwd=tmp_path)
    assert done.stdout.splitlines()[0] == "edl-ckpt.toml  only how output looks and what a command may use"
    assert done.stderr.count("'keep' ignored") == 1
    assert document("config", "show", "--config", config)["files"] == [{"path": str(config), "trusted": True}]
    assert "no configuration file" in edl("config", "show", cwd=config.parent / "..").stdout
