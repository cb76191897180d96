"""Fingerprints on a terminal: the first digits, by which people tell versions apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.patterns import LatePattern

if TYPE_CHECKING:
    from rich.console import RenderableType

DIGITS: Final = 12
"""As many as tell ten million versions apart, but for one chance in five."""
_WHOLE: Final = LatePattern(rf"(edl1:[0-9a-f]{{{DIGITS}}})[0-9a-f]{{{64 - DIGITS}}}(?:\+[0-9a-f]{{32}})?")


def shortened(text: str) -> str:
    """Return a text with the first digits of each fingerprint in it.

    >>> shortened("sealed: edl1:" + "4273adb51713" + 52 * "0")
    'sealed: edl1:4273adb51713'
    """
    return _WHOLE.sub(r"\1", text)


def shortened_line(item: RenderableType) -> RenderableType:
    """Return the same of a line with its styles; anything else is returned as it is."""
    from rich.text import Text

    if isinstance(item, str):
        return shortened(item)
    if not isinstance(item, Text):
        return item
    for found in reversed([*_WHOLE.finditer(item.plain)]):
        item = item[: found.end(1)] + item[found.end() :]
    return item
