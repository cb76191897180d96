"""A part of a test in a child process, which may be killed on the way."""

from __future__ import annotations

import gc
import os
import sys
import traceback
import warnings
from collections.abc import Callable


def run_forked(action: Callable[[], object]) -> int:
    """Run an action in a forked child and return the child's exit code: 0 at its end, 1 when it raised."""
    return os.waitstatus_to_exitcode(os.waitpid(fork(action), 0)[1])


def fork(action: Callable[[], object]) -> int:
    """Begin an action in a forked child, and return its process id; it ends with 0, or with 1 when the action raised.

    Whatever the action raises, the child never goes on as a second test process.
    """
    with warnings.catch_warnings(action="ignore"):  # of threads, which the child does not use
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        gc.freeze()  # or each collection in the child would look through, and so copy, all that the tests have made
        action()
        code = 0
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
