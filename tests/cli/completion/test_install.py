"""`edl-ckpt completion install` puts the script where the shell looks, and says so."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from edl_ckpt.cli.commands.completion_ import SCRIPTS
from program import edl as run_program
from program import inside

WHERE = {
    "bash": "share/bash-completion/completions/edl-ckpt",
    "zsh": "home/.zfunc/_edl-ckpt",
    "fish": "config/fish/completions/edl-ckpt.fish",
}


def edl(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the program with the user's own directories."""
    return run_program(*words, XDG_CONFIG_HOME=os.environ["XDG_CONFIG_HOME"])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and the directories that variables name, none of which is there yet."""
    for variable, name in (("HOME", "home"), ("XDG_DATA_HOME", "share"), ("XDG_CONFIG_HOME", "config")):
        monkeypatch.setenv(variable, str(tmp_path / name))
    return tmp_path


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_install(shell: str, home: Path) -> None:
    """The file is the script, its path is the first thing said, and a second call changes nothing."""
    file = home / WHERE[shell]
    first = edl("completion", "install", "--shell", shell)
    assert (first.returncode, first.stdout.splitlines()[0]) == (0, f"{file}  written")
    assert first.stdout.splitlines()[1].startswith(f"open a new {shell}")
    assert file.read_text() == SCRIPTS[shell].read_text()
    before = file.stat()
    found = json.loads(edl("completion", "install", "--shell", shell, "--json").stdout)
    assert (found["changed"], found["place"], found["shell"]) == (False, str(file), shell)
    assert file.stat() == before


def test_no_home(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a home nothing is written into the current directory."""
    monkeypatch.chdir(home)
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setattr(os.path, "expanduser", str)
    assert inside(capsys, "completion", "install", "--shell", "bash", code=2)["message"] == "no home directory is known"
    assert not list(home.iterdir())


def test_an_older_script_is_replaced_and_another_file_is_not(home: Path) -> None:
    """A script of another version goes; a file that is something else stays, and so does what is no file."""
    file = home / WHERE["bash"]
    file.parent.mkdir(parents=True)
    file.write_text("# Completion of edl-ckpt in bash.\nold\n")
    assert edl("completion", "install", "--shell", "bash").returncode == 0
    assert file.read_text() == SCRIPTS["bash"].read_text()
    file.write_text("alias edl=edl-ckpt\n" * 9)
    done = edl("completion", "install", "--shell", "bash")
    assert (done.returncode, done.stderr) == (16, f"error: {file}: exists, and is not a script of edl-ckpt\n")
    assert file.read_text() == "alias edl=edl-ckpt\n" * 9
    file.unlink()
    file.mkdir()
    assert edl("completion", "install", "--shell", "bash").returncode in {2, 10, 16}
    (home / "config").write_text("a file in the way")
    assert edl("completion", "install", "--shell", "fish").returncode not in {0, 70}


def test_the_shell_in_use(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --shell it is the one that $SHELL names; one that has no script is an error."""
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    done = edl("completion", "install")
    assert (done.returncode, "no completion for 'tcsh'" in done.stderr) == (2, True)
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert edl("completion", "install").stdout.startswith(f"{home / WHERE['fish']}  written")
    assert edl("completion", "zsh", "--shell", "zsh").returncode == 2


def test_bash_loads_it(home: Path) -> None:
    """A bash whose completion is bash-completion's finds the script where it was written."""
    library = "/usr/share/bash-completion/bash_completion"
    if not shutil.which("bash") or not os.path.exists(library):
        pytest.skip("bash-completion is not installed")
    edl("completion", "install", "--shell", "bash")
    words = f"source {library}; __load_completion edl-ckpt 2> /dev/null || _comp_load edl-ckpt; complete -p edl-ckpt"
    done = subprocess.run(["bash", "--norc", "-c", words], capture_output=True, text=True, check=True, timeout=60)
    assert "-F _edl_ckpt edl-ckpt" in done.stdout
