"""What a version has lost: missing and damaged shards, and with them variables, and a part of each table.

An index of a whole version (torch's, TensorFlow's) counts what is lost. Else a seal says how many bytes each table had
in each shard, so it tells the share and the names. Without a seal, servers that own rows by their ids count as equal,
and the variables of a lost shard have no name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    IncompleteError,
    NotFoundError,
)
from edl_ckpt.core.base.words import abridged, base_name, counted, describe, missing_shards
from edl_ckpt.core.catalog.listing import VersionLike, as_version
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.tables import LostShard
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint, raise_problems
from edl_ckpt.core.state.seal import read_seal

_LISTED: Final = 20
_MISSING: Final = frozenset({"missing-shard", "missing-file"})


@dataclass(frozen=True, slots=True)
class LostTable:
    """About how many rows of a table are lost, and of how many; None where nothing tells."""

    name: str
    rows: int | None
    total: int | None
    share: float | None
    is_exact: bool = False
    """True where an index of the whole version says how many rows there are."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What cannot be read of a version, or of those of its shards that somebody asked for; False for nothing."""

    shards: tuple[LostShard, ...] = ()
    tables: tuple[LostTable, ...] = ()
    variables: tuple[str, ...] = ()
    """The variables of lost shards that a seal names."""
    is_named: bool = True
    """False where variables may be lost that nothing names."""

    def __bool__(self) -> bool:
        return bool(self.shards)

    def __repr__(self) -> str:
        return describe("Loss", self.which if self else "nothing", counted(len(self.tables), "table"))

    @property
    def which(self) -> str:
        """Return the lost shards in a few words."""
        numbers = {lost.shard for lost in self.shards if lost.shard is not None}
        known = f"shard{'' if len(numbers) == 1 else 's'} {abridged(sorted(numbers), _LISTED)}"
        return known if numbers else "missing files"

    def of_table(self, name: str, kept: Collection[str]) -> Loss:
        """Return what is lost of one table; `kept` has the paths of cut shards that have all of it."""
        shards = tuple(lost for lost in self.shards if lost.path not in kept)
        return Loss(shards, tuple(table for table in self.tables if table.name == name))

    def lines(self) -> Iterator[str]:
        """Yield which shards are lost and why, then what is lost with them."""
        for lost in islice(self.shards, _LISTED):
            byte = "" if lost.offset is None else f" (at byte {lost.offset})"
            name = base_name(lost.path)
            yield f"{'' if lost.message.startswith(name) else f'{name}: '}{lost.message}{byte}"
        for table in islice(self.tables, _LISTED):
            about = "" if table.is_exact else "about "
            rows = "rows" if table.rows is None else f"{about}{table.rows:,} of {table.total:,} rows"
            share = " may be" if table.share is None else f" ({table.share:.0%}) are".replace("%", " %")
            yield f"{table.name}: {rows}{share} lost with {self.which}"
        if self.variables:
            names = abridged(map(repr, self.variables), _LISTED)
            yield f"{counted(len(self.variables), 'variable')} lost with {self.which}: {names}"
        if not self.is_named:
            yield f"dense variables may be lost with {self.which}; without a seal nothing names them"
        rest = len(self.shards[_LISTED:]) + len(self.tables[_LISTED:])
        if rest:
            yield f"more shards or tables are lost, at least {rest}"

    @contextmanager
    def explains(self, shard: int | None = None) -> Iterator[None]:
        """Raise the error of a lost shard where the block does not find something: it may have been there."""
        try:
            yield
        except NotFoundError as error:
            if not self:
                raise
            raise self.error(f"{error.message} in the rest", shard) from None

    def error(self, but: str, shard: int | None = None) -> EdlCkptError:
        """Return the error with which a command ends; `but` says what it did. It names one shard, damaged if any is."""
        ordered = sorted(self.shards, key=lambda lost: (lost.shard != shard, lost.code in _MISSING))
        worst, message = ordered[0], f"{ordered[0].message}; {but}"
        if worst.code in _MISSING:
            return IncompleteError(message, path=worst.path)
        return CorruptError(message, code=worst.code, path=worst.path, offset=worst.offset)


NOTHING: Final = Loss()


@contextmanager
def open_rest(
    version: VersionLike, *, partial: bool = True, owners: set[int] | None = None
) -> Iterator[tuple[Checkpoint, Loss]]:
    """Open the shards that can be read, of all or of some, and yield them with what is lost; nothing unless `partial`.

    Raises the error of a lost shard when none can be read, and CorruptError when the others contradict each other.
    """
    version = as_version(version)
    chosen = tuple(shard for shard in version.shards if owners is None or shard.ps_id in owners)
    with open_checkpoint(replace(version, shards=chosen), partial=partial) as checkpoint:
        loss = loss_of(checkpoint, version, owners) if partial else NOTHING
        if loss and not checkpoint.shards:
            raise loss.error("nothing was read")
        if partial and version.has_only_shards:
            raise_problems(version, checkpoint.shards)
        yield checkpoint, loss


