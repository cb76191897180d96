"""Results as JSON documents: dataclasses as objects, and what JSON lacks as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edl_ckpt.core.checkpoint.target import WritePlan
    from edl_ckpt.core.commit.part_plan import PartsPlan


@dataclass(frozen=True, slots=True)
class Several:
    """The values of one cell of a row: a list in JSON, and in CSV one text with a gap between them."""

    values: Sequence[Any]
    gap: str = " "

    def __str__(self) -> str:
        return self.gap.join(map(str, self.values))


@dataclass(frozen=True, slots=True)
class Recorded(Several):
    """One cell with any value of JSON: in CSV it is a text that is JSON."""

    values: Any

    def __str__(self) -> str:
        return to_json(self.values)


def as_dict(value: Any) -> Any:
    """Return a result with its dataclasses as dicts, as `dataclasses.asdict` does, but without copies of the rest.

    That takes a third of the time, which counts where a result has 100,000 variables.
    """
    kind: Any = type(value)
    if kind is str or kind is int or kind is float or value is None:
        return value
    if kind is tuple or kind is list:
        return tuple(map(as_dict, value)) if kind is tuple else list(map(as_dict, value))
    if kind is dict:
        return {key: as_dict(item) for key, item in value.items()}
    names = _field_names(kind)
    return value if names is None else {name: as_dict(getattr(value, name)) for name in names}


def planned_version(
    schema: str,
    plan: WritePlan,
    ref: str,
    bytes_read: int,
    warnings: Sequence[str],
    parts: PartsPlan | None,
    cluster: Mapping[str, Any] | None,
    **more: bool,
) -> dict[str, Any]:
    """Return the document of a dry run that would write a version: everything that its plan tells."""
    return {
        "schema": schema,
        "ref": ref,
        "output": plan.target.location.url,
        "from_ps": plan.from_ps,
        "to_ps": plan.to_ps,
        "version": plan.target.number,
        "size_bytes": plan.size_bytes,
        "bytes_read": bytes_read,
        "bytes_written": 0,
        "rows": plan.rows,
        "seconds": None,
        "peak_memory_bytes": None,
        "fingerprint": None,
        "shards": [as_dict(shard) for shard in plan.shards],
        "forced": None,
        **more,
        "layout": plan.target.layout.name,
        "skew": plan.skew,
        "warnings": list(warnings),
        "cluster": cluster,
        "parts": parts and {**as_dict(parts), "times_read": parts.times_read},
    }


@lru_cache(256)
def _field_names(kind: Any) -> tuple[str, ...] | None:
    """Return the names of the fields of a dataclass; None for any other type."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def to_json(document: Any, *, indent: int | None = None) -> str:
    """Return a document as JSON in ASCII, safe on any terminal; NaN and infinities are texts, as JSON lacks them.

    In the log of a CI job, '##' could begin a command, so one of its characters is escaped.
    """
    try:
        text = json.dumps(document, allow_nan=False, indent=indent)
    except ValueError:  # there is one
        text = json.dumps(_expressible(document), allow_nan=False, indent=indent)
    return text.replace("##", "#\\u0023")


def _expressible(value: Any) -> Any:
    """Return a document in which NaN and infinities are the texts that protobuf's JSON has for them."""
    if isinstance(value, dict):
        return {key: _expressible(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_expressible(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        from edl_ckpt.core.state.metadata import json_number

        return json_number(value)
    return value
