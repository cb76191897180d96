"""Pages as Markdown, for the reference in `docs/`: one file for a command, or for a group with its commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edl_ckpt.cli.manual.page import PROGRAM, Block, ManualPage, Row


def draw(pages: Sequence[ManualPage]) -> str:
    """Return pages as one file: the first has its heading, the others are sections in it."""
    lines: list[str] = []
    for number, page in enumerate(pages):
        lines += _page(page, "#" * (1 if number == 0 else 2))
    return "\n".join(lines).rstrip() + "\n"


def _page(page: ManualPage, level: str) -> Iterator[str]:
    title = page.summary.removesuffix(".") if page.is_topic else f"{PROGRAM} {page.name}".strip()
    yield from (f"{level} {title}", "")
    for text in (() if page.is_topic else (page.summary,)) + page.description:
        yield from (_escaped(text), "")
    if page.usage:
        yield from ("```text", page.usage, "```", "")
    for block in page.blocks:
        yield from _block(block, level)


def _block(block: Block, level: str) -> Iterator[str]:
    yield from (f"{level}# {block.heading}", "")
    for text in block.paragraphs:
        yield from (_escaped(text), "")
    if block.rows:
        yield from ("| | |", "|---|---|")
        yield from (_row(row) for row in block.rows)
        yield ""
    if block.lines:
        yield from ("```text", *block.lines, "```", "")


def _row(row: Row) -> str:
    notes = "".join(f" [{note}]" for note in row.notes)
    return f"| `{row.term.replace('|', _PIPE)}` | {_escaped(row.text + notes).replace('|', _PIPE)} |"


_PIPE = "\\|"


def _escaped(text: str) -> str:
    """Return text in which `<` begins no tag and a star no emphasis, outside of code."""
    parts = text.split("`")
    return "`".join(
        part if number % 2 else part.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")
        for number, part in enumerate(parts)
    )
