"""Checks of what users record with versions: names and values of metrics, keys of metadata, and tags."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import escaped

_MAX_NAME: Final = 200


def check_metric_name(name: object) -> str:
    """Return a metric's name; UsageError when it is empty, too long or has characters that cannot be printed."""
    if not isinstance(name, str) or not name or len(name) > _MAX_NAME or not name.isprintable():
        raise UsageError(f"{name!r} is not a valid name of a metric")
    return name


def check_metric_value(name: str, value: object) -> float:
    """Return the value of a metric as a number of Python; UsageError when it is none, a text or a truth value."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool | str | bytes) and getattr(getattr(value, "dtype", None), "kind", "") != "b":
            number = float(value)  # type: ignore[arg-type]  # numpy's too
            return value if isinstance(value, int) else number
    raise UsageError(f"metric {name!r}: expected a number, got {value!r:.80}")


def check_key(key: object) -> str:
    """Return a key of a user's metadata; UsageError when it is empty, too long or cannot be printed."""
    if not isinstance(key, str) or not key or len(key) > _MAX_NAME or not key.isprintable():
        raise UsageError(
            f"'{escaped(str(key))}' is not a valid key of metadata",
            hint=f"a key has 1 to {_MAX_NAME} characters, and no line breaks or control characters",
        )
    return key


def check_tag(tag: object) -> str:
    """Return a tag; UsageError for one that no reference could name: a number, a word with a meaning, '@', a blank."""
    if not isinstance(tag, str):
        raise UsageError(f"a tag must be a text, got {tag!r:.80}")
    reserved = tag in {"latest", "verified", "best"} or tag.startswith("best:") or (tag.isascii() and tag.isdigit())
    if reserved or not tag or len(tag) > _MAX_NAME or not tag.isprintable() or {"@", "/", " "} & set(tag):
        raise UsageError(
            f"{tag!r} is not a valid tag",
            hint="a tag has no '@', '/' or blanks, and is not latest, verified, best or a number",
        )
    return tag
