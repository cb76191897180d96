"""The table of side files in the page about retention is the table in the code."""

from __future__ import annotations

from edl_ckpt.core.sources.side_files import WRITERS
from places import TOP


def row(name: str, systems: tuple[str, ...], patterns: str) -> str:
    """Return a row of the table."""
    return f"| {', '.join(systems)} | {name} | {', '.join(f'`{pattern}`' for pattern in patterns.split())} |"


def test_the_page_has_every_side_file() -> None:
    """Whoever reads the page knows which files go along with a version, and which keep it."""
    page = (TOP / "docs/retention.md").read_text(encoding="utf-8")
    missing = [writer.name for writer in WRITERS if row(*writer) not in page]
    assert not missing, "\n".join(row(*writer) for writer in WRITERS)
