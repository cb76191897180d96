"""The summary of a checkpoint, from the indexes of its shards: the result behind `inspect`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.words import abridged, counted, describe, escaped, shape, size
from edl_ckpt.core.model.tables import DenseEntry, ShardIndex, ShardSummary, TableEntry, TableInfo
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading.names import slots_of, whole_name
from edl_ckpt.core.sources.systems import system_named

_OPTIMIZERS: Final = ("optim.", "optimizer.", "optimizers.", "optimizer_states.")
"""The names under which jobs of torch save the state of their optimizers begin so."""


@dataclass(frozen=True, slots=True)
class VariableSummary:
    """A dense variable and the ps_id of its shard."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    shard: int


@dataclass(frozen=True, slots=True)
class ItemSummary:
    """Bytes that are neither a variable nor a table, such as a pickled value, and the ps_id of their shard."""

    name: str
    kind: str
    size_bytes: int
    shard: int


@dataclass(frozen=True, slots=True)
class TableSummary:
    """An embedding table over all shards; `dtype` is None without rows, `initializer` None without an info.

    A companion has what an optimizer or a cache keeps for each row of another table: its `slot` says what.
    """

    name: str
    dim: int
    dtype: str | None
    initializer: str | None
    rows: int
    rows_per_shard: tuple[int, ...]
    size_bytes: int
    companion_of: str = ""
    slot: str = ""

    @property
    def title(self) -> str:
        """Return its name, or for a companion that of its table and the slot, as commands take it."""
        return f"{self.companion_of}:{self.slot}" if self.companion_of else self.name


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """A whole version; `parameters` counts the elements of the model: of no companion, and of no optimizer's state."""

    ref: str
    version: int | None
    ps_num: int
    generation: str
    layout: str
    size_bytes: int
    parameters: int
    shards: tuple[ShardSummary, ...]
    variables: tuple[VariableSummary, ...]
    tables: tuple[TableSummary, ...]
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """What users recorded by keys of their own: JSON values."""
    file_metadata: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    """What files of safetensors and their indexes say of themselves, by their paths in the version."""
    system: str = ""
    items: tuple[ItemSummary, ...] = ()
    lacks: tuple[str, ...] = ()
    """What a version of another system than ElasticDL lacks, in words."""

    def __repr__(self) -> str:
        shards, *facts = self._facts()
        content = counted(len(self.variables), "variable"), counted(len(self.tables), "table")
        return describe("CheckpointSummary", escaped(self.ref), shards, *content, *facts)

    def _facts(self) -> tuple[str, ...]:
        return counted(len(self.shards), "shard"), size(self.size_bytes), self.generation

    def _repr_html_(self) -> str:
        shards, *facts = self._facts()
        tables = (
            table(
                ("table", "rows", "dim", "dtype", "initializer", "size"),
                ((t.name, t.rows, t.dim, t.dtype, t.initializer, Bytes(t.size_bytes)) for t in self.tables),
                len(self.tables),
                "table",
            ),
            table(
                ("variable", "dtype", "shape", "size"),
                ((v.name, v.dtype, shape(v.shape), Bytes(v.size_bytes)) for v in self.variables),
                len(self.variables),
                "variable",
            ),
        )
        return card("CheckpointSummary", self.ref, (shards, counted(self.parameters, "parameter"), *facts), tables)


def _is_optimizers(name: str) -> bool:
    """Return True for a variable that an optimizer keeps: torch has a key for it, TensorFlow a suffix.

    >>> _is_optimizers("optim.state.w.exp_avg"), _is_optimizers("net/.OPTIMIZER_SLOT/opt/m"), _is_optimizers("w")
    (True, True, False)
    """
    return name.startswith(_OPTIMIZERS) or ".OPTIMIZER_SLOT" in name


def summarize(version: Version, shards: Sequence[ShardIndex]) -> CheckpointSummary:
    """Return the summary of a version from its shards' indexes, in ps_id order; variables and tables by name."""
    variables: list[VariableSummary] = []
    items: list[ItemSummary] = []
    for entry, ps_id in _variables(shards):
        if entry.is_item:
            items.append(ItemSummary(entry.name, entry.dtype.name, entry.size_bytes, ps_id))
        else:
            variables.append(VariableSummary(entry.name, entry.dtype.name, entry.shape, entry.size_bytes, ps_id))
    tables = _tables(shards)
    if not system_named(version.layout.system).has_initializers:
        tables = tuple(replace(table, initializer="") for table in tables)
    return CheckpointSummary(
        ref=version.ref,
        version=version.number,
        ps_num=version.ps_num or 0,
        generation=max((shard.generation for shard in shards), default=""),
        layout=version.layout.name,
        size_bytes=version.size_bytes,
        parameters=_parameters(shards, tables),
        shards=tuple(shard.summary for shard in shards),
        variables=tuple(variables),
        tables=tables,
        metadata=version.metadata,
        file_metadata=_file_metadata(shards),
        system=version.layout.system,
        items=tuple(items),
        lacks=version.lacks,
    )


