"""The program as a process of its own, as scripts run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROGRAM = [sys.executable, "-c", "from edl_ckpt.cli.app import main; main()"]


def edl(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a process of its own, its output no terminal."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "XDG_CONFIG_HOME": "/nowhere", **env},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def document(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run with --json and return the one document on stdout."""
    done = edl(*arguments, "--json")
    assert done.returncode == code, done.stderr
    held: dict[str, Any] = json.loads(done.stdout)
    return held
