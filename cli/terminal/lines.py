"""Lines with styles, as rich draws them. It is imported with the first line: a document and the help need none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edl_ckpt.cli.terminal.text import escaped

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

Lines = Iterator["RenderableType"]
"""What a renderer yields, from top to bottom: lines and tables."""


def styled(words: str = "", style: str = "") -> Text:
    """Return a line in a style of rich, such as 'dim' or 'bold red'."""
    from rich.text import Text

    return Text(words, style)


def head(name: str, about: str = "", style: str = "dim") -> Text:
    """Return the line above a result: its name, escaped and bold, and what there is to say about it."""
    return styled(escaped(name), "bold").append(f"  {about}" if about else "", style)
