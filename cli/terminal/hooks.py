"""A command of the user that runs for each event: without a shell unless asked, and never longer than this process."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.interruption import WHOLE

if TYPE_CHECKING:
    from edl_ckpt.core.operations.follow.observe import WatchEvent

_END_SECONDS: Final = 5.0


def variables(event: WatchEvent) -> dict[str, str]:
    """Return what the environment of the command says of an event; no option is set by one of these names."""
    return {
        "EDL_CKPT_EVENT": event.kind.value,
        "EDL_CKPT_REF": event.ref,
        "EDL_CKPT_LOCATION": event.version.location.url,
        "EDL_CKPT_NUMBER": str(event.version.version),
        "EDL_CKPT_PATH": event.version.path,
    }


class Hook:
    """Runs the command, one event after the other; its output goes to stderr, and its stdin is empty."""

    def __init__(self, text: str, *, shell: bool) -> None:
        """Take a command line; UsageError when there is no such program, before anything is watched."""
        self.runs = self.failed = 0
        try:
            self._words = ["/bin/sh", "-c", text] if shell else shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--exec {text!r}: {error}") from None
        if not self._words or not text.strip():
            raise UsageError("--exec: no command")
        if shutil.which(program := self._words[0]) is None:
            hint = "--shell runs the command in a shell, which knows more"
            raise UsageError(f"--exec: no program {program!r}", hint=hint)

    def run(self, event: WatchEvent) -> str:
        """Run the command for an event, and wait for its end; return why it failed, '' when it did not.

        When this process is interrupted or terminated, the command and all that it has started are too.
        """
        self.runs += 1
        try:
            code = self._wait(os.environ | variables(event))
        except OSError as error:
            code, why = 1, f"{self._words[0]} cannot be run: {error.strerror}"
        else:
            why = f"{self._words[0]} ended with {f'exit code {code}' if code >= 0 else f'signal {-code}'}"
        self.failed += code != 0
        return why if code else ""

    def _wait(self, environment: dict[str, str]) -> int:
        process: subprocess.Popen[bytes] | None = None
        try:
            with WHOLE:  # or there would be a process that nobody knows
                process = subprocess.Popen(
                    self._words, stdin=subprocess.DEVNULL, stdout=2, env=environment, process_group=0
                )
            return process.wait()
        except BaseException:
            if process is not None:
                _end(process)
            raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a command with everything in its process group, and kill it if it does not end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return
