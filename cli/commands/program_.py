"""The commands about the program itself: its version, help and schemas, its settings, its systems, and its machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Annotated, Final

from edl_ckpt.cli import __version__
from edl_ckpt.cli.manual.marks import LISTS, declared
from edl_ckpt.cli.manual.terminal import drawn
from edl_ckpt.cli.options.common import argument, flag
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.base.words import escaped, meant

_LIBRARIES: Final = (
    "numpy",
    "protobuf",
    "typer",
    "rich",
    "fsspec",
    "xxhash",
    "botocore",
    "google-crc32c",
    "pyarrow",
    "torch",
)


@declared("version", "version --json")
def version_command(out: Output) -> None:
    """Print the versions of the program and its libraries.

    `edl-ckpt --version` prints the version alone.
    """
    from edl_ckpt.core.kernel import bulk

    kernel = "compiled" if bulk.kernel is not None else "numpy"
    libraries = _installed()
    document = {
        "schema": "edl-ckpt/version/1",
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": kernel,
        "libraries": libraries,
    }
    present = [f"{name} {version}" for name, version in libraries.items() if version]
    words = f"{kernel} kernel, Python {document['python']}, {document['platform']}"
    out.show(lambda: document, [f"edl-ckpt {__version__} ({words})", f"with {', '.join(present)}"])


def _installed() -> Mapping[str, str | None]:
    """Return the versions of the libraries that it can use; None for one that is not installed. None is imported."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


@declared("help prune", "help exit-codes")
def help_command(
    out: Output,
    words: Annotated[
        list[str] | None, argument("[COMMAND|TOPIC]", "A command such as `prune` or `tag add`, or a topic.")
    ] = None,
) -> None:
    """Show the help of a command, or a topic.

    The topics are refs, exit-codes, env, config and json. Without an argument, the command shows the program's help.
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
    from edl_ckpt.cli.render import program

    found = settings_in_force(out.config)
    human = program.config_human(found, origin=origin, every=every)
    out.show(lambda: program.config_document(found), human, lambda: program.config_rows(found))
    out.conclude(ok=not any(setting.fault for setting in found.settings))


@declared("systems", "systems --json", rows=True)
def systems_command(out: Output) -> None:
    """Show which checkpoint systems can be read and written.

    It also lists systems of installed packages. Other commands take their names with --system.
    """
    from edl_ckpt.cli.render import program as render
    from edl_ckpt.core.sources.systems import systems

    known = systems()
    out.show(lambda: render.systems_document(known), render.systems_human(known), lambda: render.systems_rows(known))


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
    from edl_ckpt.cli.render import program as render
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
