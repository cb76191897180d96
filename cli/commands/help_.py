"""`edl-ckpt help` shows the help of a command, or a topic."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.manual.terminal import drawn
from edl_ckpt.cli.options.common import argument
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import escaped, meant


@declared("help prune", "help exit-codes")
def help_command(
    out: Output,
    words: Annotated[
        list[str] | None, argument("[COMMAND|TOPIC]", "A command such as `prune` or `tag add`, or a topic.")
    ] = None,
) -> None:
    """Show the help of a command, or a topic.

    The topics are refs, options, exit-codes, env, config and json. Without an argument, the command shows the
    program's help.
    """
    from edl_ckpt.cli.catalogue import COMMANDS, GROUPS
    from edl_ckpt.cli.manual.pages import page, topics
    from edl_ckpt.cli.options.program import parser

    if out.json and "json" not in out.defaulted:
        raise UsageError("help has no document to print", hint="edl-ckpt schema describes those of the commands")
    name = " ".join(words or ())
    known = (*COMMANDS, *GROUPS, *topics())
    if name and name not in known:
        raise UsageError(f"no help on {escaped(name)}", hint=meant(name, known) or f"topics: {', '.join(topics())}")
    out.write(drawn(page(name, parser)) + "\n")
