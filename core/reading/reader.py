"""A version opened for reading: the index of every shard, dense variables as arrays, tables in bounded batches.

Opening walks tags only. Values are read on request, ids in blocks, rows in batches. Memory never has a whole table,
except when the caller asks for one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Final, Literal, Self

import numpy as np
import numpy.typing as npt

from edl_ckpt.core.base.errors import (
    CorruptError,
    EdlCkptError,
    IncompleteError,
    NameNotFoundError,
    NotFoundError,
    ReplacedError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.job import Job
from edl_ckpt.core.base.memory import check_memory
from edl_ckpt.core.base.notebook import Bytes, card, table
from edl_ckpt.core.base.parallel import run_all
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import abridged, command, counted, describe, escaped, meant, shape, size
from edl_ckpt.core.catalog import listing as catalog
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.model.shapes import check_dimensions
from edl_ckpt.core.model.tables import DenseEntry, Extent, LostShard, Problem, ShardIndex, TableEntry, table_dtype
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.reading.blocks import in_numpy, read_elements
from edl_ckpt.core.reading.gathered import GatheredReader
from edl_ckpt.core.reading.kept_ids import KeptReader, keep, take_over
from edl_ckpt.core.reading.names import called_names, slots_of, whole_name
from edl_ckpt.core.reading.open_files import OpenFiles
from edl_ckpt.core.reading.openings import Openings
from edl_ckpt.core.reading.stored_sums import StoredSums
from edl_ckpt.core.reading.table import Part, PartLike, TableView
from edl_ckpt.core.sources.interface import OnFault
from edl_ckpt.core.sources.registry import source_of
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import RangeReader, Store, lists_marks

_REPLACED: Final = "another command has replaced the version since it was listed"
_OPENINGS: Final = 48
"""How many shards of far storage are opened at a time: each is a wait, and may read an index of some MiB."""
_ASKED_ALONE: Final = 16
"""So many files are asked whether they changed one by one, which is one wait; more of them are listed."""


class Checkpoint(Mapping[str, npt.NDArray[np.generic]]):
    """One version, opened: a mapping of the names of its dense variables to their values, with its `tables` beside.

    Use it as a context manager. It is safe to read from several threads. Values are read at each access; after `close`
    that is a UsageError, which is a ValueError. What headers say (shards, names, infos) stays.
    """

    def __init__(
        self,
        version: Version,
        shards: Sequence[ShardIndex],
        readers: Mapping[str, RangeReader],
        store: Store,
        lost: Sequence[LostShard] = (),
    ) -> None:
        self.version = version
        self.lost = tuple(lost)
        """The shards that are listed and cannot be read, where that was allowed."""
        read = {shard.file.path for shard in shards}
        self.cut = {one.path: one.offset or 0 for one in lost if one.path in read}
        """Of these, by path, those that end too early, and the byte up to which all that they have was read."""
        self.store = store
        """The store that the version is in."""
        self.shards = tuple(shards)
        self._readers = OpenFiles(readers, self.lost)
        self.closed = False
        """True after `close`: values can no longer be read."""
        self.is_far = version.location.is_far
        """True where each read takes a request."""
        self.infos = {info.name: info for shard in reversed(self.shards) for info in shard.infos}
        """Every table's info by name: the first shard's, where they differ."""
        self._placements: dict[str, Placement] = {}
        self._entries: dict[str, list[tuple[ShardIndex, TableEntry]]] = {name: [] for name in self.infos}
        self._variables: dict[str, tuple[ShardIndex, DenseEntry]] = {}
        for shard in self.shards:
            for entry in shard.tables:
                self._entries.setdefault(entry.name, []).append((shard, entry))
                if entry.placement is not None:
                    self._placements[entry.name] = entry.placement
            for variable in shard.variables:
                self._variables.setdefault(variable.name, (shard, variable))

    def __len__(self) -> int:
        return len(self.variable_names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.variable_names)

    def __contains__(self, name: object) -> bool:
        return name in self._variables and not self._variables[str(name)][1].is_item

    def __getitem__(self, name: str) -> npt.NDArray[np.generic]:
        """Return a variable, or the vectors of a table by their ids; a name may be an end, as commands take it."""
        if name in self._variables:
            return self.variable(name)
        with suppress(NameNotFoundError):
            return np.asarray(self.table(name))
        return self.variable(self.variable_name(name))

    def _ipython_key_completions_(self) -> list[str]:
        """Return what completes `checkpoint["`: variables, tables, and companions as TABLE:NAME."""
        names = {whole: name for name, whole in self.slots.items()}
        return [*self.variable_names, *(names.get(name, name) for name in self.table_names)]

    __eq__ = object.__eq__  # a mapping's would read all values
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        shards, *facts = self._facts()
        content = counted(len(self), "variable"), counted(len(self._entries), "table")
        return describe("Checkpoint", escaped(self.version.ref), shards, *content, *facts)

    def _facts(self) -> tuple[str, ...]:
        state = "closed" if self.closed else ""
        return counted(len(self.shards), "shard"), size(self.version.size_bytes), self.generation, state

    def _repr_html_(self) -> str:
        tables = (
            (name, view.rows, view.dim, view.dtype, view.shown_initializer, Bytes(view.size_bytes))
            for name, view in self.tables.items()
        )
        found = (self._variables[name][1] for name in self.variable_names)
        variables = ((v.name, v.dtype.name, shape(v.shape), Bytes(v.size_bytes)) for v in found)
        columns = ("table", "rows", "dim", "dtype", "initializer", "size")
        shown = [table(columns, tables, len(self._entries), "table")]
        shown.append(table(("variable", "dtype", "shape", "size"), variables, len(self), "variable"))
        return card("Checkpoint", self.version.ref, self._facts(), shown)

    @property
    def tables(self) -> Mapping[str, TableView]:
        """Return every table by its name, in order."""
        return {name: self.table(name) for name in self.table_names}

    @property
    def bytes_read(self) -> int:
        """Return how many bytes were read so far."""
        return sum(reader.bytes_read for reader in self._readers.values())

    @property
    def generation(self) -> str:
        """Return the wire generation, '' when no shard shows it."""
        return max((shard.generation for shard in self.shards), default="")

    @property
    def table_names(self) -> list[str]:
        """Return the names of all tables, with rows or without, in order."""
        return sorted(self._entries)

    @property
    def variable_names(self) -> list[str]:
        """Return the names of all dense variables, in order."""
        return sorted(name for name, (_, entry) in self._variables.items() if not entry.is_item)

    @property
    def item_names(self) -> list[str]:
        """Return the names of all items, in order: texts, values of Python and the like, which are no arrays."""
        return sorted(name for name, (_, entry) in self._variables.items() if entry.is_item)

    def reader(self, shard: ShardIndex, extent: Extent | None = None) -> RangeReader:
        """Return what reads an extent of a shard, by default its first file; UsageError when the checkpoint is closed.

        That is an open file, or rows gathered from some.
        """
        self._check_open()
        if extent is None or not extent.file:
            return self._readers[shard.file.path]
        files = shard.file.files
        if extent.file < len(files):
            return self._readers[files[extent.file].path]
        return GatheredReader(shard.gathered[extent.file - len(files)], [self._readers[f.path] for f in shard.sources])

    @property
    def files(self) -> Mapping[str, RangeReader]:
        """Return the open files, by their paths; UsageError when the checkpoint is closed."""
        self._check_open()
        return self._readers

    @property
    def reads_blocks(self) -> bool:
        """Say whether a read should ask for many bytes, as far storage wants it."""
        return any(reader.block_bytes for reader in self._readers.values())

    def kept(self, table: str) -> set[str]:
        """Return the paths of the shards in `cut` that have all their rows of a table."""
        return self.cut.keys() & {shard.file.path for shard, _ in self._entries.get(table, ())}

    def keep_ids(self, job: Job) -> Mapping[str, RangeReader]:
        """Fetch the ids of all tables from far storage, once, to the local disk; return readers that have them.

        Where they are kept already this does nothing. Nor on a cluster, whose processes would not have them: then
        nothing is returned.
        """
        self._check_open()
        if job.executor.is_cluster:
            return {}
        if self.reads_blocks and not any(isinstance(reader, KeptReader) for reader in self._readers.values()):
            self._readers = self._readers.with_readers(keep(self.shards, self._readers, job.workers))
        return dict(self._readers)

    @property
    def has_near_ids(self) -> bool:
        """Say whether no id needs a request: all are on the local disk."""
        if not self.reads_blocks:
            return True
        runs = ((shard, run) for shard in self.shards for table in shard.tables for run in table.ids)
        some = {id(reader): reader for reader in (self.reader(shard, run) for shard, run in runs if run.is_stored)}
        return all(isinstance(reader, KeptReader) or not reader.block_bytes for reader in some.values())

    def take_ids(self, kept: Mapping[str, RangeReader]) -> None:
        """Use what another opening kept of the same generations of these files."""
        self._readers = self._readers.with_readers(take_over(kept, self._readers))

    def watch(self) -> StoredSums:
        """Sum what is read from now on of the values that have checksums in the files; do so before `take_ids`."""
        sums = StoredSums(self)
        self._readers = self._readers.with_readers(sums.over(self._readers))
        return sums

    def forget_ids(self) -> None:
        """Read everything from the storage again."""
        far = {path: r.inner if isinstance(r, KeptReader) else r for path, r in self._readers.items()}
        self._readers = self._readers.with_readers(far)

    def table_name(self, name: str) -> str:
        """Return the whole name of a table that somebody gave a part of; errors as `whole_name`."""
        return whole_name(name, self._entries, "table", self.version.ref, self.slots)

    def variable_name(self, name: str) -> str:
        """Return the whole name of a variable, or of an item, that somebody gave a part of; errors as `whole_name`."""
        return whole_name(name, self._variables, "variable", self.version.ref)

    @property
    def slots(self) -> Mapping[str, str]:
        """Return the names of companions by what people call them, such as 'user:momentum1'."""
        return slots_of(self.infos.values())

    def has_table(self, name: str) -> bool:
        """Say whether there is a table of a name, with rows or without."""
        return name in self._entries

    def entries(self, table: str) -> list[tuple[ShardIndex, TableEntry]]:
        """Return the shards that have a table, with their entries of it; NameNotFoundError for an unknown name."""
        if table not in self._entries:
            hint = meant(table, called_names(self._entries, self.slots), "tables")
            raise NameNotFoundError(f"no table {table!r}", path=self.version.ref, hint=hint)
        return self._entries[table]

    def has_entry(self, name: str) -> bool:
        """Say whether there is a variable or an item of a name."""
        return name in self._variables

    def find_variable(self, name: str) -> tuple[ShardIndex, DenseEntry]:
        """Return the first shard that has a variable or an item, with its entry; NameNotFoundError for another name."""
        if name not in self._variables:
            hint = meant(name, self._variables, "variables")
            raise NameNotFoundError(f"no variable {name!r}", path=self.version.ref, hint=hint)
        return self._variables[name]

    def find_array(self, name: str, *, bits: bool = False) -> tuple[ShardIndex, DenseEntry]:
        """Return the same of a variable that numpy can have, with `bits` as bits; UnsupportedError for any other."""
        shard, entry = self.find_variable(name)
        if not in_numpy(entry.dtype, bits=bits):
            what = "no array" if entry.is_item else "numpy has no such elements"
            hint = "commands move, rename and drop it as it is"
            raise UnsupportedError(f"{name!r} is {entry.dtype.name}: {what}", path=self.version.ref, hint=hint)
        return shard, entry

    def table_dtype(self, table: str) -> DType | None:
        """Return the element type of a table's vectors, None for a table without rows."""
        return next((t.dtype for _, t in self.entries(table) if t.dtype), None)

    def placement(self, table: str) -> Placement:
        """Return the rule by which rows of a table belong to shards."""
        return self._placements.get(table, self.version.layout.placement)

    def written_dtype(self, table: str) -> DType:
        """Return the element type that a copy of a table is written with: with rows `table_dtype`, else its info's."""
        return table_dtype(self.table_dtype(table), self.infos.get(table))

    def variable(self, name: str, *, bits: bool = False) -> npt.NDArray[np.generic]:
        """Return a dense variable. numpy lacks bfloat16: it becomes float32 of the same values, with `bits` `BFLOAT16`.

        With `bits`, elements of other dtypes that numpy lacks, such as float8, are unsigned integers of their bits. A
        name may be an end that only one variable has. Raises NameNotFoundError, which is a KeyError, for an unknown
        name, UsageError for the end of several, and UnsupportedError as `find_array`.
        """
        shard, entry = self.find_array(self.variable_name(name), bits=bits)
        check_dimensions(entry.name, entry.shape, shard.file.path)
        check_memory(entry.size_bytes, f"variable {entry.name!r}", self.version.ref)
        return read_elements(self, shard, entry, 0, entry.elements, bits=bits).reshape(entry.shape)

    def elements(self, name: str, first: int, count: int) -> npt.NDArray[np.generic]:
        """Return elements [first, first + count) of a dense variable, flat in C order, as far as there are any.

        Only these are read. bfloat16 becomes float32. Raises NameNotFoundError and the errors of reading.
        """
        shard, entry = self.find_array(name)
        return read_elements(self, shard, entry, first, max(0, min(count, entry.elements - first)))

    def table(self, name: str, *, batch_rows: int = 65_536) -> TableView:
        """Return a table: iterate over it to read it in batches of at most `batch_rows` rows, or take `to_numpy()`.

        A name may be an end that only one table has, and `user:momentum1` is a companion of the table `user`. Batches
        have ids int64 [n] and vectors [n, dim], in stored order: that of shards, then of rows. Raises
        NameNotFoundError, which is a KeyError, for an unknown name, UsageError for the end of several, and CorruptError
        where ids and rows differ.
        """
        return TableView(self, self.table_name(name), batch_rows=batch_rows)

    def restore(
        self,
        ps_id: int,
        ps_num: int,
        *,
        all_shards: bool = False,
        out: PartLike | None = None,
        workers: int | None = None,
        reporter: Reporter = WARNINGS,
    ) -> Part:
        """Return the content of parameter server `ps_id` of `ps_num` after it has restored this version.

        As the function `restore`, which opens only the shards that it reads; here all of them are open already.
        """
        from edl_ckpt.core.reading.restoring import restored_part  # most that open a version restore no part

        return restored_part(self, ps_id, ps_num, all_shards=all_shards, out=out, workers=workers, reporter=reporter)

    def check_unchanged(self) -> None:
        """Raise LockedError when a shard's file has changed since it was opened."""
        self._check_open()
        rest, store = list(self._readers.values()), self.store
        if lists_marks(store) and len(rest) > _ASKED_ALONE:  # a listing answers for a thousand files
            folders = {reader.path.removeprefix(store.path("")).rpartition("/")[0] for reader in rest} - {""}
            shown = {(entry.path, entry.mark) for folder in folders for entry in store.below(folder, lambda _: True)}
            rest = [reader for reader in rest if (reader.path, reader.mark) not in shown]
        run_all(lambda reader: reader.check_unchanged(), rest, openings(store))

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError("the checkpoint is closed", path=self.version.ref)

    def close(self) -> None:
        """Close every shard file; more than once is no error."""
        self.closed = True
        for reader in self._readers.values():
            reader.close()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_checkpoint(
    version: catalog.VersionLike,
    *,
    partial: bool | Literal["whole"] = False,
    staged: bool = False,
    workers: int | None = None,
) -> Checkpoint:
    """Open a version, or the version that a reference such as 'runs/a@latest' names.

    Raises IncompleteError when shards are missing, CorruptError when one is damaged or shards contradict each other.
    With `partial`, the shards that can be read are opened, the damaged ones are in `lost`, and contradictions are left
    to `verify`; `loss_of` says what is lost with them. A shard that ends too early is opened up to that byte, but not
    with "whole". `staged` is for files that only this process writes, so that no other command can have replaced them.
    `workers` shards are opened at a time, by default one on a file system and 48 on storage where each takes requests.

    >>> with open_checkpoint("run@latest") as checkpoint:
    ...     checkpoint["bias"].shape, checkpoint.table("user").to_numpy([3, 1]).ids.tolist()
    ((8,), [3, 1])
    """
    version = catalog.as_version(version)
    _check_state(version, partial=bool(partial))
    store = open_store(version.location)
    lost: dict[str, LostShard] = {}
    workers = workers or openings(store)
    with ExitStack() as opened:

        def lose(file: ShardFile, error: EdlCkptError) -> bool:
            lost.setdefault(file.path, _lost_shard(file, error))
            return partial is True

        def begin(file: ShardFile) -> RangeReader | None:
            try:
                return opened.enter_context(store.open(file.path, listed_bytes=file.size_bytes))
            except (CorruptError, NotFoundError) as error:
                if not partial:
                    raise
                lose(file, error)
                return None

        try:
            # Near files are opened at once: nothing is read ahead, and they should be of one moment.
            readers = Openings(version.files, begin, workers=workers, at_once=not store.properties.round_trips)
            shards = source_of(version).index(version, readers, workers=workers, on_fault=lose if partial else None)
            readers.open_all()
            shards = [shard for shard in shards if shard.file.path in readers]  # with `partial`, the others are lost
            _compare_sizes(version, store, lose if partial is True else None)
            if not staged and any(one.code == "missing-shard" for one in lost.values()):
                check_not_replaced(version)
        except NotFoundError:
            if not staged:
                check_not_replaced(version)
            raise
        if not (staged or version.has_only_shards or version.location.is_far):
            _check_of_one_save(version)
        if not partial:
            raise_problems(version, shards)
        opened.pop_all()
    return Checkpoint(version, shards, readers.open, store, sorted(lost.values(), key=lambda one: one.shard or 0))


