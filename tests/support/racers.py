"""Two commands at once, as real processes: children forked from one process that has imported everything.

    with Racers() as racers:
        codes = racers.run(["copy", ...], ["import", ...])

`save LOCATION VERSION PS_NUM` stands for `save_checkpoint`, which is no command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self


class Racers:
    """A process that forks commands; a context manager."""

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_CONFIG_HOME": "/nowhere"},
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)

    def run(self, *commands: list[str]) -> list[int]:
        """Start these commands at the same moment, wait for all, and return their exit codes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        settings = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        print(json.dumps({"commands": commands, "env": settings}), file=self.process.stdin, flush=True)
        codes: list[int] = json.loads(self.process.stdout.readline())
        return codes


def _serve() -> None:
    """Run what each line of stdin asks for."""
    import botocore.session  # noqa: F401 - imported once, for all children

    from edl_ckpt.cli.app import main
    from edl_ckpt.core.operations import copy, export, importing, reshard, save  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        gate, go = os.pipe()
        children: list[int] = []
        for command in request["commands"]:
            pid = os.fork()
            if pid == 0:
                os.environ.update(request["env"])
                os.close(go)
                os.read(gate, 1)  # at its end, when the gate opens
                _run(command, main)
            children.append(pid)
        os.close(gate)
        os.close(go)
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        print(json.dumps(codes), flush=True)


def _run(command: list[str], main: object) -> None:
    """Run one command in this child, and end it."""
    with open(os.devnull, "r+b") as nothing:
        for number in (0, 1, 2):
            os.dup2(nothing.fileno(), number)
    code = 1
    try:
        if command[0] == "save":
            _save(command[1:])
        else:
            main(command)  # type: ignore[operator]
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        os._exit(code)


def _save(arguments: list[str]) -> None:
    from edl_ckpt.core.base.errors import EdlCkptError

    sys.path.insert(0, str(Path(__file__).parent))
    from checkpoints import save_small

    try:
        save_small(arguments[0], int(arguments[1]), ps_num=int(arguments[2]))
    except EdlCkptError as error:
        raise SystemExit(error.exit_code) from error


if __name__ == "__main__":
    _serve()
