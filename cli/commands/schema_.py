"""`edl-ckpt schema` prints the JSON Schema of a document."""

from __future__ import annotations

import json
from typing import Annotated

from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.options.common import argument
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.base.words import meant


@declared("schema list", "schema tag add", exits={10})
def schema_command(
    out: Output,
    command: Annotated[
        list[str] | None, argument("[COMMAND]", "A command, or 'error'. Default: all documents.")
    ] = None,
) -> None:
    """Print the JSON Schema of a command's --json output.

    Every document of the command fits it. Documents gain keys with time, so a schema allows keys that it does not name.
    """
    from edl_ckpt.cli.render.schemas import OF_COMMANDS, all_schemas, schema_for

    name = " ".join(command) if command else None
    try:
        schema = schema_for(name)
    except KeyError:
        hint = meant(name or "", (*OF_COMMANDS, *all_schemas())) or "`edl-ckpt schema` prints all of them"
        raise NotFoundError(f"no document of {name!r}", hint=hint) from None
    out.paged = True
    out.write(json.dumps(schema, indent=None if out.json else 2) + "\n")
