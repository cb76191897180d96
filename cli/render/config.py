"""The settings in force, as text, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import as_dict, picked, rows_of
from edl_ckpt.cli.terminal.tables import Column, Table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.cli.options.settings import Setting, Settings


def document(found: Settings) -> dict[str, Any]:
    """Return `edl-ckpt/config/1`, with every setting, and where it comes from."""
    return {
        "schema": "edl-ckpt/config/1",
        "files": [as_dict(file) for file in found.files],
        "settings": [
            picked(setting, "name value source origin variable commands fault", origin=setting.origin or None)
            for setting in found.settings
        ],
        "warnings": list(found.warnings),
    }


def rows(found: Settings) -> list[list[Any]]:
    """Return a header and a row for each setting."""
    keys = "name value source origin commands"
    return rows_of(keys, (picked(e, keys, value=_value(e), commands=" ".join(e.commands)) for e in found.settings))


def human(found: Settings, *, origin: bool, every: bool) -> Iterator[RenderableType]:
    """Yield the files, and a row for each setting that has a value; with `every`, for all."""
    from rich.text import Text

    for file in found.files:
        limited = "" if file.trusted else "  only how output looks and what a command may use"
        yield Text(text.escaped(file.path), "bold").append(limited, "dim")
    if not found.files:
        yield Text("no configuration file", "dim")
    table = Table(
        Column("setting", "name", worth=10), Column("value", "name", worth=9),
        *([Column("origin", "name", worth=8)] if origin else []), Column("commands", "prose", worth=5),
    )  # fmt: skip
    for each in found.settings:
        if each.is_shown or every:
            value = (text.escaped(_value(each)), "red" if each.fault else "")
            source = [text.escaped(each.origin) or "default"] if origin else []
            table.add(each.name, value, *source, ", ".join(each.commands))
    yield table
    for each in found.settings:
        if each.fault:
            yield Text(f"{text.escaped(each.origin)}: {each.fault}", "red")


def _value(setting: Setting) -> str:
    """Return a value as it stands on the command line; '' for one that is not set."""
    if isinstance(setting.value, list):
        return " ".join(map(str, setting.value))
    if setting.value is None:
        return ""
    return str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)
