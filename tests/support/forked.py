"""A part of a test in a child process that is killed on the way."""

from __future__ import annotations

import os
import sys
import traceback
import warnings
from collections.abc import Callable


def run_forked(action: Callable[[], object]) -> int:
    """Run an action in a forked child and return the child's exit code: 0 at its end, 1 when it raised.

    Whatever the action raises, the child never goes on as a second test process.
    """
    with warnings.catch_warnings(action="ignore"):  # of threads, which the child does not use
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 1
    try:
        action()
        code = 0
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