def loss_of(checkpoint: Checkpoint, version: Version | None = None, owners: set[int] | None = None) -> Loss:
    """Return what a partly opened checkpoint lacks of a version, by default its own; `owners` are the shards asked for.

    Reads a seal where there is something to say. Of some shards alone, the result has no tables and variables.
    """
    version = version or checkpoint.version
    missing = _missing_shards(version, owners)
    damaged, names = _damaged_parts(checkpoint, version)
    lost = (*missing, *damaged)
    if not lost or owners is not None:
        return Loss(lost)
    sealed = _sealed_bytes(checkpoint, version)
    in_seal = {name for kind, name, _ in sealed if kind == "table"}
    losing = _LosingShards(
        damaged={shard.shard for shard in damaged if shard.shard is not None},
        absent=version.missing_count or (0 if damaged else len(missing)),
    )
    tables: list[LostTable] = []
    for name in sorted({*checkpoint.table_names, *in_seal}):
        table = _lost_table(checkpoint, name, sealed, losing)
        if table is not None:
            tables.append(table)
    names |= {name for kind, name, is_left in sealed if kind == "variable" and not is_left}
    readable = {*checkpoint.variable_names, *checkpoint.item_names, *checkpoint.table_names}
    return Loss(lost, tuple(tables), tuple(sorted(names - readable)), bool(sealed or names))


class _LosingShards(NamedTuple):
    """The shards with which parts of tables are lost: the numbers of damaged ones, and how many are absent."""

    damaged: set[int]
    absent: int


def _missing_shards(version: Version, owners: set[int] | None) -> list[LostShard]:
    """Return what a listing lacks of a version, or of the shards of some `owners`: files by name, else shards."""
    if version.lacks:
        return [
            LostShard(None, version.path, f"missing or truncated: {what}", "missing-file") for what in version.lacks
        ]
    missing: list[LostShard] = []
    for gap in version.missing_ranges:
        numbers = gap if owners is None else sorted(owners.intersection(gap))
        for number in islice(numbers, _LISTED * _LISTED):
            words = missing_shards([range(number, number + 1)], version.ps_num)
            missing.append(LostShard(number, version.path, words))
    return missing


def _damaged_parts(checkpoint: Checkpoint, version: Version) -> tuple[list[LostShard], set[str]]:
    """Return what cannot be read of files that are there, and the names of tensors that are lost with it.

    Of systems with indexes of whole versions, tensors are left out one by one.
    """
    damaged = list(checkpoint.lost)
    names: set[str] = set()
    for shard in () if version.has_only_shards else checkpoint.shards:
        for problem in shard.problems:
            if not problem.warning:
                words = f"{problem.subject!r}: {problem.message}"
                damaged.append(LostShard(shard.file.ps_id, shard.file.path, words, problem.code, problem.offset))
            if not problem.warning or problem.code == "missing-file":
                names.add(problem.subject)
    return damaged, names


def _sealed_bytes(checkpoint: Checkpoint, version: Version) -> Counter[tuple[str, str, bool]]:
    """Return the bytes of each variable and table in a seal, by kind, name, and whether they can be read.

    Nothing for a version without a seal, or with one of other files.
    """
    sealed: Counter[tuple[str, str, bool]] = Counter()
    ends_of_cut = {version.name_of(path): end for path, end in checkpoint.cut.items()}
    whole: dict[str, int] = {}
    for shard in checkpoint.shards:
        for file in shard.file.files:
            if file.path not in checkpoint.cut:
                whole[version.name_of(file.path)] = file.size_bytes
    with suppress(EdlCkptError):
        seal = read_seal(checkpoint.store, version.key) if version.has_place_for_seal else None
        if seal is None or not whole.items() <= seal.sizes.items():
            return sealed
        for sealed_shard in seal.shards:
            for chunk in sealed_shard.chunks:
                is_left = sealed_shard.name in whole or chunk.end <= ends_of_cut.get(sealed_shard.name, 0)
                sealed[chunk.kind, chunk.name, is_left] += chunk.end - chunk.start
    return sealed


def _lost_table(
    checkpoint: Checkpoint, name: str, sealed: Counter[tuple[str, str, bool]], losing: _LosingShards
) -> LostTable | None:
    """Return what is lost of a table; None for nothing."""
    rows = sum(entry.rows for _, entry in checkpoint.entries(name)) if checkpoint.has_table(name) else 0
    total = checkpoint.infos[name].total if name in checkpoint.infos else None
    if total is not None:  # an index of the whole version has counted them
        if rows >= total:
            return None
        return LostTable(name, total - rows, total, (total - rows) / total, is_exact=True)
    share = _lost_share(checkpoint, name, sealed, losing)
    if share == 0 or (sealed and share is None):
        return None
    if share is None or share == 1 or not rows:
        return LostTable(name, None, None, share)
    lost = round(rows * share / (1 - share))
    return LostTable(name, lost, rows + lost, share)


def _lost_share(
    checkpoint: Checkpoint, name: str, sealed: Counter[tuple[str, str, bool]], losing: _LosingShards
) -> float | None:
    """Return which share of a table is lost, None where nothing tells.

    By the bytes in the seal. Without one, servers that own rows by their ids count as equal.
    """
    left, gone = sealed["table", name, True], sealed["table", name, False]
    if left + gone:
        return gone / (left + gone)
    if sealed or checkpoint.placement(name) is Placement.NONE:
        return None
    having: set[int] = set()
    if checkpoint.has_table(name):
        having = {shard.file.ps_id for shard, _ in checkpoint.entries(name)}
    servers = losing.absent + len(losing.damaged.union(shard.file.ps_id for shard in checkpoint.shards))
    return (losing.absent + len(losing.damaged - having)) / max(servers, 1)
