"""`edl-ckpt browse`: looks through versions, tables and rows on the whole terminal."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options.common import Browsed, flag
from edl_ckpt.cli.options.references import parsed_ref
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError


@declared("browse run", "browse s3://bucket/run@best:auc", exits=READS)
def browse_command(
    out: Output,
    ref: Browsed = None,
    no_mouse: Annotated[bool, flag("Let the terminal select text with the mouse.")] = False,
) -> None:
    """Browse a location in a full-screen terminal UI.

    It shows versions, shards, tables, rows, histograms and differences, and verifies in the background. It can copy,
    tag and export the version under the cursor, each after a question. Press ? for its keys. It needs the extra tui.
    """
    from edl_ckpt.cli.browse.terminal import check_terminal, first_paint
    from edl_ckpt.core.base.libraries import library

    if out.json and "json" not in out.defaulted:
        raise UsageError("browse has no document to print", hint="these have: edl-ckpt list, edl-ckpt inspect")
    wanted = parsed_ref(ref, out)
    check_terminal()
    with first_paint(wanted.location.url):
        library("textual", "tui")
        from edl_ckpt.cli.browse.app import browse

    code = browse(wanted, out, mouse=not no_mouse)
    if code:
        raise SystemExit(code)
