"""`edl-ckpt systems` shows the checkpoint systems that can be read and written."""

from __future__ import annotations

from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.terminal.output import Output


@declared("systems", "systems --json", rows=True)
def systems_command(out: Output) -> None:
    """Show which checkpoint systems can be read and written.

    It also lists systems of installed packages. Other commands take their names with --system.
    """
    from edl_ckpt.cli.render import systems as render
    from edl_ckpt.core.sources.systems import systems

    known = systems()
    out.show(lambda: render.systems_document(known), render.systems_human(known), lambda: render.systems_rows(known))
