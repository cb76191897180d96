"""Pages as man pages, in the macros of man(7) that groff and mandoc both know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from edl_ckpt.cli import __version__
from edl_ckpt.cli.manual.pages import PROGRAM, Block, ManualPage

_DATE: Final = "2026-11-22"
"""Of the version; a man page must have one."""
_CODE: Final = re.compile(r"`([^`]+)`")


def file_name(page: ManualPage) -> str:
    """Return the name of a page's file: of section 1 for a command, of section 7 for a topic.

    >>> file_name(ManualPage("tag add", "", "", (), ()))
    'edl-ckpt-tag-add.1'
    """
    return f"{_name(page)}.{_section(page)}"


def _name(page: ManualPage) -> str:
    return "-".join([PROGRAM, *page.name.split()])


def _section(page: ManualPage) -> int:
    return 7 if page.is_topic else 1


def draw(page: ManualPage, others: Iterator[str] | tuple[str, ...] = ()) -> str:
    """Return a page in roff; `others` are the files of related pages, such as `edl-ckpt-prune.1`."""
    lines = [
        f'.TH {_name(page).upper()} {_section(page)} "{_DATE}" "{PROGRAM} {__version__}" "edl-ckpt manual"',
        ".SH NAME",
        f"{_escaped(_name(page))} \\- {_plain(page.summary.removesuffix('.'))}",
    ]
    if page.usage:
        lines += [".SH SYNOPSIS", f".B {_escaped(page.usage)}"]
    if page.description:
        lines += [".SH DESCRIPTION", *_paragraphs(page.description)]
    for block in page.blocks:
        lines += _block(block)
    if others:
        references = [f".BR {_escaped(name)} ({section})" for name, _, section in (o.rpartition(".") for o in others)]
        lines += [".SH SEE ALSO", *(f"{line} ," for line in references[:-1]), references[-1]]
    return "\n".join(lines) + "\n"


def _block(block: Block) -> Iterator[str]:
    yield f'.SH "{_escaped(block.heading.upper())}"'
    yield from _paragraphs(block.paragraphs)
    for row in block.rows:
        yield ".TP"
        yield f".B {_escaped(row.term)}"
        yield _guarded(_text(" ".join([row.text, *(f"[{note}]" for note in row.notes)])))
    if block.lines:
        yield from (".PP", ".EX") if block.paragraphs or block.rows else (".EX",)
        yield from (_guarded(_escaped(line)) for line in block.lines)
        yield ".EE"


def _paragraphs(texts: tuple[str, ...]) -> Iterator[str]:
    for number, text in enumerate(texts):
        if number:
            yield ".PP"
        yield _guarded(_text(text))


def _text(text: str) -> str:
    r"""Return text with the words in backticks in bold.

    >>> print(_text("see `edl-ckpt help`"))
    see \fBedl\-ckpt help\fR
    """
    return _CODE.sub(r"\\fB\1\\fR", _escaped(text))


def _plain(text: str) -> str:
    """Return text for a line that indexes read, which has no fonts."""
    return _escaped(text.replace("`", ""))


def _escaped(text: str) -> str:
    return (
        text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq").replace("~", "\\(ti").replace("^", "\\(ha")
    )


def _guarded(line: str) -> str:
    """Return a line that is no request, whatever it begins with."""
    return f"\\&{line}" if line.startswith((".", "'")) else line
