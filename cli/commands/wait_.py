"""`edl-ckpt wait` blocks until a location has a version."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import LISTS, declared
from edl_ckpt.cli.options.common import Interval, Mode, Place, StallAfter, flag, option
from edl_ckpt.cli.options.no_versions import parent_error
from edl_ckpt.cli.options.references import followed_location
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_limit
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.words import meant

if TYPE_CHECKING:
    from edl_ckpt.core.operations.follow.wait import Unfinished
    from edl_ckpt.core.storage.location import Location


@declared(
    "wait run --version-ge 300 --timeout 2h",
    "wait s3://models/run --best auc --stall-after 45m",
    exits=LISTS,
    c0="the version is there",
    c3="time-out, or the location no longer changes",
)
def wait_command(
    out: Output,
    location: Place = None,
    version_ge: Annotated[int | None, option("V", "Wait for version V or a higher one.", least=0)] = None,
    complete: Annotated[bool, flag("Wait for a complete version that can be read: the default.", hidden=True)] = False,
    best: Annotated[
        str | None, option("METRIC", "Wait until a version has this metric, and print the best one.")
    ] = None,
    mode: Mode = None,
    verified: Annotated[bool, flag("Wait for a version whose every value was checked, by `verify --deep`.")] = False,
    timeout: Annotated[
        str, option("DURATION|none", "Give up after this time; 0 checks once, `none` waits forever.")
    ] = "30m",
    stall_after: StallAfter = "none",
    interval: Interval = None,
) -> None:
    """Wait for a version, and print its reference.

    It prints the newest complete version that can be read, and that is not known to be damaged, as soon as there is
    one. Exit code 3 means a time-out, or a
    location that no longer changes.
    """
    from edl_ckpt.cli.render import follow as render
    from edl_ckpt.core.operations.follow.wait import wait_for_version

    if mode is not None and best is None and "mode" not in out.defaulted:
        raise UsageError("--mode can only be used with --best")
    if complete and best is not None:
        raise UsageError("--complete cannot be used with --best: that version is complete in any case")
    where = followed_location(out, location)
    _warn_of_parent(out, where)
    result = wait_for_version(
        where,
        version_ge=version_ge,
        best=best,
        mode=mode,
        verified=verified,
        timeout_seconds=parse_limit(timeout),
        stall_seconds=parse_limit(stall_after) or None,
        interval_seconds=None if interval is None else parse_limit(interval),
        reporter=out,
    )
    out.warn(*(f"{v.ref} is passed over: {v.damage}" for v in result.passed_over))
    if out.json:
        out.print_json(render.wait_document(result))
    elif result.version is not None:
        ref = result.version.ref
        out.write((escaped(ref) if sys.stdout.isatty() else ref) + "\n")
    if result.version is None:
        absent = "" if best is None else _absent_metric(result.unfinished, best)
        out.say(f"{escaped(result.location.url)}: {escaped(result.why)}{absent}")
        raise SystemExit(3)


def _absent_metric(unfinished: Sequence[Unfinished], best: str) -> str:
    """Return that no unfinished version has a metric, and which one was perhaps meant; '' where one has it."""
    known: set[str] = set()
    for entry in unfinished:
        known.update(entry.version.metrics)
    if not unfinished or best in known:
        return ""
    hint = meant(best, known, "metrics")
    absent = f"; no version has a value of {best!r}"
    return f"{absent}; {hint}" if hint else absent


def _warn_of_parent(out: Output, where: Location) -> None:
    """Warn where versions are below, and none is here: it may still come. At a URL it takes requests to know."""
    from edl_ckpt.core.catalog import glance
    from edl_ckpt.core.catalog.listing import list_versions

    if where.local_path is None or glance.has_versions(where.local_path):  # the wait itself lists them
        return
    with suppress(EdlCkptError):  # the wait says why, or waits for the location
        parent = parent_error(list_versions(where, wait_seconds=0))
        if parent is not None:
            out.warn(f"{parent}; {parent.hint}")
