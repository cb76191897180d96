"""`edl-ckpt policy` stores the rules of retention with a location."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import LISTS, NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.no_versions import check_no_parent
from edl_ckpt.cli.options.rules import StoredRuleOptions
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.operations.prune.retention import Policy

    _Strip = Callable[..., Sequence[WriteResult]]


@declared("policy show run", "policy show s3://models/run --json", exits=LISTS)
def policy_show_command(out: Output, location: o.Place = None) -> None:
    """Show the retention rules stored with a location."""
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.prune.plan import read_policy, read_stored_layout, unknown_names

    where = out.location(location)
    listing = list_versions(where)  # raises when there is no such location
    policy = read_policy(where)
    if policy.is_empty:
        check_no_parent(listing)
    for warning in unknown_names(listing.versions, policy):
        out.warn(f"{where}: {warning}")
    document = {
        "schema": "edl-ckpt/policy/1",
        "location": where.url,
        "policy": None if policy.is_empty else policy.to_json(),
        "words": list(policy.describe()),
        "layout": (layout := read_stored_layout(where)),
    }
    words = escaped(", or ".join(policy.describe()))
    lines = [f"keep {words}" if words else "no policy is stored here"]
    out.show(lambda: document, [*lines, *([f"new versions in the {escaped(layout)} layout"] if layout else [])])


@declared("policy set run --keep 5", "policy set run --keep-best 1 --metric auc", exits=NOTES)
def policy_set_command(
    out: Output,
    rules: StoredRuleOptions,
    location: o.Place = None,
    layout: Annotated[
        LayoutName | None,
        o.option("design|elasticdl", "Names of the first version here, for ElasticDL's files."),
        o.CommandLineOnly(),
    ] = None,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Store the retention rules of a location.

    They replace older ones. `edl-ckpt prune` follows them when it is given no rules. --layout stores which layout the
    first version at the location gets; later ones follow it.
    """
    from edl_ckpt.core.operations.prune.plan import store_layout

    policy = rules.policy(out, [out.location(location)])
    if policy.is_empty and layout is None:
        raise UsageError("no rule was given", hint="try: --keep 5; `policy clear` removes the rules")
    if layout is not None:
        store_layout(out.location(location), layout, **o.locking(out, lock_wait))
    if policy.is_empty:
        policy_show_command(out, location)
        return
    _store_policy(out, location, policy, lock_wait)


@declared("policy clear run", "policy clear s3://models/run", exits=NOTES)
def policy_clear_command(out: Output, location: o.Place = None, lock_wait: o.LockWait = "10s") -> None:
    """Remove the rules and the layout stored with a location."""
    from edl_ckpt.core.operations.prune.plan import read_stored_layout, store_layout
    from edl_ckpt.core.operations.prune.retention import Policy

    if read_stored_layout(out.location(location)) is not None:
        store_layout(out.location(location), None, **o.locking(out, lock_wait))
    _store_policy(out, location, Policy(), lock_wait)


def _store_policy(out: Output, location: str | None, policy: Policy, lock_wait: str) -> None:
    from edl_ckpt.core.operations.prune.plan import store_policy

    store_policy(out.location(location), policy, **o.locking(out, lock_wait))
    policy_show_command(out, location)
