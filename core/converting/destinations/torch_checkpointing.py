"""torch_checkpointing as a destination: tensors cut by rows over ranks, with the metadata that join them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import command
from edl_ckpt.core.converting.changes import Outgoing, OutVariable
from edl_ckpt.core.converting.destinations.dcp import ToDcp
from edl_ckpt.core.converting.destinations.torch import OF_RANK, NewFile, ToTorch
from edl_ckpt.core.sources.dcp.writing import OF_TORCH
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout
from edl_ckpt.core.sources.torch.files import FileTensor
from edl_ckpt.core.sources.torch.indexing import titled
from edl_ckpt.core.sources.torch.machine import Value, read
from edl_ckpt.core.sources.torch.sharding import Placement
from edl_ckpt.core.sources.torch.writing import SavedFile, saved_file
from edl_ckpt.core.sources.torch_checkpointing.indexing import placed
from edl_ckpt.core.sources.torch_checkpointing.metadata import Metadata, read_metadata
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA, files_by_item, item_named
from edl_ckpt.core.sources.torch_checkpointing.renewing import (
    Kept,
    Path,
    path_in,
    placement_of_rows,
    plain_document,
    renewed_metadata,
)
from edl_ckpt.core.sources.torch_checkpointing.writing import items_of, lay_out


class ToTorchCheckpointing(ToDcp):
    """A file of each item and rank, and `metadata.pkl`; tables have the keys that TorchRec gives them."""

    system = "torch-checkpointing"
    other_dtypes = OF_TORCH
    of_system = re.compile(r"(?:^|/)(?:metadata\.pkl|[^/]+_\d+\.pt)$")

    @property
    def is_own(self) -> bool:
        """Return False: values that are no tensors are in the pickles, which are made anew."""
        return False

    def accepted(self, out: Outgoing) -> Outgoing:
        """Return tensors with the names that they will have: those of their items are in front."""
        found = super().accepted(out)
        names = [*(variable.name for variable in found.variables), *(table.name for table in found.tables)]
        new = {name: ".".join(map(str, (item, *path))) for name, (item, path) in items_of(names).items()}
        infos = (
            replace(table.info, name=new[table.name], companion_of=new.get(table.info.companion_of, ""))
            for table in found.tables
        )
        tables = tuple(replace(table, info=info) for table, info in zip(found.tables, infos, strict=True))
        variables = tuple(replace(variable, name=new[variable.name]) for variable in found.variables)
        return replace(found, tables=tables, variables=variables)

    def dense(self, variable: OutVariable) -> Array:
        """Return the array of a tensor, cut by its rows where it has several."""
        return super().dense(replace(variable, in_slabs=bool(variable.shape and variable.shape[0] > 1)))

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files."""
        return lay_out(arrays, self.ranks)

    @property
    def written_ranks(self) -> int:
        """Return the ranks, all of which have a file of each item."""
        return self.ranks


