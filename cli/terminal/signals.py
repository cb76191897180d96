"""Signals: those that end a command, after it has cleaned up, and those that ask it where it is."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Final

from edl_ckpt.core.base.interruption import COMMIT, keeps

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command: 128 and their number is its exit code."""
ASKING: Final = tuple(getattr(signal, name) for name in ("SIGUSR1", "SIGINFO") if hasattr(signal, name))
"""The signals that ask a command how far it is. SIGINFO is what Ctrl-T sends on BSD and macOS; Linux has none."""


def handle_signals() -> None:
    """Clean up when a signal ends the program, and answer those that ask; ignored ones stay ignored.

    A shell ignores SIGINT for background jobs, and `nohup` SIGHUP.
    """
    COMMIT.forget()
    for number in ENDING:
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    for asking in ASKING:
        if signal.getsignal(asking) is not signal.SIG_IGN:
            signal.signal(asking, _answer)


def _end(number: int, _frame: FrameType | None) -> None:
    """End the program; on the way out, commands remove their staged files.

    It ends a moment later where a lock would stay taken. After the commit of a command it changes nothing: the command
    runs to its end. A second signal of any kind kills it at once; `recover` then cleans up.
    """
    for each in ENDING:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, signal.SIG_DFL)
    if number == signal.SIGINT and (progress := sys.modules.get("edl_ckpt.cli.terminal.progress")):
        _write(progress.stopping())
    error = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
    if not keeps(error):
        raise error


def _answer(_number: int, _frame: FrameType | None) -> None:
    """Print where the command is."""
    from edl_ckpt.cli.terminal.progress import where

    _write(where())


def _write(text: str) -> None:
    """Print text past the buffer of stderr, which a signal may have interrupted."""
    with suppress(OSError):
        os.write(2, text.encode("utf-8", "backslashreplace"))
