"""What the program runs with and what a storage can do, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import picked
from edl_ckpt.cli.terminal.lines import Lines, head, styled
from edl_ckpt.cli.terminal.tables import Cell, Column, Table
from edl_ckpt.core.base.words import extra_hint
from edl_ckpt.core.storage.facts import Fact, Verdict

if TYPE_CHECKING:
    from edl_ckpt.core import StorageReport

_STYLES: Final[Mapping[Verdict, Cell]] = {
    Verdict.FINE: Cell("ok", "green"),
    Verdict.WEAKER: Cell("weaker", "yellow"),
    Verdict.BROKEN: Cell("broken", "bold red"),
    Verdict.UNKNOWN: Cell("-", "dim"),
}


_VERDICT: Final = Column("verdict", worth=9, title="")


def document(program: Iterable[Fact], extras: Iterable[Fact], storage: StorageReport | None) -> dict[str, Any]:
    """Return `edl-ckpt/doctor/1`; `storage` is null without a location."""
    facts = list(program)
    found = storage and {"location": storage.location.url, "wrote": storage.wrote, "facts": _objects(storage.facts)}
    return {
        "schema": "edl-ckpt/doctor/1",
        "ok": is_sound(facts, storage),
        "program": _objects(facts),
        "extras": [{"name": e.name, "installed": e.verdict is Verdict.FINE, "gives": e.why} for e in extras],
        "storage": found,
    }


def is_sound(program: Iterable[Fact], storage: StorageReport | None) -> bool:
    """Say whether nothing is broken."""
    return (storage is None or storage.is_sound) and all(fact.verdict is not Verdict.BROKEN for fact in program)


def _objects(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    return [picked(fact, "name value verdict why") for fact in facts]


def human(program: Sequence[Fact], extras: Sequence[Fact], storage: StorageReport | None) -> Lines:
    """Yield a table of the program, of its extras, and of the storage, and what all of it comes to."""
    yield styled("program", "bold")
    yield _facts(program)
    yield styled("extras", "bold")
    yield _extras(extras)
    if missing := next((extra for extra in extras if extra.verdict is not Verdict.FINE), None):
        yield styled(f"for example: {extra_hint(missing.name)}", "dim")
    if storage is not None:
        yield head(storage.location.url, "" if storage.wrote else "nothing was written, so less is known")
        yield _facts(storage.facts)
    every = [*program, *(storage.facts if storage is not None else ())]
    broken, weaker = (sum(fact.verdict is kind for fact in every) for kind in (Verdict.BROKEN, Verdict.WEAKER))
    if broken:
        yield styled(f"{broken} broken", "bold red")
    yield styled(f"{weaker} slower or weaker" if weaker else "" if broken else "Nothing is slower or weaker.", "dim")


def _facts(facts: Sequence[Fact]) -> Table:
    """Return a table of facts. A reason stands behind the value: in a column of its own it would be the first to go."""
    columns = Column("fact", "name", worth=10, title=""), Column("value", "prose", worth=8, title="")
    values = (f"{fact.value}: {fact.why}" if fact.why else fact.value for fact in facts)
    cells = zip(facts, values, strict=True)
    return Table.of(
        (_VERDICT, *columns), ((_STYLES[fact.verdict], fact.name, text.escaped(value)) for fact, value in cells)
    )


def _extras(facts: Iterable[Fact]) -> Table:
    """Return a table of extras, with what each gives."""
    value, gives = Column("value", worth=7, title=""), Column("gives", "prose", worth=8, title="")
    columns = _VERDICT, Column("extra", "name", worth=10, title=""), value, gives
    return Table.of(columns, ([_STYLES[fact.verdict], fact.name, fact.value, Cell(fact.why, "dim")] for fact in facts))
