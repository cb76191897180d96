"""The committed completion scripts are those that the program makes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from places import TOP

COMPLETIONS = TOP / "completions"
SHELLS = {"bash": "edl-ckpt.bash", "zsh": "_edl-ckpt", "fish": "edl-ckpt.fish"}


@pytest.mark.parametrize("shell", sorted(SHELLS))
def test_completions_are_fresh(shell: str) -> None:
    """Each script equals a fresh one; CONTRIBUTING says how to make them again."""
    done = subprocess.run(
        [sys.executable, "-c", "from edl_ckpt.cli.app import main; main([])"],
        env={**os.environ, "_EDL_CKPT_COMPLETE": f"source_{shell}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == (COMPLETIONS / SHELLS[shell]).read_text(encoding="utf-8")


def test_bash_completes() -> None:
    """bash, with the script loaded, completes a command's name."""
    if shutil.which("bash") is None:
        pytest.skip("no bash on this machine")
    if shutil.which("edl-ckpt") is None:
        pytest.skip("edl-ckpt is not on PATH")
    script = f"""
        source {COMPLETIONS / "edl-ckpt.bash"}
        COMP_WORDS=(edl-ckpt ins); COMP_CWORD=1
        _edl_ckpt_completion edl-ckpt; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "inspect"
