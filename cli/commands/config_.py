"""`edl-ckpt config show` shows every setting in force."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.options.common import flag
from edl_ckpt.cli.terminal.output import Output


@declared("config show --origin", "config show --all --json", c3="a command would refuse one of the values", rows=True)
def config_show_command(
    out: Output,
    origin: Annotated[bool, flag("Show where each comes from: a variable, a line of a file, or the program.")] = False,
    every: Annotated[bool, flag("Show options that have no value too.", "--all")] = False,
) -> None:
    """Show every setting in force.

    The environment wins over a configuration file, and that over the program's own value. An empty list of commands
    means all that have the option. Secrets are shown as ***.
    """
    from edl_ckpt.cli.options.settings import settings_in_force
    from edl_ckpt.cli.render import config

    found = settings_in_force(out.config)
    human = config.config_human(found, origin=origin, every=every)
    out.show(lambda: config.config_document(found), human, lambda: config.config_rows(found))
    out.conclude(ok=not any(setting.fault for setting in found.settings))
