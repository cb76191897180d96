"""Results as JSON documents: dataclasses are objects, and what JSON lacks is text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError

_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def as_dict(value: Any) -> Any:
    """Return a result with its dataclasses as dicts, as `dataclasses.asdict` does, but without copies of the rest.

    That takes a fifth of the time, which counts where a result has 100,000 variables.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        return tuple(map(as_dict, value)) if kind is tuple else list(map(as_dict, value))
    if isinstance(value, Mapping):
        return {key: as_dict(item) for key, item in value.items()}
    names = _field_names(kind)
    if names is None:
        return value
    items = [getattr(value, name) for name in names]
    return {name: i if type(i) in _PLAIN else as_dict(i) for name, i in zip(names, items, strict=True)}


def picked(value: Any, keys: str, /, **own: Any) -> dict[str, Any]:
    """Return the attributes of a value by these names, as `as_dict` has them; `own` are those that have another value.

    A key with a '?' is null for an empty value.

    >>> picked(3 + 4j, "real imag?", imag="")
    {'real': 3.0, 'imag': None}
    """
    found: dict[str, Any] = {}
    for word in keys.split():
        key = word.rstrip("?")
        content = own[key] if key in own else as_dict(getattr(value, key))
        found[key] = content if key == word else content or None
    return found


def document_of(name: str, value: Any, keys: str, /, **own: Any) -> dict[str, Any]:
    """Return the document `edl-ckpt/NAME/1` of a result: those of its attributes that `picked` picks."""
    return {"schema": f"edl-ckpt/{name}/1", **picked(value, keys, **own)}


def rows_of(keys: str, items: Iterable[Mapping[str, Any]]) -> list[list[Any]]:
    """Return a header, and a row of these values for each item of a document."""
    header = keys.split()
    return [[*header], *([item.get(key) for key in header] for item in items)]


def failure(ref: str, error: EdlCkptError) -> dict[str, Any]:
    """Return why something could not be done with one version of several."""
    return {"ref": ref, "code": error.exit_code, "id": error.id, "message": str(error)}


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
        from edl_ckpt.core.state.document import json_number

        return json_number(value)
    return value