def _lost_shard(file: ShardFile, error: EdlCkptError) -> LostShard:
    """Return a shard that cannot be read; raises an error of the storage, which says nothing of the shard."""
    if not isinstance(error, CorruptError | NotFoundError | UnsupportedError):
        raise error
    return LostShard.of(file.ps_id, file.path, error)


def _compare_sizes(version: Version, store: Store, on_fault: OnFault | None) -> None:
    """Give the files to `on_fault` that have fewer bytes than a seal says: no header shows a cut at a field's end."""
    if not version.seal_fault or on_fault is None:
        return
    sizes: Mapping[str, int] = {}
    with suppress(EdlCkptError):
        sizes = getattr(read_seal(store, version.key), "sizes", sizes)
    for file in version.files:
        size_bytes, sealed = file.size_bytes, sizes.get(version.name_of(file.path), 0)
        if size_bytes < sealed:
            fault = f"ends after {size_bytes:,} of {sealed:,} bytes"
            on_fault(file, CorruptError(fault, code="truncated", path=file.path, offset=size_bytes))


def openings(store: Store) -> int:
    """Return how many shards of a store are opened at a time: where each takes a request, many."""
    return _OPENINGS if store.properties.round_trips else 1


def _check_of_one_save(version: Version) -> None:
    """Raise ReplacedError when files were replaced while they were opened: an index does not say whose it is."""
    now: list[tuple[int, float]] = []
    with suppress(OSError):
        now = [(stat.st_size, stat.st_mtime) for stat in (os.stat(file.path) for file in version.files)]
    if now != [(file.size_bytes, file.modified) for file in version.files]:
        raise ReplacedError(_REPLACED, path=version.path)


