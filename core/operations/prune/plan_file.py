"""A plan as a file: `--plan-out` writes it, `--apply` executes it later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from edl_ckpt.core.errors import UsageError
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, PrunePlan
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.regular import check_target, open_input

PLAN_SCHEMA: Final = "edl-ckpt/prune-plan/1"


def write_plan(path: str, plan: PrunePlan) -> None:
    """Write a plan to a local file."""
    check_target(path)
    with storage_errors(path), open(path, "w", encoding="utf-8") as file:
        json.dump(plan_to_json(plan), file, indent=1)


def read_plan(path: str, options: Mapping[str, str] | None = None) -> PrunePlan:
    """Return the plan in a local file, its locations with storage options; UsageError when the file has no plan."""
    with storage_errors(path), open_input(path, encoding="utf-8") as file:
        try:
            return plan_from_json(json.load(file), options)
        except ValueError as error:
            raise UsageError(f"not a plan that prune can apply: {error}", path=path) from None


def plan_to_json(plan: PrunePlan) -> dict[str, Any]:
    """Return a plan as `--plan-out` writes it: local locations by their absolute paths, and no storage options.

    It does not say whether to empty the trash: only the command line may ask for that.
    """
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
    """Return the plan in a document of `plan_to_json`, its locations with storage options.

    Raises UsageError for any other document.
    """
    if not isinstance(document, dict) or document.get("schema") != PLAN_SCHEMA:
        raise UsageError(f"expected a document with the schema {PLAN_SCHEMA!r}")
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
        exceptions = document["guards"]
        guards = Guards(
            **exceptions | {"delete": tuple(exceptions["delete"]), "drop_tags": tuple(exceptions["drop_tags"])}
        )
        locations = tuple(dict.fromkeys(e.location for e in entries))
        return PrunePlan(locations, entries, tuple(document["policy"]), guards)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"expected a plan of a prune: {type(error).__name__} {error}") from None
