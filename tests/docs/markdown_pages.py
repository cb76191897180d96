"""Pages as Markdown, for the reference in `docs/`: one file for a command, or for a group with its commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edl_ckpt.cli.manual.pages import PROGRAM, Block, ManualPage, Row


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
        yield from header({"Arguments": "Argument", "Exit codes": "Code"}.get(block.heading, _column(block)), "Meaning")
        yield from (_row(row) for row in block.rows)
        yield ""
    if block.lines:
        yield from ("```sh" if block.heading == "Examples" else "```text", *block.lines, "```", "")


def header(*columns: str) -> Iterator[str]:
    """Yield the first two lines of a table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"


def _column(block: Block) -> str:
    return "Option" if block.rows[0].term.startswith("-") else "Name"


def _row(row: Row) -> str:
    notes = "".join(f" [{note}]" for note in row.notes)
    return f"| {_code(row.term)} | {_escaped(row.text + notes)} |"


def _code(text: str) -> str:
    """Return code for a cell of a table. A pipe in backticks would need a backslash, which some renderers show."""
    return f"<code>{_plain(text)}</code>" if "|" in text else f"`{text}`"


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;")


def _escaped(text: str) -> str:
    """Return text in which `<` begins no tag, a star no emphasis and a pipe no cell; code keeps its characters."""
    return "".join(
        _code(part) if number % 2 else _plain(part).replace("*", "\\*").replace("_", "\\_")
        for number, part in enumerate(text.split("`"))
    )