class ToOwnTorchCheckpointing(ToTorch):
    """The files of a version of torch_checkpointing again, with other tensors in them, and metadata that say so.

    The metadata, where there are any, say how plain tensors are cut; DTensors say it themselves.
    """

    system = "torch-checkpointing"

    @cached_property
    def own_names(self) -> frozenset[str]:
        """All files of items, and the metadata; files of somebody else go along."""
        version = self.source.version
        claimed = {version.name_of(file.path) for shard in version.shards for file in shard.files}
        named = {path for files in self._named.values() for path in files.values()}
        items = {name for name in claimed if name in named or item_named(name) is not None}
        return frozenset({*items, METADATA} & {*version.sizes})

    @cached_property
    def _document(self) -> Mapping[str, Any] | None:
        """All of the metadata, of which some is written anew; None without any."""
        if METADATA not in self.source.version.sizes:
            return None
        document: Mapping[str, Any] = plain_document(read(self.head(METADATA))[0])
        return document

    @cached_property
    def _metadata(self) -> Metadata | None:
        """What the metadata say of files and parts; None without any."""
        if METADATA not in self.source.version.sizes:
            return None
        return read_metadata(self.source.files[self.source.version.path_of(METADATA)])

    @property
    def _named(self) -> Mapping[str, Mapping[int, str]]:
        """Return the files that the metadata name, by item and rank."""
        return {} if self._metadata is None else self._metadata.files

    @cached_property
    def _paths(self) -> Mapping[str, Mapping[int, str]]:
        """The file of each item and rank; UnsupportedError for items that are no files of torch.save."""
        names = self.own_names - {METADATA}
        other = min((name for name in names if not name.endswith(".pt")), default="")
        if other:
            way = command("export", self.source.version.ref, "OUT", "--format", self.system, "--ranks", "N")
            message = f"{other!r} is no file of torch.save: an item in such files is not written anew"
            raise UnsupportedError(message, path=self.source.version.ref, hint=f"tensors alone: {way}")
        if self._metadata is None:
            return files_by_item(names)
        found = {item: dict(files) for item, files in self._named.items()}
        taken = {path for files in found.values() for path in files.values()}
        for name in sorted(names - taken):
            named_so = item_named(name)
            if named_so is not None:
                found.setdefault(named_so[0], {})[named_so[1]] = name
        return found

    @property
    def old_ranks(self) -> int:
        """Return how many ranks have saved it."""
        if self._metadata is not None:
            return self._metadata.ranks
        return max(max(files) for files in self._paths.values()) + 1

    @cached_property
    def saved(self) -> Mapping[str, Mapping[int, SavedFile]]:
        """The files of each item by their ranks."""
        return {
            item: {rank: self._saved(item, rank, path) for rank, path in sorted(paths.items())}
            for item, paths in self._paths.items()
        }

    def _saved(self, item: str, rank: int, path: str) -> SavedFile:
        """Return a file with the parts that the metadata give its plain tensors."""
        file = saved_file(path, self.source.files[self.source.version.path_of(path)])
        if self._metadata is None:
            return file
        return replace(file, contents=placed(file.contents, self._metadata.shares.get(item, {}), rank))

    @cached_property
    def prefixes(self) -> Mapping[str, str]:
        """What the names of each item begin with."""
        return {item: f"{item}." for item in self._paths}

    def new_names(self) -> Iterator[tuple[str, NewFile]]:
        """Yield the files to be written, each with its item."""
        for item, files in self.saved.items():
            if self.keeps_ranks:
                yield from ((item, NewFile(file.path, file, rank)) for rank, file in files.items())
                continue
            if [*files] != [*range(self.old_ranks)]:
                message = f"not every rank has a file of {item!r}: other ranks have no rule"
                raise UnsupportedError(message, path=self.source.version.ref)
            for rank in range(self.ranks):
                yield item, NewFile(f"{item}_{rank}.pt", files[0], rank)

    def check_part(self, variable: OutVariable) -> None:
        """Accept a plain tensor whose part the metadata say."""

    @cached_property
    def _entries(self) -> Mapping[str, Any]:
        """What the metadata say of each tensor, by its name."""
        if self._document is None:
            return {}
        return {
            titled(f"{item}.", path_in(text), item): entries
            for item, described in self._document["metadata"].items()
            for text, entries in described["nested_path_to_metadata"].items()
        }

    def placements_of(self, variable: OutVariable, tensor: FileTensor, node: Value) -> Sequence[Placement]:
        """Return how a tensor is cut over all ranks, as the metadata say, or else its DTensor."""
        entries = self._entries.get(variable.source)
        if entries is None:
            return super().placements_of(variable, tensor, node)
        placement = placement_of_rows(entries, self.old_ranks)
        if placement is None:
            raise self.no_rule(variable)
        return [placement]

    def other_files(self) -> Mapping[str, bytes]:
        """Return the metadata with what has changed."""
        if self._document is None:
            return {}
        path = self.source.version.path_of(METADATA)
        return {METADATA: renewed_metadata(self._document, self._kept, self.ranks, path=path)}

    def _kept(self, item: str, path: Path) -> Kept | None:
        """Return what the metadata say from now on of a tensor; None for one that is left out."""
        name = titled(f"{item}.", path, item)
        variable = self.variables.get(name)
        if variable is not None:
            new = None if variable.name == name else variable.name.removeprefix(name.removesuffix(path[-1]))
            return Kept(new, variable.dtype.name)
        own = [self.variables[f"{name}{OF_RANK}{rank}"] for rank in self._paths[item] if self._is_of(name, rank)]
        if own and any(one.name != one.source for one in own):
            raise UnsupportedError(
                f"{name!r} differs from rank to rank: it keeps its name", path=self.source.version.ref
            )
        return Kept(None, own[0].dtype.name) if own else None

    def _is_of(self, name: str, rank: int) -> bool:
        return f"{name}{OF_RANK}{rank}" in self.variables
