"""`edl-ckpt watch` shows what happens at a location.

It can run a command for each event, without a shell unless asked, and never longer than this process.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

from edl_ckpt.cli.manual.marks import LISTS, declared
from edl_ckpt.cli.options.common import Interval, Place, StallAfter, flag, option
from edl_ckpt.cli.options.references import followed_location
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_limit
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.words import counted, meant

if TYPE_CHECKING:
    from edl_ckpt.core.operations.follow.observe import EventKind, WatchEvent

_END_SECONDS: Final = 5.0


@declared("watch run", 'watch run --on complete --exec "python eval.py"', exits=LISTS, c1="a command of --exec failed")
def watch_command(
    out: Output,
    location: Place = None,
    on: Annotated[
        list[str] | None, option("EVENT,EVENT", "Report only these events, such as complete,corrupt; may be repeated.")
    ] = None,
    execute: Annotated[
        str | None, option("CMD", "Run CMD for each event, with EDL_CKPT_REF in its environment.", "--exec")
    ] = None,
    shell: Annotated[bool, flag("Run CMD of --exec in a shell (sh -c).")] = False,
    after: Annotated[int | None, option("V", "Also report versions above V that are there already.", least=-1)] = None,
    timeout: Annotated[str, option("DURATION|none", "End after this time; 0 checks once, `none` never ends.")] = "none",
    stall_after: StallAfter = "10m",
    interval: Interval = None,
) -> None:
    """Show what happens at a location, live.

    On a terminal it is a live view; otherwise it prints a line of JSON for each event. The command runs until it is
    interrupted. With --exec it prints events as lines on a terminal too.
    """
    from edl_ckpt.cli.render import follow as render
    from edl_ckpt.core.operations.follow.observe import Limits
    from edl_ckpt.core.operations.follow.watch import watch_steps

    where, kinds = followed_location(out, location), _kinds(on)
    if execute is None and shell:
        raise UsageError("--shell can only be used with --exec")
    hook = None if execute is None else Hook(execute, shell=shell)
    limits = Limits(parse_limit(stall_after) or None)
    with render.view(out, where, limits, lines=hook is not None) as view:
        looks = watch_steps(
            where,
            after=after,
            interval_seconds=None if interval is None else parse_limit(interval),
            timeout_seconds=parse_limit(timeout),
            limits=limits,
            reporter=view,
        )
        for look in looks:
            events = [event for event in look.events if event.kind in kinds]
            view.show(look, events)
            for event in events:
                if hook is not None and (fault := hook.run(event)):
                    out.warn(f"{event.kind} {event.ref}: {fault}")
    if hook is not None and hook.failed:
        raise EdlCkptError(f"{hook.failed} of {counted(hook.runs, 'command')} failed")


def _kinds(texts: list[str] | None) -> frozenset[EventKind]:
    """Return the events that --on names, all of them without it."""
    from edl_ckpt.core.operations.follow.observe import EventKind

    known = {kind.value: kind for kind in EventKind}
    names = [name.strip() for text in texts or () for name in text.split(",")]
    for name in names:
        if name not in known:
            raise UsageError(f"--on: no event {name!r}", hint=meant(name, known) or f"events: {', '.join(known)}")
    return frozenset(known[name] for name in names or known)


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
    """Terminate a command with everything in its process group, and kill what does not end by it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
