"""`edl-ckpt list`: the versions of a location and their state. Their names are enough; no shard is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import LISTS, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import formats
from edl_ckpt.cli.options.no_versions import parent_error
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_duration
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.base.words import meant

if TYPE_CHECKING:
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.storage.location import Location


@declared(
    "list run", "list --experiment runs --metric auc", exits=LISTS, c3="a version is there, and cannot be read now"
)
def list_command(
    out: Output,
    locations: o.Places = None,
    sort: Annotated[str | None, o.option("METRIC", "Sort by this metric, the best first.")] = None,
    best: Annotated[str | None, o.option("METRIC", "Show only the best version by this metric.")] = None,
    tag: Annotated[list[str] | None, o.option("TAG", "Show only versions with this tag; may be repeated.")] = None,
    mode: o.Mode = None,
    recursive: Annotated[bool, o.flag("List the locations below each LOCATION too, at any depth.", "-r")] = False,
    experiment: o.Experiment = None,
    metric: Annotated[str | None, o.option("NAME", "With --experiment: compare the trials by this metric.")] = None,
    grace: o.Grace = "10m",
    template: Annotated[
        str | None, o.option("TEMPLATE", "Print a line for each version, as '{version} {state}'.", "--format")
    ] = None,
    null: Annotated[
        bool, o.flag("End references, or lines, with NUL, not with a new line.", "-0", hidden=True)
    ] = False,
    csv: o.Csv = False,  # noqa: ARG001
    jsonl: o.Jsonl = False,  # noqa: ARG001
    prometheus: o.Prometheus = False,
) -> None:
    """List versions, with their metrics and tags.

    The versions are sorted by number. The command opens no shard. It exits with 3 if an existing version cannot be read
    now. A LOCATION may be the directory of one version. -q prints references and nothing else. With --experiment the
    command shows a line for each trial, the best first.
    """
    import time

    formats.check_prometheus(out, prometheus=prometheus)
    out.template, out.paged = formats.template_of(out, template, null=null), not null
    tags = tag or []
    selects = bool(sort or best or tags)
    if prometheus and (experiment or selects or template or null):
        raise UsageError("--prometheus cannot be used with --experiment, --sort, --best, --tag, --format or -0")
    if experiment is not None:
        if locations or selects or recursive:
            raise UsageError("--experiment cannot be used with LOCATION, --sort, --best, --tag or --recursive")
        _show_experiment(out, experiment, metric, mode, parse_duration(grace))
        return
    if metric is not None and "metric" not in out.defaulted:
        raise UsageError("--metric can only be used with --experiment", hint="try: --sort METRIC or --best METRIC")

    from edl_ckpt.cli.render import listing as render_list
    from edl_ckpt.core.catalog.listing import narrowed

    found, failed = _listings(out, locations or [""], parse_duration(grace), every=prometheus, recursive=recursive)
    whole = [listing for listing, _ in found]
    if prometheus:
        _write_prometheus(out, whole, failed)
        return
    listings = [narrowed(_only(listing, path), sort=sort, best=best, tags=tags, mode=mode) for listing, path in found]
    out.show(
        lambda: render_list.document(listings),
        render_list.human(listings, time.time(), whole, every=out.shows_all(False), is_sorted=sort is not None),
        lambda: render_list.rows(listings),
        lambda: render_list.records(listings),
    )
    failed += _warn(out, whole, tags)
    _end(out, whole, failed)


def _only(listing: Listing, path: str) -> Listing:
    """Return a listing of the version with a path alone; of all versions for ''."""
    if not path:
        return listing
    return replace(listing, versions=tuple(version for version in listing.versions if version.path == path))


def _write_prometheus(out: Output, listings: list[Listing], failed: list[EdlCkptError]) -> None:
    """Print the metrics of listings, and end as the command does."""
    from edl_ckpt.cli.render.prometheus import of_listings

    out.write(of_listings(listings, [error.path or "" for error in failed]))
    _end(out, listings, failed)


def _end(out: Output, listings: list[Listing], failed: list[EdlCkptError]) -> None:
    """Raise the worst error, or exit with 3 when a version is there and cannot be read now."""
    if failed:
        raise max(failed, key=lambda error: error.exit_code)
    out.conclude(ok=not any(listing.unread for listing in listings))


def _show_experiment(out: Output, place: str, metric: str | None, mode: o.Mode, grace_seconds: float) -> None:
    """Show the trials in a directory; exit with 3 when one of them is there and cannot be read now."""
    from edl_ckpt.cli.render import experiment as render
    from edl_ckpt.cli.render import listing as render_list
    from edl_ckpt.core.catalog.experiment import list_experiment

    found = list_experiment(out.location(place), metric=metric, mode=mode, grace_seconds=grace_seconds)
    out.show(
        lambda: render.document(found),
        render.human(found),
        lambda: render.rows(found),
        lambda: render.records(found),
    )
    for trial in found.trials:
        if trial.fault is not None:
            out.warn(str(trial.fault))
        out.warn(*render_list.warnings(trial.listing))
    out.conclude(ok=not found.unread)


def _warn(out: Output, listings: Sequence[Listing], tags: Sequence[str]) -> list[EdlCkptError]:
    """Print the warnings about listings; return the error of each without a version that is above some."""
    from edl_ckpt.cli.render import listing as render_list

    parents: list[EdlCkptError] = []

    for listing in listings:
        known = {tag for version in listing.versions for tag in version.tags}
        for tag in tags:
            if tag not in known and (meaning := meant(tag, known, "tags")):
                out.warn(f"{listing.location.url}: no version has the tag {tag!r}; {meaning}")
        parent = parent_error(listing)
        if parent is None:
            out.warn(*render_list.warnings(listing))
        else:
            parents.append(parent)
    for error in parents[:-1]:
        out.warn(f"{error}; {error.hint}")
    return parents


def _listings(
    out: Output, locations: list[str], grace_seconds: float, *, every: bool, recursive: bool
) -> tuple[list[tuple[Listing, str]], list[EdlCkptError]]:
    """Return the listings, as `_listing` does, and of several locations, or with `every`, the errors of the others."""
    from edl_ckpt.core.catalog.experiment import locations_below

    found: list[tuple[Listing, str]] = []
    failed: list[EdlCkptError] = []
    for text in locations:
        try:
            where = out.location(text)
            below = tuple(locations_below(where, reporter=out)) if recursive else ()
            found += [_listing(place, grace_seconds) for place in below or (where,)]
        except EdlCkptError as error:
            if len(locations) == 1 and not every:
                raise
            failed.append(error)
            out.warn(str(error))
    return found, failed


def _listing(where: Location, grace_seconds: float) -> tuple[Listing, str]:
    """Return the listing of a location, and ''; of the directory of a version, that of its location, and its path."""
    from edl_ckpt.core.base.progress import SILENT
    from edl_ckpt.core.catalog.files import directory_alone
    from edl_ckpt.core.catalog.listing import list_versions, resolve
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.model.versions import CheckpointRef
    from edl_ckpt.core.sources.registry import version_named

    listing = list_versions(where, grace_seconds=grace_seconds)
    if listing.versions or listing.bound:
        return listing, ""
    if version_named(where.split()[1]) is None:
        alone = directory_alone(where)
        return (Listing(where, (alone,)) if alone else listing), ""
    try:
        version = resolve(CheckpointRef(where, "latest"), grace_seconds=grace_seconds, reporter=SILENT)
    except EdlCkptError:
        return listing, ""
    if version.is_alone:
        return Listing(where, (version,)), ""
    return list_versions(version.location, grace_seconds=grace_seconds), version.path
