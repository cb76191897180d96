"""Long output in the user's pager, as git has it: only on a terminal, and never in a CI job."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress


def shown_in_pager(text: str) -> bool:
    """Show text in $PAGER, by default less; False where the window has room for it, or where there is no pager."""
    if not sys.stdout.isatty() or os.environ.get("CI") or os.environ.get("TERM", "dumb") == "dumb":
        return False
    with suppress(OSError, ValueError):  # no such program, or no such words
        words = shlex.split(os.environ.get("PAGER", "less -R -F"))
        if not words or words == ["cat"] or text.count("\n") < os.get_terminal_size(sys.stdout.fileno()).lines:
            return False
        pager = subprocess.Popen(words, stdin=subprocess.PIPE, env={"LESS": "RF", **os.environ})
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
        try:
            pager.communicate(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        finally:
            signal.signal(signal.SIGINT, before)
        return True
    return False
