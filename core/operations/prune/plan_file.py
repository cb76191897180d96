"""A plan as a file: written by `--plan-out`, carried out later by `--apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.operations.prune.plan import Action, Guards, PruneEntry, PrunePlan
from edl_ckpt.core.storage import Location

PLAN_SCHEMA: Final = "edl-ckpt/prune-plan/1"


def plan_to_json(plan: PrunePlan) -> dict[str, Any]:
    """Return a plan as `--plan-out` writes it; local locations by their absolute path, no secrets."""
    entries = [
        {name: getattr(entry, name) for name in PruneEntry.__slots__}
        | {
            "location": entry.location.absolute,
            "path": entry.location.with_url(entry.path).absolute,
            "reasons": list(entry.reasons),
        }
        for entry in plan.entries
    ]
    guards = {name: getattr(plan.guards, name) for name in Guards.__slots__}
    return {"schema": PLAN_SCHEMA, "policy": list(plan.policy), "guards": guards, "entries": entries}


def plan_from_json(document: Any, options: Mapping[str, str] | None = None) -> PrunePlan:
    """Return a plan that `plan_to_json` made, its locations with storage options; UsageError for anything else."""
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"no plan of a prune: its schema is not {PLAN_SCHEMA!r}")
    try:
        entries = tuple(
            PruneEntry(
                **{
                    **e,
                    "location": Location(str(e["location"]), options or {}),
                    "action": Action(e["action"]),
                    "reasons": tuple(e["reasons"]),
                }
            )
            for e in document["entries"]
        )
        held = document["guards"]
        guards = Guards(**{**held, "delete": tuple(held["delete"]), "drop_tags": tuple(held["drop_tags"])})
        return PrunePlan(entries, tuple(document["policy"]), guards)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"no plan of a prune: {type(error).__name__} {error}") from None
