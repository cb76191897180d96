"""The program as a process: streams, signals and end. `--version` and `--help` import no typer, so they are fast."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from typing import NoReturn

from edl_ckpt.cli import __version__


def main(argv: list[str] | None = None) -> NoReturn:
    """Run the program with `argv`, by default the arguments of the process, and exit with the code of the command."""
    try:
        _main(sys.argv[1:] if argv is None else argv)
    except SystemExit as end:
        if argv is None and sys._getframe(1).f_back is None:  # noqa: SLF001 - no program runs around ours
            _leave(end.code)
        raise


def _leave(code: object) -> None:
    """End the process, as Python would, but leave its memory to the kernel: taking it apart costs 0.2 s.

    Return where Python must do it: for other codes than numbers, for threads that it waits for, and for a stdout that
    cannot be flushed. Not called where a profiler, a debugger or the like is around the program: it must have its turn.
    """
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    if not isinstance(code, int | None) or threads != [threading.main_thread()]:
        return
    atexit._run_exitfuncs()  # noqa: SLF001 - the only door to what others registered
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the caller has closed it
            stream.flush()
    except (OSError, ValueError):
        return
    os._exit((code or 0) & 0xFF)


def _main(arguments: list[str]) -> NoReturn:
    """Run the program and raise SystemExit with its exit code."""
    if (shell := os.environ.get("_EDL_CKPT_COMPLETE")) in {"bash", "zsh", "fish"}:
        from edl_ckpt.cli.completion.shells import answer

        answer(shell, arguments)
    if arguments in [["--version"], ["-V"]]:
        print(f"edl-ckpt {__version__}")
        raise SystemExit(0)
    _open_streams()
    from edl_ckpt.cli.terminal.secrets import hide_arguments
    from edl_ckpt.cli.terminal.signals import handle_signals

    hide_arguments(arguments)
    # Our own threads do the work. Threads of BLAS would only wait, and starting them costs 0.1 s.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # pyarrow's own pools keep 80 MiB more than the C library does.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    handle_signals()
    # The index of many names is many objects without a cycle, and each look for cycles goes over all of them.
    gc.set_threshold(100_000, 50, 50)
    try:
        run(arguments)
    except KeyboardInterrupt:  # no command has begun; in a command, `reported_errors` catches it
        raise SystemExit(130) from None
    except (OSError, MemoryError, RecursionError) as error:  # as above
        if isinstance(error, BrokenPipeError):
            raise SystemExit(141) from None
        from edl_ckpt.cli.options.config import error_exit
        from edl_ckpt.core.storage.faults import error_of_system

        raise SystemExit(error_exit(error_of_system(error), arguments)) from None


def _open_streams() -> None:
    """Open /dev/null for closed standard streams: else a file that we open later gets the number and our output."""
    for number, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
            stream = open(number, "r" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            stream.absent = True  # type: ignore[attr-defined]  # an export to stdout must not say that it was written
            setattr(sys, name, stream)


def run(arguments: list[str]) -> NoReturn:
    """Run one command, and raise SystemExit with its exit code."""
    if arguments in [["--help"], ["-h"]]:
        from edl_ckpt.cli.manual.front import front_page
        from edl_ckpt.cli.manual.terminal import drawn

        print(drawn(front_page()), flush=True)
        raise SystemExit(0)
    from edl_ckpt.cli.options.program import run

    run(arguments)
