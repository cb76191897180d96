"""A plan of a prune as a file: `--plan-out` writes it, and `--apply` executes it later."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final, get_type_hints

from edl_ckpt.core.base.errors import RefusedError, UsageError
from edl_ckpt.core.base.words import counted, size
from edl_ckpt.core.model.versions import DAMAGED, SUSPECT, State
from edl_ckpt.core.operations.prune.guards import (
    NO_EXCEPTIONS,
    Guards,
)
from edl_ckpt.core.operations.prune.plan import Action, PruneEntry, PrunePlan
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document
from edl_ckpt.core.storage import Location
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.location import as_url
from edl_ckpt.core.storage.user_files import check_target, open_input

PLAN_SCHEMA: Final = "edl-ckpt/prune-plan/1"
_STORED: Final[Mapping[Any, type]] = {Location: str, Action: str, tuple[str, ...]: list}
"""What the fields of these types are in a file."""
_ENTRY: Final[Mapping[str, type]] = {name: _STORED.get(kind, kind) for name, kind in get_type_hints(PruneEntry).items()}
_MOST: Final = 1 << 63
"""No number in a plan is as large: a version has at most 18 digits."""
_WORDS: Final[Mapping[type, str]] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def write_plan(path: str | os.PathLike[str], plan: PrunePlan) -> None:
    """Write a plan to a local file; RefusedError for one that `read_plan` would not read.

    The file has local locations by their absolute paths, and no storage options. It does not say whether to empty the
    trash: only the command line may ask for that. Its guards are for the reader.
    """
    path = as_url(path)
    check_target(path)
    entries = list(map(_written_entry, plan.entries))
    guards = {name: getattr(plan.guards, name) for name in Guards.__slots__}
    document = {"schema": PLAN_SCHEMA, "policy": list(plan.policy), "guards": guards, "entries": entries}
    data = json.dumps(document, indent=1).encode()
    if len(data) > MAX_SUMS_BYTES:
        raise RefusedError(
            f"the plan has {size(len(data))}, and one of more than {size(MAX_SUMS_BYTES)} cannot be applied",
            path=path,
            hint=f"plan fewer than {counted(len(plan.entries), 'version')} at a time",
        )
    with storage_errors(path), open(path, "wb") as file:
        file.write(data)


def _written_entry(entry: PruneEntry) -> dict[str, Any]:
    """Return an entry as the file has it, with absolute paths."""
    written = {name: getattr(entry, name) for name in PruneEntry.__slots__}
    return written | {
        "location": entry.location.absolute,
        "path": entry.location.with_url(entry.path).absolute,
        "reasons": list(entry.reasons),
    }


def read_plan(path: str | os.PathLike[str], guards: Guards = NO_EXCEPTIONS) -> PrunePlan:
    """Return the plan in a local file, its locations without storage options; UsageError when the file has no plan.

    The file lifts no guard: `guards` has the exceptions for the execution, and those of the plan are not read.
    """
    path = as_url(path)
    with storage_errors(path), open_input(path, "rb") as file:
        data = file.read(MAX_SUMS_BYTES + 1)
    try:
        document = parse_document(data, path, limit=MAX_SUMS_BYTES)
        if document.get("schema") != PLAN_SCHEMA:
            raise UsageError(f"expected a document with the schema {PLAN_SCHEMA!r}")
        entries = tuple(map(_entry, _list(document.get("entries"), dict)))
        if len({e.path for e in entries}) < len(entries):
            raise UsageError("expected a plan of a prune: it has a version twice")
        locations = tuple(dict.fromkeys(e.location for e in entries))
        return PrunePlan(locations, entries, tuple(_list(document.get("policy"), str)), guards).say_first()
    except ValueError as error:
        raise UsageError(f"not a plan that prune can apply: {getattr(error, 'message', error)}", path=path) from None


def _entry(document: dict[str, Any]) -> PruneEntry:
    """Return the entry in an object that has exactly its keys, with values of their types; UsageError for any other."""
    if document.keys() != _ENTRY.keys():
        raise UsageError(f"expected a plan of a prune: an object with {', '.join(_ENTRY)}")
    for key, kind in _ENTRY.items():
        if not _has_type(document[key], kind):
            raise UsageError(f"expected a plan of a prune: {key} must be {_WORDS[kind]}, got {document[key]!r:.60}")
    location = Location(document["location"])
    if location.absolute != location.url or b"\0" in os.fsencode(location.url):
        raise UsageError(f"expected a plan of a prune: {location.url!r:.60} is no absolute path, and no URL")
    return PruneEntry(
        **document
        | {
            "location": location,
            "state": _state(document["state"]),
            "action": Action(document["action"]),
            "reasons": tuple(_list(document["reasons"], str)),
        }
    )


def _state(text: str) -> str:
    """Return the state that a version is shown with; ValueError for any other text."""
    return text if text in {DAMAGED, SUSPECT} else State(text).value


def _list(values: Any, kind: type) -> list[Any]:
    if not isinstance(values, list) or not all(_has_type(value, kind) for value in values):
        raise UsageError(f"expected a plan of a prune: a list, each of it {_WORDS[kind]}")
    return values


def _has_type(value: Any, kind: type) -> bool:
    """Say whether a value from JSON has the type of a field: a whole number is a number too, and `true` is none.

    Numbers are below _MOST, and whole ones are not negative.
    """
    if isinstance(value, bool) or kind not in {int, float}:
        return type(value) is kind
    if kind is int:
        return isinstance(value, int) and 0 <= value < _MOST
    return isinstance(value, int | float) and -_MOST <= value < _MOST
