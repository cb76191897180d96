"""The checkpoint systems that can be read and written, as text, as JSON and as rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.terminal.csv_rows import Several
from edl_ckpt.cli.terminal.documents import picked, rows_of
from edl_ckpt.cli.terminal.tables import Column, Lines, Table

if TYPE_CHECKING:
    from edl_ckpt.core.model.systems import System

_SYSTEM_KEYS = "name title reads writes judged_with"


def systems_document(systems: Sequence[System]) -> dict[str, Any]:
    """Return `edl-ckpt/systems/1`."""
    return {"schema": "edl-ckpt/systems/1", "systems": [picked(system, _SYSTEM_KEYS) for system in systems]}


def systems_rows(systems: Sequence[System]) -> list[list[Any]]:
    """Return a header and a row for each system."""
    return rows_of(_SYSTEM_KEYS, (picked(s, _SYSTEM_KEYS, judged_with=Several(s.judged_with, "; ")) for s in systems))


def systems_human(systems: Sequence[System]) -> Lines:
    """Yield a table of the systems."""
    columns = (
        Column("name"),
        Column("system", worth=9),
        Column("reads"),
        Column("writes"),
        Column("tested with", "prose", worth=2),
    )
    can = {True: "yes", False: "-"}
    systems_rows = ([s.name, s.title, can[s.reads], can[s.writes], ", ".join(s.judged_with)] for s in systems)
    yield Table(*columns, rows=systems_rows)
