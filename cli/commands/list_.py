"""`edl-ckpt list`: the versions of a location and their state, from listings alone."""

from __future__ import annotations

from edl_ckpt.cli.options import Csv, Grace, Locations, default_location
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_duration


def list_command(out: Output, locations: Locations = None, grace: Grace = "10m", csv: Csv = False) -> None:  # noqa: ARG001
    """List the versions of one or more locations, by number. Opens no shard."""
    import time

    from edl_ckpt.cli import render_list
    from edl_ckpt.core.catalog import list_versions

    seconds = parse_duration(grace)
    listings = [
        list_versions(location, grace_seconds=seconds, storage_options=out.storage_options)
        for location in locations or [default_location()]
    ]
    out.show(
        lambda: render_list.document(listings),
        lambda: render_list.human(listings, time.time()),
        lambda: render_list.rows(listings),
    )
    for listing in listings:
        for warning in render_list.warnings(listing):
            out.warn(warning)
