"""`edl-ckpt metrics`: records, imports and shows metrics of versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import arguments, references
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.named_versions import is_named
from edl_ckpt.cli.options.no_versions import check_no_parent
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import meant

if TYPE_CHECKING:
    from edl_ckpt.core.storage.location import Location


_Format = Annotated[
    str | None, o.option("F", "log, tensorboard, csv or jsonl. Default: recognized by the name of SOURCE.", "--format")
]


@declared("metrics set run@100 auc=0.78", "metrics set run@100 loss=0.21 --mode min", exits=NOTES)
def metrics_set_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF NAME=VALUE...", "The version, and its metrics.")],
    mode: Annotated[
        Mode | None,
        o.option("max|min", "Also declare whether higher (max) or lower (min) is better."),
        o.CommandLineOnly(),
    ] = None,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Record metrics of a version.

    They replace older values of the same names. --mode also declares whether higher or lower values are better.
    """
    from edl_ckpt.core.operations.annotate import set_metrics

    ref, metrics = arguments.split_pairs(words, "NAME=VALUE", _number, has_ref=arguments.looks_like_ref(words[0], out))
    version = references.resolve_named(ref, out, "metrics set", *words[ref is not None :])
    set_metrics(version, metrics, mode=mode, **o.locking(out, lock_wait))
    _show_metrics(out, version.location, version.key)


@declared(
    "metrics show run", "metrics show run@best:auc --json", exits=NOTES, c3="some metrics cannot be read now", rows=True
)
def metrics_show_command(out: Output, ref: o.Ref = None) -> None:
    """Show the metrics of one version, or of all."""
    parsed = references.parsed_ref(ref, out)
    if not is_named(ref, parsed):
        _show_metrics(out, parsed.location, None, changed=False)
    else:
        version = references.resolve_ref(ref, out, to_change=True)
        _show_metrics(out, version.location, version.key, changed=False)


@declared("metrics import master.log run", "metrics import metrics.csv run --nearest 50", exits=NOTES, rows=True)
def metrics_import_command(
    out: Output,
    source: Annotated[str, o.argument("SOURCE", "A master's log, TensorBoard directory, CSV or JSON lines.")],
    location: o.Place = None,
    nearest: Annotated[
        int, o.option("STEPS", "Match a version with the nearest step, at most STEPS away.", least=0)
    ] = 0,
    kind: _Format = None,
    dry_run: o.DryRun = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Import the metrics that a job wrote to a log.

    Metrics of a training step belong to the version with the same number. The command reports all that do not match.
    """
    from edl_ckpt.cli.render import recorded as render
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.metric_series import import_metrics, match_series, read_series

    where = out.location(location)
    series = read_series(source, kind)
    if dry_run:
        plan = match_series(series, where, list_versions(where).versions, nearest=nearest)
    else:
        plan = import_metrics(series, where, nearest=nearest, **o.locking(out, lock_wait))
    out.warn(*(f"{source}: {problem}" for problem in plan.skipped[:20]))
    out.show(
        lambda: render.import_document(plan, applied=not dry_run),
        render.import_human(plan, applied=not dry_run),
        lambda: render.import_rows(plan),
    )


@declared("metrics remove run@100 auc", "metrics remove run@100 auc loss", exits=NOTES)
def metrics_remove_command(
    out: Output,
    words: Annotated[list[str], o.argument("REF NAME...", "The version, and the names of metrics.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Remove metrics from a version."""
    from edl_ckpt.core.operations.annotate import remove_metrics

    ref, names = arguments.split_names(words, out, "NAME", "metric")
    version = references.resolve_named(ref, out, "metrics remove", *names)
    remove_metrics(version, names, **o.locking(out, lock_wait))
    _show_metrics(out, version.location, version.key)


@declared("metrics mode run auc max", "metrics mode run loss min", exits=NOTES)
def metrics_mode_command(
    out: Output,
    words: Annotated[list[str], o.argument("[LOCATION] NAME max|min", "The location, the metric, and max or min.")],
    lock_wait: o.LockWait = "10s",
) -> None:
    """Declare whether max or min of a metric is better.

    `@best:METRIC`, `list --best` and the rules of `prune` use it.
    """
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.annotate import set_modes
    from edl_ckpt.core.state.metric_modes import MODES, check_mode

    if words[-1] not in MODES and len(words) < 3:
        raise UsageError("max or min is missing", hint="expected [LOCATION] NAME max|min")
    if len(words) not in {2, 3}:
        fault = "too many words" if len(words) > 3 else "NAME is missing, the metric"
        raise UsageError(fault, hint="expected [LOCATION] NAME max|min")
    *place, name, mode = words
    where = out.location(place[0] if place else None)
    set_modes(where, {name: check_mode(mode)}, **o.locking(out, lock_wait))
    known = {metric for version in list_versions(where).versions for metric in version.metrics}
    if name not in known and (close := meant(name, known)):
        out.warn(f"no version has a value of {name!r}; {close}")
    _show_metrics(out, where, None)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{f'{name}={text}'!r}: the value is not a number") from None


def _show_metrics(out: Output, location: Location, version: int | str | None, *, changed: bool = True) -> None:
    """Show metrics; a command that only shows them ends with 3 when some cannot be read."""
    from edl_ckpt.cli.render import recorded as render
    from edl_ckpt.core.catalog.listing import list_versions

    listing = list_versions(location)
    check_no_parent(listing)
    chosen = [v for v in listing.versions if version in {None, v.key}]
    out.show(
        lambda: render.metrics_document(listing, chosen),
        render.metrics_human(listing, chosen) if version is None else (render.metrics_line(listing, v) for v in chosen),
        lambda: render.metrics_rows(chosen),
    )
    out.warn(*listing.problems)
    out.conclude(ok=changed or not (listing.unread if version is None else any(v.unread for v in chosen)))
