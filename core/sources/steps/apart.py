"""Names that two systems use in one step: the values of one system are no part of the other's.

The system that is asked first keeps the name. What the later one calls so is called SYSTEM:NAME, with its companions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from edl_ckpt.core.model.tables import Problem

if TYPE_CHECKING:
    from edl_ckpt.core.sources.steps.content import Content, ShardContent
    from edl_ckpt.core.sources.steps.folder import FormatFolder

CODE: Final = "two-systems"


class _Marks(NamedTuple):
    """How many infos, tables, variables and texts of a shard are there."""

    infos: int
    tables: int
    variables: int
    texts: int


def index_apart(content: Content, formats: Sequence[FormatFolder]) -> None:
    """Let each format add what it has of a version, under names that no other has."""
    known: dict[str, str] = {}
    before: Mapping[int, _Marks] = _marks(content)
    added: list[tuple[FormatFolder, Mapping[int, _Marks]]] = []
    for form in formats:
        form.index(content)
        after = _marks(content)
        if any(after[number] != before.get(number) for number in after):
            added.append((form, before))
        before = after
    if len(added) < 2:  # nearly all steps: nothing is looked at
        return
    ends = [begin for _, begin in added[1:]] + [before]
    for (form, begin), end in zip(added, ends, strict=True):
        own = dict.fromkeys(_names(content, begin, end), form.system)
        clashes = own.keys() & known.keys()
        if clashes:
            _rename(content, begin, end, form.system, {name: known[name] for name in clashes})
        known |= {name: system for name, system in own.items() if name not in known}


def _marks(content: Content) -> dict[int, _Marks]:
    return {
        number: _Marks(len(shard.infos), len(shard.tables), len(shard.variables), len(shard.text_crcs))
        for number, shard in content.shards.items()
    }


def _shards(
    content: Content, begin: Mapping[int, _Marks], end: Mapping[int, _Marks]
) -> Iterator[tuple[ShardContent, _Marks, _Marks]]:
    for number, shard in content.shards.items():
        if number in begin and number in end:
            yield shard, begin[number], end[number]


def _names(content: Content, begin: Mapping[int, _Marks], end: Mapping[int, _Marks]) -> Iterator[str]:
    for shard, first, last in _shards(content, begin, end):
        yield from (info.name for info in shard.infos[first.infos : last.infos])
        yield from (table.name for table in shard.tables[first.tables : last.tables])
        yield from (variable.name for variable in shard.variables[first.variables : last.variables])


def _rename(
    content: Content, begin: Mapping[int, _Marks], end: Mapping[int, _Marks], system: str, clashes: Mapping[str, str]
) -> None:
    """Give other names to what a format has added under names that another one has."""

    def name_of(name: str) -> str:
        return f"{system}:{name}" if name in clashes else name

    told = set[str]()
    for shard, first, last in _shards(content, begin, end):
        infos = shard.infos[first.infos : last.infos]
        shard.infos[first.infos : last.infos] = [
            replace(info, name=name_of(info.name), companion_of=name_of(info.companion_of)) for info in infos
        ]
        tables = shard.tables[first.tables : last.tables]
        shard.tables[first.tables : last.tables] = [replace(table, name=name_of(table.name)) for table in tables]
        variables = shard.variables[first.variables : last.variables]
        shard.variables[first.variables : last.variables] = [replace(v, name=name_of(v.name)) for v in variables]
        texts = shard.text_crcs[first.texts : last.texts]
        shard.text_crcs[first.texts : last.texts] = [(name_of(name), crc) for name, crc in texts]
        own = {*(info.name for info in infos), *(table.name for table in tables), *(v.name for v in variables)}
        for name in sorted(own & clashes.keys() - told):
            told.add(name)
            message = (
                f"files of {clashes[name]} have this name, and so have files of {system}: called {name_of(name)!r}"
            )
            shard.problems.append(Problem(CODE, name, None, message, warning=True))