def check_not_replaced(version: Version) -> None:
    """Raise ReplacedError when a version has new shards since its listing; for callers that found something wrong.

    On storage without rename, new shards always have new names. Elsewhere their times differ.
    """
    if version.is_alone or version.is_file:
        return  # a file, which no command of ours replaces in place
    now = next((v for v in catalog.list_versions(version.location).versions if v.path == version.path), None)
    has_times = not version.location.is_far
    listed, found = (
        {(s.path, s.size_bytes, s.modified if has_times else 0.0) for s in v.files} for v in (version, now or version)
    )
    if found - listed:
        raise ReplacedError(_REPLACED, path=version.path)


def _check_state(version: Version, *, partial: bool) -> None:
    if version.replaced_by:
        raise catalog.being_replaced(version.ref, version.replaced_by)
    if version.fault and not (partial and version.shards):
        raise version.fault.error()
    if version.state is State.MIXED:
        counts = sorted({s.ps_num for s in version.shards})
        raise CorruptError(
            f"the directory has files of several ps_num: {abridged(counts, 20)}",
            code="mixed-ps-num",
            path=version.path,
            hint=f"try: {command('verify', version.ref)}",
        )
    if version.state in {State.INCOMPLETE, State.WRITING} and not partial:
        problem = version.absent or "the version has no shard"
        writing = "; a job may still be writing it" if version.state is State.WRITING else ""
        hint = "`inspect` shows what is left, and `export --partial` takes it out" if version.shards else None
        raise IncompleteError(f"{problem}{writing}", path=version.path, hint=hint)


def raise_problems(version: Version, shards: Iterable[ShardIndex]) -> None:
    """Raise CorruptError for the first problem that makes the values unreliable, with the number of others."""
    blocking = source_of(version).blocking(version, list(shards))
    if blocking:
        error = problem_error(version, *blocking[0], others=len(blocking) - 1)
        error.offset = blocking[0][1].offset
        raise error


def problem_error(version: Version, shard: ShardIndex | None, problem: Problem, *, others: int = 0) -> CorruptError:
    """Return the error for a problem of a version, or of one of its shards; `others` are more of them."""
    path = shard.file.path if shard else version.path
    code = "missing-table-info" if problem.code == "lost-info" else problem.code
    message = f"{problem.subject!r}: {problem.message}" + (f" (and {others} more)" if others else "")
    return CorruptError(message, code=code, path=path, hint=f"try: {command('verify', version.ref)}")
