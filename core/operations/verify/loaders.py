"""What a system's own loader would do with the rows of a version, found without the loader and before a job fails.

Each loader was read, and then run beside what is said here (`tests/core/operations/verify/test_loaders.py`):
ElasticDL's Python and Go servers, TorchRec 1.8 over `dcp.load`, `load_de_variable_from_file_system` of TFRA 0.8.1,
`get_loading_files` and `_iter_batches_from_files` of dynamicemb; DeepRec's `embedding_var_restore.cc` was only read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.base.words import counted, meant
from edl_ckpt.core.kernel import bulk
from edl_ckpt.core.kernel.placement import owners
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.operations.verify.companions import check_companions
from edl_ckpt.core.operations.verify.file_loaders import FILE_LOADERS
from edl_ckpt.core.operations.verify.findings import LoadedTable, LoaderView, Report
from edl_ckpt.core.proof.id_order import NO_IDS, IdOrder, order_of
from edl_ckpt.core.proof.repeated_ids import SORTED_AT_ONCE, Search
from edl_ckpt.core.reading.blocks import id_blocks
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.dcp.table_names import collisions
from edl_ckpt.core.sources.dynamicemb import format as dynamicemb
from edl_ckpt.core.sources.tfra import format as tfra

_BLOCK_BYTES: Final = 1 << 20
_SHOWN: Final = 3
_NOWHERE: Final = -1
Ranks = Callable[[bulk.I64], bulk.I64]
"""Returns the rank of each id, -1 for none: int64 [n] -> int64 [n]."""


class Load(NamedTuple):
    """Some ids of a table, and the ranks that load their rows; `is_saved`: of the version, and of no older save."""

    ids: bulk.I64
    ranks: bulk.I64
    is_saved: bool = True


@dataclass(slots=True)
class Loader:
    """A loader, for a version and so many ranks; `faults` are what makes it fail, by the names of tables."""

    checkpoint: Checkpoint
    world: int
    faults: list[tuple[str, str]] = field(default_factory=list)

    def wanted(self, table: str) -> Ranks | None:
        """Return where a job looks for the rows of a table; None where that is where they were loaded."""
        del table
        return None

    def loads(self, table: str) -> Iterator[Load]:
        """Yield what is loaded of a table and what is not; by default every rank has what it looks for."""
        for shard, entry in self.checkpoint.entries(table):
            for _, ids in id_blocks(self.checkpoint, shard, entry):
                yield Load(ids, self.ranks(ids))

    def ranks(self, ids: bulk.I64) -> bulk.I64:
        """Return the ranks that load some ids."""
        return np.zeros(len(ids), np.int64)

    def check(self, table: str) -> None:
        """Add what makes the loader fail."""

    def slots(self) -> Iterator[tuple[str, str]]:
        """Yield tables that are slots for the loader, with their owners, although they have other ids."""
        return iter(())


def _by(rule: Placement, world: int, ids: bulk.I64) -> bulk.I64:
    ranks = owners(rule, ids, world)
    assert ranks is not None  # noqa: S101 - only rules that say it are asked
    return ranks.astype(np.int64)


class _Go(Loader):
    def ranks(self, ids: bulk.I64) -> bulk.I64:
        """Drop negative ids that are no multiples: Go's remainder is negative, and no server has such a number."""
        rest = np.fmod(ids, self.world)
        return np.where(rest < 0, _NOWHERE, rest)


class _DeepRec(Loader):
    def ranks(self, ids: bulk.I64) -> bulk.I64:
        """Take C's remainders, which are negative for negative keys, and belong to no part."""
        rest = np.fmod(np.fmod(ids, 1000), self.world)
        return np.where(rest < 0, _NOWHERE, rest)

    def slots(self) -> Iterator[tuple[str, str]]:
        """A slot is `NAME/SLOT`, whatever its keys are; the state of a key that it lacks is not initialized."""
        names = self.checkpoint.table_names
        return ((slot, name) for name in names for slot in names if slot.startswith(f"{name}/"))


