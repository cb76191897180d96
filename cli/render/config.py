"""The settings in force, as text, as JSON and as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import document_of, picked, rows_of
from edl_ckpt.cli.terminal.tables import Column, Lines, Table, head, styled

if TYPE_CHECKING:
    from edl_ckpt.cli.options.settings import Setting, Settings


def config_document(found: Settings) -> dict[str, Any]:
    """Return `edl-ckpt/config/1`, with every setting, and where it comes from."""
    settings = [picked(each, "name value source origin? variable commands fault") for each in found.settings]
    return document_of("config", found, "files settings warnings", settings=settings)


def config_rows(found: Settings) -> list[list[Any]]:
    """Return a header and a row for each setting."""
    keys = "name value source origin commands"
    return rows_of(keys, (picked(e, keys, value=_worded(e), commands=" ".join(e.commands)) for e in found.settings))


def config_human(found: Settings, *, origin: bool, every: bool) -> Lines:
    """Yield the files, and a row for each setting that somebody chose or that is more than a flag that is off.

    With `every`, there is a row for all.
    """
    for file in found.files:
        yield head(file.path, "" if file.trusted else "only how output looks and what a command may use")
    if not found.files:
        yield styled("no configuration file", "dim")
    table = Table(
        Column("setting", "name", worth=10), Column("value", "name", worth=9),
        *([Column("origin", "name", worth=8)] if origin else []), Column("commands", "prose", worth=5),
    )  # fmt: skip
    for each in found.settings:
        if every or each.source != "default" or each.value not in (None, False, [], ()):
            value = (text.escaped(_worded(each)), "red" if each.fault else "")
            source = [text.escaped(each.origin) or "default"] if origin else []
            table.add(each.name, value, *source, ", ".join(each.commands))
    yield table
    for each in found.settings:
        if each.fault:
            yield styled(f"{text.escaped(each.origin)}: {each.fault}", "red")


def _worded(setting: Setting) -> str:
    """Return a value as it stands on the command line; '' for one that is not set."""
    if isinstance(setting.value, list):
        return " ".join(map(str, setting.value))
    if setting.value is None:
        return ""
    return str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)
