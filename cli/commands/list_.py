"""`edl-ckpt list`: the versions of a location and their state. Their names are enough; no shard is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from edl_ckpt.cli.help import examples
from edl_ckpt.cli.options import Csv, Grace, Mode, Places
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_duration
from edl_ckpt.core.errors import EdlCkptError

if TYPE_CHECKING:
    from edl_ckpt.core.format.model import Listing


@examples(
    "list run",
    "list runs/a runs/b --best auc",
)
def list_command(
    out: Output,
    locations: Places = None,
    sort: Annotated[str | None, typer.Option(metavar="METRIC", help="Sort by this metric, the best first.")] = None,
    best: Annotated[
        str | None, typer.Option(metavar="METRIC", help="Show only the best version by this metric.")
    ] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Show only versions with this tag; may be repeated.")
    ] = None,
    mode: Mode = None,
    grace: Grace = "10m",
    csv: Csv = False,  # noqa: ARG001
) -> None:
    """List versions, with their metrics and tags.

    The versions are sorted by number. The command opens no shard. It ends with exit code 3 when a version is there and
    cannot be read now.
    """
    import time

    from edl_ckpt.cli import render_list
    from edl_ckpt.core.checkpoint.catalog import narrowed

    whole, failed = _listings(out, locations or [""], parse_duration(grace))
    listings = [narrowed(listing, sort=sort, best=best, tags=tag or (), mode=mode) for listing in whole]
    out.show(
        lambda: render_list.document(listings),
        lambda: render_list.human(listings, time.time(), whole),
        lambda: render_list.rows(listings),
    )
    for listing in whole:
        for warning in render_list.warnings(listing):
            out.warn(warning)
    if failed:
        raise max(failed, key=lambda error: error.exit_code)
    if any(listing.unread for listing in whole):
        raise SystemExit(3)


def _listings(out: Output, locations: list[str], grace_seconds: float) -> tuple[list[Listing], list[EdlCkptError]]:
    """Return the listings, and of several locations the errors of those that cannot be listed."""
    from edl_ckpt.core.checkpoint.catalog import list_versions

    found: list[Listing] = []
    failed: list[EdlCkptError] = []
    for text in locations:
        try:
            found.append(list_versions(out.location(text), grace_seconds=grace_seconds))
        except EdlCkptError as error:
            if len(locations) == 1:
                raise
            failed.append(error)
            out.warn(str(error))
    return found, failed
