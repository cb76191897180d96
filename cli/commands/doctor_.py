"""`edl-ckpt doctor` checks this machine, and the storage of a location."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.manual.marks import LISTS, declared
from edl_ckpt.cli.options.common import argument, flag
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.output import Output


@declared("doctor", "doctor run --no-write", exits=LISTS, c3="something is broken: some commands will fail")
def doctor_command(
    out: Output,
    location: Annotated[
        str | None, argument("[LOCATION]", "The location whose storage to check, on disk or at a URL. Default: none.")
    ] = None,
    no_write: Annotated[bool, flag("Skip the write tests; the report then covers less.")] = False,
) -> None:
    """Check this machine and storage.

    It reports the kernel, libraries and extras of the program, and with a LOCATION the abilities of its storage. For
    this it writes small files below .edl-ckpt-0 and removes them; jobs and readers do not see them.
    """
    from edl_ckpt.cli.render import doctor as render
    from edl_ckpt.core import examine_storage

    program, extras = list(render.program_facts()), list(render.extra_facts())
    storage = None
    if location is not None:
        if not no_write:
            place = f"{text.escaped(location)}/.edl-ckpt-0"
            out.say(f"doctor writes small files below {place} and removes them; not with --no-write")
        storage = examine_storage(out.location(location), write=not no_write)
    out.show(lambda: render.doctor_document(program, extras, storage), render.doctor_human(program, extras, storage))
    out.conclude(ok=render.is_sound(program, storage))