class _TorchRec(Loader):
    def check(self, table: str) -> None:
        """Managed collision: the rows of a rank must begin and end where those of ranks that saved did."""
        for module, of in collisions(self.checkpoint.infos).items():
            if of != table or (name := f"{module}._output_segments_tensor") not in self.checkpoint:
                continue
            saved = self.checkpoint.variable(name)
            last = int(saved.max())
            step = -(-last // self.world)
            bounds = np.minimum(np.arange(self.world + 1) * step, last)
            if step * (self.world - 1) >= last:
                self.faults.append((table, f"some of {counted(self.world, 'rank')} have none of its {last:,} rows"))
            elif len(odd := np.setdiff1d(bounds, saved)):
                message = f"row {odd[0]:,} is the first of a rank, but was inside the managed collision of one"
                self.faults.append((table, message))


class _Raw(Loader):
    """Loaders that choose files by their names."""

    def _of_file(self, table: str, path: str, ranks: Ranks) -> Iterator[Load]:
        saved = {
            self.checkpoint.version.name_of(shard.path(run))
            for shard, entry in self.checkpoint.entries(table)
            for run in entry.ids
        }
        reader = self.checkpoint.files[self.checkpoint.version.path_of(path)]
        size = reader.size_bytes - reader.size_bytes % 8
        for start in range(0, size, _BLOCK_BYTES):
            ids = np.frombuffer(reader.read(start, min(_BLOCK_BYTES, size - start)), "<i8").astype(np.int64)
            yield Load(ids, ranks(ids), path in saved)

    def _unread(self, table: str, paths: Sequence[str]) -> Iterator[Load]:
        """Yield the rows of the version in files that nobody reads."""
        for shard, entry in self.checkpoint.entries(table):
            names = {self.checkpoint.version.name_of(shard.path(run)) for run in entry.ids}
            if not names & set(paths):
                for _, ids in id_blocks(self.checkpoint, shard, entry):
                    yield Load(ids, np.full(len(ids), _NOWHERE))


class _Tfra(_Raw):
    rule = Placement.MOD

    def wanted(self, table: str) -> Ranks:
        """Return the partition function of the build."""
        del table
        return partial(_by, self.rule, self.world)

    def loads(self, table: str) -> Iterator[Load]:
        """As many files of this world size as ranks are loaded one by one; else all files there are, by their keys."""
        keys = self._files_of_keys(table)
        ranked = [path for path in keys if re.search(r"_rank\d+_size\d+-keys$", path)]
        of_this_size = [path for path in ranked if path.endswith(f"_size{self.world}-keys")]
        chosen: dict[str, Ranks] = {}
        if len(of_this_size) == self.world:
            by_rank = _by_rank(of_this_size)
            for rank in range(self.world):
                if rank not in by_rank:
                    self.faults.append((table, f"rank {rank} finds no file of its own"))
            chosen = {path: partial(_all_to, rank) for rank, path in by_rank.items()}
        elif self.world == 1:
            chosen = {path: partial(_all_to, 0) for path in keys}
        else:
            chosen = {path: self.wanted(table) for path in ranked}
        for path, ranks in chosen.items():
            self._check_sizes(table, path)
            yield from self._of_file(table, path, ranks)
        yield from self._unread(table, list(chosen))

    def _files_of_keys(self, table: str) -> list[str]:
        keys: list[str] = []
        for path in self.checkpoint.version.sizes:
            name = tfra.file_named(path)
            if name and name.table == table and path.endswith("-keys"):
                keys.append(path)
        return sorted(keys)

    def _check_sizes(self, table: str, path: str) -> None:
        """Both files must have whole rows, and as many."""
        sizes, values = self.checkpoint.version.sizes, f"{path.removesuffix('keys')}values"
        dim = max(entry.dim or entry.empty_dim for _, entry in self.checkpoint.entries(table))
        rows, rest = divmod(sizes[path], 8)
        if rest or sizes.get(values, -1) != rows * dim * 4:
            self.faults.append((table, f"{path} and its values have other numbers of rows"))


def _by_rank(paths: Iterable[str]) -> dict[int, str]:
    """Return the files that ranks find alone, by rank: those of tables that are not split."""
    by_rank: dict[int, str] = {}
    for path in paths:
        match = re.search(r"_mht_1of1_rank(\d+)_size\d+-keys$", path)
        if match:
            by_rank[int(match[1])] = path
    return by_rank


def _all_to(rank: int, ids: bulk.I64) -> bulk.I64:
    return np.full(len(ids), rank, np.int64)


class _TfraGpu(_Tfra):
    rule = Placement.MASK31_MOD


class _Dynamicemb(_Raw):
    def wanted(self, table: str) -> Ranks | None:
        """Return the rule of the router, which the arguments name."""
        rule = self.checkpoint.placement(table)
        return partial(_by, rule, self.world) if rule.says_shard else None

    def loads(self, table: str) -> Iterator[Load]:
        """Each rank reads its own file, or all where their number is another one, and keeps `key % W == rank`."""
        named = {path: name for path in self.checkpoint.version.sizes if (name := dynamicemb.file_named(path))}
        keys = sorted(path for path, name in named.items() if name.table == table and path.partition("_keys.")[1])
        counts = {named[path].ps_num for path in keys}
        if counts != {len(keys)}:
            self.faults.append((table, f"there are {counted(len(keys), 'file')} of keys, of {sorted(counts)} ranks"))
            yield from self._unread(table, [])
            return
        for path in keys:
            rank = named[path].ps_id if len(keys) == self.world else None
            yield from self._of_file(table, path, partial(self._kept, rank))

    def _kept(self, rank: int | None, ids: bulk.I64) -> bulk.I64:
        ranks = _by(Placement.MOD, self.world, ids)
        return ranks if rank is None or self.world == 1 else np.where(ranks == rank, rank, _NOWHERE)


LOADERS: Final[Mapping[str, tuple[str, type[Loader]]]] = {
    "elasticdl:python": ("elasticdl", Loader),
    "elasticdl:go": ("elasticdl", _Go),
    "torchrec": ("dcp", _TorchRec),
    "tfra:cpu": ("tfra", _Tfra),
    "tfra:gpu": ("tfra", _TfraGpu),
    "dynamicemb": ("dynamicemb", _Dynamicemb),
    "deeprec": ("tensorflow", _DeepRec),
}
"""By their names: the system that each reads. A world size may be part of a name: `deeprec:parts=3`."""


def loader_named(name: str, world: int | None) -> tuple[str, int | None]:
    """Return the loader that a name means, and the number of ranks; UsageError for an unknown one.

    >>> loader_named("deeprec:parts=3", None), loader_named("tfra:cpu", 2)
    (('deeprec', 3), ('tfra:cpu', 2))
    """
    base, parts, count = name.partition(":parts=")
    if parts and count.isascii() and count.isdigit() and int(count):
        name, world = base, int(count)
    known = [*LOADERS, *FILE_LOADERS]
    if name not in known:
        raise UsageError(f"no loader {name!r}; expected one of {', '.join(known)}", hint=meant(name, known))
    return name, world


def look_with(checkpoint: Checkpoint, name: str, world: int | None, report: Report) -> LoaderView:
    """Return what a loader would do with a version, and report what it would lose.

    UnsupportedError for a loader of another system, and UsageError for an unknown name.
    """
    name, world = loader_named(name, world)
    if name in FILE_LOADERS:
        return _look_at_files(checkpoint, name, world or checkpoint.version.ps_num or 1, report)
    system, kind = LOADERS[name]
    if checkpoint.version.layout.system != system:
        raise UnsupportedError(
            f"the loader {name} reads {system}, and this is {checkpoint.version.layout.system}",
            path=checkpoint.version.ref,
        )
    loader = kind(checkpoint, world or checkpoint.version.ps_num or 1)
    companions = {table for table, info in checkpoint.infos.items() if info.companion_of}
    tables = tuple(_look(loader, table, report) for table in checkpoint.table_names if table not in companions)
    check_companions(checkpoint, report, loader.slots())
    for table, fault in loader.faults:
        report.add("loader-fails", f"with {name}: {fault}", path=checkpoint.version.path, subject=table)
    return LoaderView(name, loader.world, tables)


def _look_at_files(checkpoint: Checkpoint, name: str, world: int, report: Report) -> LoaderView:
    """Return the view of a loader of whole files, and report each file that it would not load."""
    systems, rule = FILE_LOADERS[name]
    system = checkpoint.version.layout.system
    if system not in systems:
        words = f"the loader {name} reads {' and '.join(systems)}, and this is {system}"
        raise UnsupportedError(words, path=checkpoint.version.ref)
    for fault in rule(checkpoint, world):
        message = f"with {name}: {fault.words}"
        report.add(
            "loader-fails",
            message,
            path=checkpoint.version.path_of(fault.path),
            subject=fault.path,
            warning=fault.is_warning,
            hint="" if fault.is_warning else _HINTS[name],
        )
    return LoaderView(name, world, ())


_HINTS: Final = {
    "torch:weights-only": "edl-ckpt reads them all the same: `edl-ckpt export` writes the tensors without the rest",
    "torch-checkpointing": "an item that is the same on all ranks: copy the file of rank 0 to each new rank",
    "transformers": "`edl-ckpt export REF OUT --format safetensors` writes a file or a set that transformers reads",
}
_LOSSES: Final = {
    "loader-drops": "are dropped",
    "loader-misroutes": "are on ranks where the job never looks",
    "loader-twice": "are loaded again from the files of another save",
}


def _look(loader: Loader, table: str, report: Report) -> LoadedTable:
    rows, order = 0, NO_IDS
    lost: dict[str, int] = dict.fromkeys(_LOSSES, 0)
    shown: dict[str, list[int]] = {code: [] for code in _LOSSES}
    wanted, is_alone = loader.wanted(table), True
    for load in loader.loads(table):
        is_nowhere = load.ranks == _NOWHERE
        is_astray = ~is_nowhere & (wanted(load.ids) != load.ranks) if wanted else np.zeros(len(load.ids), np.bool_)
        order = order.followed_by(order_of(load.ids[~is_nowhere]))
        is_alone &= load.is_saved
        rows += len(load.ids) * load.is_saved
        for code, which in (("loader-drops", is_nowhere), ("loader-misroutes", is_astray)) if load.is_saved else ():
            lost[code] += int(which.sum())
            shown[code] += load.ids[which][:_SHOWN].tolist()
    loader.check(table)
    restored = rows - sum(lost.values())
    if not is_alone:
        lost["loader-twice"], shown["loader-twice"] = _repeated(loader, table, order)
    for code, count in lost.items():
        if count:
            named = ", ".join(map(str, shown[code][:_SHOWN]))
            message = f"{count:,} of {rows:,} rows {_LOSSES[code]}, with {counted(loader.world, 'rank')}: {named}"
            report.add(code, message, path=loader.checkpoint.version.path, subject=table)
    drops, misroutes, twice = lost.values()
    examples = [one for code in _LOSSES for one in shown[code]][:_SHOWN]
    return LoadedTable(table, rows, restored, drops, twice, misroutes, tuple(examples))


def _repeated(loader: Loader, table: str, order: IdOrder) -> tuple[int, list[int]]:
    """Return how often an id is loaded again, and some of these ids."""
    check_memory(order.rows * 16, f"the ids of table {table!r}", loader.checkpoint.version.path)
    faults = list(loader.faults)
    loaded = [load.ids[load.ranks != _NOWHERE] for load in loader.loads(table)]
    loader.faults = faults
    return Search(SORTED_AT_ONCE).repeated([lambda: np.concatenate(loaded)], order)