def _variables(shards: Sequence[ShardIndex]) -> list[tuple[DenseEntry, int]]:
    """Return the variables and other items of all shards by name, each with the number of its shard."""
    found: list[tuple[DenseEntry, int]] = []
    for shard in shards:
        found += [(entry, shard.file.ps_id) for entry in shard.variables]
    return sorted(found, key=lambda entry_and_shard: (entry_and_shard[0].name, entry_and_shard[1]))


def _parameters(shards: Sequence[ShardIndex], tables: Sequence[TableSummary]) -> int:
    """Return how many values a model has, without those that an optimizer keeps."""
    parameters = 0
    for shard in shards:
        for entry in shard.variables:
            if not entry.is_item and not _is_optimizers(entry.name):
                parameters += entry.elements
    for summary in tables:
        if not summary.companion_of:
            parameters += summary.rows * summary.dim
    return parameters


def _file_metadata(shards: Sequence[ShardIndex]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for note in (note for shard in shards for note in shard.notes):
        found.setdefault(note.file, {})[note.key] = note.text
    return found


def _tables(shards: Sequence[ShardIndex]) -> tuple[TableSummary, ...]:
    """Return the summary of every table by name, each before its companions."""
    infos = {info.name: info for shard in reversed(shards) for info in reversed(shard.infos)}
    entries: dict[str, list[tuple[int, TableEntry]]] = {name: [] for name in infos}
    for number, shard in enumerate(shards):
        for entry in shard.tables:
            entries.setdefault(entry.name, []).append((number, entry))
    tables = (_table(name, infos.get(name), entries[name], len(shards)) for name in entries)
    return tuple(sorted(tables, key=lambda t: (t.companion_of or t.name, t.slot, t.name)))


def _table(name: str, info: TableInfo | None, entries: Sequence[tuple[int, TableEntry]], shards: int) -> TableSummary:
    """Return the summary of a table from its entries, each with the number of its shard."""
    filled = [entry for _, entry in entries if entry.dtype is not None]
    rows_per_shard = [0] * shards
    for number, entry in entries:
        rows_per_shard[number] += entry.rows
    noted_dim = info.dim if info else 0
    return TableSummary(
        name=name,
        dim=filled[0].dim if filled else noted_dim,
        dtype=filled[0].dtype.name if filled and filled[0].dtype else None,
        initializer=info.initializer if info else None,
        rows=sum(rows_per_shard),
        rows_per_shard=tuple(rows_per_shard),
        size_bytes=sum(entry.size_bytes for _, entry in entries),
        companion_of=info.companion_of if info else "",
        slot=info.slot if info else "",
    )


def select(
    summary: CheckpointSummary, *, shard: int | None = None, table: str | None = None, variable: str | None = None
) -> CheckpointSummary:
    """Return the requested part of a summary; the name of a table or a variable leaves all others out.

    Raises NotFoundError for an unknown shard, table or variable, and UsageError for a name that several end with.
    """
    if table is not None:
        names = [each.name for each in summary.tables]
        table = whole_name(table, names, "table", summary.ref, slots_of(summary.tables))
    if variable is not None:
        variable = whole_name(variable, [each.name for each in summary.variables], "variable", summary.ref)
    shards = summary.shards
    variables = summary.variables
    tables = summary.tables
    items = summary.items
    if table is not None or variable is not None:
        tables = tuple(each for each in tables if each.name == table)
        variables = tuple(each for each in variables if each.name == variable)
        items = ()
    if shard is not None:
        shards = tuple(each for each in shards if each.ps_id == shard)
        variables = tuple(each for each in variables if each.shard == shard)
        items = tuple(each for each in items if each.shard == shard)
        if not shards:
            known = abridged([each.ps_id for each in summary.shards], 8)
            raise NotFoundError(f"no shard {shard}", path=summary.ref, hint=f"shards there: {known}")
    if variable is not None and not variables:
        raise NotFoundError(f"no variable {variable!r} in shard {shard}", path=summary.ref)
    return replace(summary, shards=shards, variables=variables, tables=tables, items=items)
