"""Files of torch.save as a destination: the files of a version again, with other tensors in their pickles.

All that is no tensor stays in the pickles as it was. Files of ranks are written for as many ranks, or for others where
each DTensor is cut by its rows, or is whole, on a mesh of one dimension; what differs from rank to rank has no place
among other ranks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import prod
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import command
from edl_ckpt.core.converting.changes import Outgoing, OutTable, OutVariable
from edl_ckpt.core.converting.destinations.interface import Destination, Given
from edl_ckpt.core.converting.rows import CountedRows, Cut
from edl_ckpt.core.model.dtypes import DType
from edl_ckpt.core.sources.dcp.writing import OF_TORCH
from edl_ckpt.core.sources.steps.interface import read_head
from edl_ckpt.core.sources.torch.editing import Edit, Path, edited
from edl_ckpt.core.sources.torch.files import FileTensor
from edl_ckpt.core.sources.torch.format import files_in_index
from edl_ckpt.core.sources.torch.groups import Groups, grouped
from edl_ckpt.core.sources.torch.indexing import prefixes_of, titled
from edl_ckpt.core.sources.torch.machine import Value
from edl_ckpt.core.sources.torch.names import INDEX, is_named_so
from edl_ckpt.core.sources.torch.renewing import (
    Meshes,
    NewTensor,
    is_dtensor,
    renewed,
    renewed_dtensor,
    state_of_dtensor,
)
from edl_ckpt.core.sources.torch.sharding import Piece, Placement, dtensor_geometry, share_of
from edl_ckpt.core.sources.torch.writing import PlannedZips, SavedFile, ZipOfTree, new_index, saved_file, zip_plan

OF_RANK: Final = ".rank_"
"""What stands between the name of a value that differs from rank to rank, and its rank."""


class NewFile(NamedTuple):
    """A file to be written: what it is made from, and its rank; None for a file of no rank."""

    path: str
    saved: SavedFile
    rank: int | None


class _Place(NamedTuple):
    """Bytes [start, end) of a tensor, and where they go: a storage of a file, and the offset in it."""

    start: int
    end: int
    file: str
    number: int
    inner: int


@dataclass(slots=True)
class _Draft:
    """A new file while it is laid out."""

    file: NewFile
    meshes: Meshes | None
    values: dict[Path, Callable[[Value], Value]] = field(default_factory=dict)
    keys: dict[Path, str] = field(default_factory=dict)
    gone: set[Path] = field(default_factory=set)
    sizes: list[int] = field(default_factory=list)


class ToTorch(Destination):
    """The files of a version of torch.save, with other tensors in them."""

    system = "torch"
    other_dtypes = OF_TORCH
    of_system = re.compile(r"(?:\.pt|\.pth|\.bin|\.ckpt|\.pth\.tar|\.bin\.index\.json)$")
    known_by_name = False

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self.variables = {variable.source: variable for variable in self.out.variables}
        self._places: dict[str, list[_Place]] = {}
        self._layout = PlannedZips({}, {}, {})

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return the tensors: other values stay in the pickles."""
        if not self.is_own:
            way = command("export", self.source.version.ref, "model.pt", "--format", "torch")
            raise UnsupportedError(f"only a version of {self.system} is written so", hint=f"try: {way}")
        self._items = {variable.source: variable.name for variable in out.variables if variable.is_item}
        return replace(out, variables=tuple(variable for variable in out.variables if not variable.is_item))

    def spread(self, table: OutTable) -> None:
        """Return None: tables go out as tensors."""
        del table

    @cached_property
    def own_names(self) -> frozenset[str]:
        """The files of all shards, and the indexes of sets: a rank's file may have nothing that others have not."""
        version = self.source.version
        claimed = {version.name_of(file.path) for shard in version.shards for file in shard.files}
        return frozenset(name for name in claimed if self.of_system.search(name))

    @cached_property
    def _groups(self) -> Groups:
        """The files that are read, as a listing finds them."""
        listed = {}
        for name in filter(lambda name: name.endswith(INDEX), self.own_names):
            folder = name[: name.rfind("/") + 1]
            listed[name] = [folder + file for file in files_in_index(self.head(name))]
        return grouped([name for name in self.own_names if is_named_so(name)], listed)

    def head(self, name: str) -> bytes:
        """Return a file that is read whole."""
        return read_head(self.source.files[self.source.version.path_of(name)])

    @cached_property
    def saved(self) -> Mapping[str, Mapping[int, SavedFile]]:
        """The files of each group by their ranks, or numbers."""
        groups, version = self._groups, self.source.version
        every = groups.of_ranks or {name: dict(enumerate(paths)) for name, paths in groups.wholes.items()}
        return {
            group: {rank: saved_file(path, self.source.files[version.path_of(path)]) for rank, path in files.items()}
            for group, files in every.items()
        }

    @property
    def old_ranks(self) -> int:
        """Return how many ranks have saved it; 0 for files of no ranks."""
        return self._groups.ranks

    @cached_property
    def prefixes(self) -> Mapping[str, str]:
        """What the names of each group begin with."""
        contents = {group: [file.contents for _, file in sorted(files.items())] for group, files in self.saved.items()}
        return prefixes_of(contents, is_ranked=bool(self.old_ranks))

    def new_names(self) -> Iterator[tuple[str, NewFile]]:
        """Yield the files to be written, each with its group."""
        for group, files in self.saved.items():
            if not self.old_ranks:
                yield from ((group, NewFile(file.path, file, None)) for file in files.values())
                continue
            for rank in range(self.ranks):
                path = f"{group}_world_size_{self.ranks}_rank_{rank}.pt"
                yield group, NewFile(path, files[rank if self.keeps_ranks else 0], rank)

    @property
    def keeps_ranks(self) -> bool:
        """Say whether as many ranks are written as there were."""
        return self.ranks == self.old_ranks

    def lay_out(self, rows: Mapping[str, CountedRows]) -> None:
        """Lay out all files."""
        del rows
        if not self.old_ranks and self.ranks != (self.source.version.ps_num or 1):
            way = command("export", self.source.version.ref, "OUT", "--format", "torch-checkpointing", "--ranks", "N")
            raise UnsupportedError("files of torch.save that are of no rank have no other number", hint=f"try: {way}")
        if self.old_ranks and not self.keeps_ranks:
            self._check_alike()
        zips: dict[str, ZipOfTree] = {}
        sizes: dict[str, list[int]] = {}
        for group, file in self.new_names():
            draft = self._drafted(group, file)
            root = edited(file.saved.root, Edit(draft.values, draft.keys, frozenset(draft.gone)))
            zips[file.path] = zip_plan(file.saved, root, draft.sizes, self.ranks)
            sizes[file.path] = draft.sizes
        self._layout = PlannedZips(zips, sizes, self.other_files())
        for places in self._places.values():
            places.sort()

    def _check_alike(self) -> None:
        """Raise UnsupportedError for what differs from rank to rank, and is to be written for others."""
        for group, files in self.saved.items():
            paths_of_ranks: list[set[Path]] = []
            for file in files.values():
                paths = {tensor.path for tensor in file.contents.tensors}
                paths.update(value.path for value in file.contents.values)
                paths_of_ranks.append(paths)
            for path in sorted(set().union(*paths_of_ranks)):
                title = titled(self.prefixes[group], path, group.rpartition("/")[2])
                names_of_ranks = [f"{title}{OF_RANK}{rank}" for rank in files]
                differing = next((name for name in names_of_ranks if self._goes_out(name)), "")
                is_in_all = all(path in of_rank for of_rank in paths_of_ranks)
                if differing or (self._goes_out(title) and not is_in_all):
                    message = f"{differing or title!r} differs from rank to rank: no rule says what other ranks have"
                    way = "leave it out: edit --drop NAME --output LOCATION; or export --format dcp"
                    raise UnsupportedError(message, path=self.source.version.ref, hint=way)

    def _goes_out(self, name: str) -> bool:
        """Say whether a tensor or an item of the source goes out."""
        return name in self.variables or name in self._items

    def _drafted(self, group: str, file: NewFile) -> _Draft:
        """Return what changes in a file."""
        draft = _Draft(file, None if file.rank is None or self.keeps_ranks else Meshes(file.rank, self.ranks))
        for tensor in file.saved.contents.tensors:
            source = self._source_name(group, tensor.path, file.rank, self.variables)
            variable = self.variables.get(source)
            if variable is None:
                draft.gone.add(tensor.path)
            else:
                self._add_key(draft, tensor.path, source, variable.name)
                self.add_tensor(draft, tensor, variable)
        for value in file.saved.contents.values:
            source = self._source_name(group, value.path, file.rank, self._items)
            if source not in self._items:
                draft.gone.add(value.path)
            else:
                self._add_key(draft, value.path, source, self._items[source])
        if () in draft.gone:
            raise UnsupportedError("it is the whole of its file, and is not left out alone", path=file.saved.path)
        return draft

    def _source_name(self, group: str, path: Path, rank: int | None, known: Collection[str]) -> str:
        """Return the name of something in the source: where ranks differ, its own."""
        name = titled(self.prefixes[group], path, group.rpartition("/")[2])
        return f"{name}{OF_RANK}{rank}" if name not in known and rank is not None else name

    def _add_key(self, draft: _Draft, path: Path, source: str, new: str) -> None:
        """Give the last part of a path another name; UnsupportedError for a name with another begin."""
        if new == source:
            return
        ending = source[source.rfind(OF_RANK) :] if OF_RANK in source else ""
        last = path[-1] if path else ""
        before = source.removesuffix(ending).removesuffix(last)
        if not path or not new.startswith(before) or not new.endswith(ending) or len(new) <= len(before + ending):
            message = f"{source!r} keeps the begin of its name, {before!r}: dicts in its file have it"
            raise UnsupportedError(message, path=draft.file.saved.path)
        draft.keys[path] = new[len(before) :].removesuffix(ending)

    def add_tensor(self, draft: _Draft, tensor: FileTensor, variable: OutVariable) -> None:
        """Add the storage of a tensor, or of its rank's part of it."""
        file, node = draft.file, draft.file.saved.objects.get(tensor.path)
        was = self._stored_dtype(variable)
        local, zeros = variable.shape, (0,) * len(variable.shape)
        pieces: tuple[Piece, ...] = (Piece(zeros, local, zeros),)
        whole_shape = tensor.values.shape if tensor.share is None else tensor.share.shape
        if tensor.share is not None:
            if not is_dtensor(node):
                self.check_part(variable)
            local, pieces = tensor.share.local, tensor.share.pieces
            if not self.keeps_ranks:
                placements = self.placements_of(variable, tensor, node)
                local, pieces = share_of(variable.shape, (self.ranks,), (file.rank or 0,), placements)
        if whole_shape != variable.shape:
            raise UnsupportedError(f"{variable.source!r} has another number of rows: files of torch.save keep theirs")
        number = len(draft.sizes)
        draft.sizes.append(prod(local) * variable.dtype.itemsize)
        new = NewTensor(was, variable.dtype, local, number)
        if is_dtensor(node):
            draft.values[tensor.path] = partial(renewed_dtensor, new=new, meshes=draft.meshes)
        else:
            draft.values[tensor.path] = partial(renewed, new=new)
        self.place(variable, file.path, number, pieces)

    def check_part(self, variable: OutVariable) -> None:
        """Raise UnsupportedError for a rank's part of a tensor that is no DTensor."""
        raise UnsupportedError(f"{variable.source!r} is a ShardedTensor: it is not written anew")

    def place(self, variable: OutVariable, file: str, number: int, pieces: Sequence[Piece]) -> None:
        """Say where the boxes of a tensor go that a storage has; UnsupportedError for those without whole rows."""
        row_bytes = prod(variable.shape[1:]) * variable.dtype.itemsize
        places = self._places.setdefault(variable.name, [])
        for piece in pieces:
            if piece.sizes[1:] != variable.shape[1:]:
                way = command("export", self.source.version.ref, "OUT", "--format", "dcp")
                message = f"{variable.source!r} is cut along another dimension than its rows: it is not written so"
                raise UnsupportedError(message, path=self.source.version.ref, hint=f"try: {way}")
            start = piece.offsets[0] * row_bytes if piece.offsets else 0
            inner = piece.inner[0] * row_bytes if piece.inner else 0
            places.append(_Place(start, start + prod(piece.sizes) * variable.dtype.itemsize, file, number, inner))

    def placements_of(self, variable: OutVariable, tensor: FileTensor, node: Value) -> Sequence[Placement]:
        """Return how a tensor is cut over all ranks; UnsupportedError where other ranks have no rule."""
        del tensor
        sizes, placements = dtensor_geometry(state_of_dtensor(node), len(variable.shape))
        if sizes != (self.old_ranks,) or any(p.factor != 1 or p.dim not in {None, 0} for p in placements):
            raise self.no_rule(variable)
        return placements

    def no_rule(self, variable: OutVariable) -> UnsupportedError:
        """Return the error for a tensor of which nothing says what other ranks have."""
        way = command("export", self.source.version.ref, "OUT", "--format", "dcp", "--ranks", "N")
        message = f"{variable.source!r} is not cut by its rows over all ranks: other ranks have no rule"
        return UnsupportedError(message, path=self.source.version.ref, hint=f"try: {way}")

    def _stored_dtype(self, variable: OutVariable) -> DType:
        opened = self.given.whole or self.source
        return opened.find_variable(variable.source)[1].dtype

    def other_files(self) -> Mapping[str, bytes]:
        """Return the indexes of sets, with the new names."""
        names = {variable.source: variable.name for variable in self.out.variables}
        total = sum(variable.size_bytes for variable in self.out.variables)
        found = {}
        for index in filter(lambda name: name.endswith(INDEX), sorted(self.own_names)):
            prefix = self.prefixes.get(index.removesuffix(INDEX), "")
            own = {s.removeprefix(prefix): n.removeprefix(prefix) for s, n in names.items() if s.startswith(prefix)}
            found[index] = new_index(self.head(index), index, own, total)
        return found

    @property
    def new_files(self) -> Mapping[str, int]:
        """Return those of the layout."""
        return self._layout.files

    def cuts(self, name: str) -> Sequence[Cut]:
        """Return where the rows of a tensor go, some to several ranks."""
        return [
            Cut(
                place.start, place.end, self.number(place.file), self._layout.at(place.file, place.number) + place.inner
            )
            for place in self._places[name]
        ]

    @property
    def checksum(self) -> str:
        """Return that of zips."""
        return "crc32"

    @property
    def summed(self) -> Iterator[tuple[tuple[str, int], int, int, int]]:
        """Yield each storage of each file."""
        for file, sizes in self._layout.sizes.items():
            for number, size in enumerate(sizes):
                yield (file, number), self.number(file), self._layout.at(file, number), size

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[int, int, bytes]]:
        """Yield those of the layout."""
        for file, offset, data in self._layout.literals(sums):
            yield self.number(file), offset, data
