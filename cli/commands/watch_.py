"""`edl-ckpt watch`: shows what happens at a location, and runs a command for each event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import LISTS, declared
from edl_ckpt.cli.options.common import Interval, Place, StallAfter, flag, followed_location, option
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import parse_limit
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.words import counted, meant

if TYPE_CHECKING:
    from edl_ckpt.core.operations.follow.observe import EventKind


@declared(
    "watch run", 'watch run --on complete --exec "python evaluate.py"', exits=LISTS, c1="a command of --exec failed"
)
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
    from edl_ckpt.cli.terminal.hooks import Hook
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
