"""`edl-ckpt list`: the versions of a location and their state, from listings alone."""

from __future__ import annotations

from typing import Annotated

import typer

from edl_ckpt.cli.options import Csv, Grace, Locations, Mode, default_location
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_duration


def list_command(
    out: Output,
    locations: Locations = None,
    sort: Annotated[str | None, typer.Option(metavar="METRIC", help="The best by a metric first.")] = None,
    best: Annotated[str | None, typer.Option(metavar="METRIC", help="Only the best by a metric.")] = None,
    tag: Annotated[list[str] | None, typer.Option(metavar="TAG", help="Only what has the tag.")] = None,
    mode: Mode = None,
    grace: Grace = "10m",
    csv: Csv = False,  # noqa: ARG001
) -> None:
    """List the versions of one or more locations, by number, with their metrics and tags. Opens no shard."""
    import time

    from edl_ckpt.cli import render_list
    from edl_ckpt.core.checkpoint.catalog import list_versions, narrowed

    seconds = parse_duration(grace)
    whole = [
        list_versions(location, grace_seconds=seconds, storage_options=out.storage_options)
        for location in locations or [default_location()]
    ]
    listings = [narrowed(listing, sort=sort, best=best, tags=tag or (), mode=mode) for listing in whole]
    out.show(
        lambda: render_list.document(listings),
        lambda: render_list.human(listings, time.time(), whole),
        lambda: render_list.rows(listings),
    )
    for listing in whole:
        for warning in render_list.warnings(listing):
            out.warn(warning)
