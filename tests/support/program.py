"""The program as a process of its own, as scripts run it, with the guard of ElasticDL's scan around each command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from documents import check_printed
from edl_ckpt.cli.catalogue import COMMANDS, function_of
from edl_ckpt.cli.manual.marks import exits_of
from fork_server import server
from scan_guard import scan_guard

_OUTER = [name for name in os.environ if name.startswith("COVERAGE_PROCESS")]
"""Set where coverage measures every process that tests start: not those that are forked."""

PROGRAM = [sys.executable, "-c", "from edl_ckpt.cli.app import main; main()"]


def edl(*arguments: str | Path, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a process of its own, its output no terminal.

    The process is forked from one that has imported everything, which is ten times as fast. It is a fresh one where
    coverage measures, and for a variable that Python reads at its start.
    """
    outer = {**os.environ, "XDG_CONFIG_HOME": "/nowhere", **env}
    with scan_guard(arguments, cwd):
        if not any(name.startswith(("PYTHON", "LC_", "LANG", "COVERAGE")) for name in (*env, *_OUTER)):
            done = server().run([*map(str, arguments)], cwd=cwd, env=outer, timeout=300)
        else:
            command = [*PROGRAM, *map(str, arguments)]
            done = subprocess.run(command, cwd=cwd, env=outer, capture_output=True, text=True, timeout=300, check=False)
    check_printed([*map(str, arguments)], done.stdout, done.stderr, done.returncode)
    _check_code(arguments, done.returncode)
    return done


def _check_code(arguments: tuple[str | Path, ...], code: int) -> None:
    """Fail when a command ends with a code that its help does not name; a signal that kills it gives none."""
    words = [*map(str, arguments[:2]), "", ""]
    command = next((name for name in (f"{words[0]} {words[1]}", words[0]) if name in COMMANDS), None)
    assert command is None or code < 0 or code in exits_of(function_of(command)), f"{command} ended with {code}"


def without_reader(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program with a pipe for stdout whose reader has gone away."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        with scan_guard(arguments, cwd):
            return subprocess.run(
                [*PROGRAM, *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"},
                stdout=writer,
                stderr=subprocess.PIPE,
                text=True,
                timeout=300,
                check=False,
            )
    finally:
        os.close(writer)


def document(*arguments: str | Path, code: int = 0) -> dict[str, Any]:
    """Run with --json and return the one document on stdout."""
    done = edl(*arguments, "--json")
    assert done.returncode == code, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def inside(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = 0) -> Any:
    """Run a command in this process with --json; return its document, or its last line on stderr when it failed.

    For what needs s3fs, whose import takes a second.
    """
    from edl_ckpt.cli import app

    capsys.readouterr()
    with scan_guard(arguments), pytest.raises(SystemExit) as end:
        app.run([*map(str, arguments), "--json"])
    printed = capsys.readouterr()
    assert (end.value.code or 0) == code, printed
    _check_code(arguments, code)
    assert "Traceback" not in printed.err
    check_printed([*map(str, arguments), "--json"], printed.out, printed.err, code)
    return json.loads(printed.out) if printed.out else json.loads(printed.err.splitlines()[-1])
