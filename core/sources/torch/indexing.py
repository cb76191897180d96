"""The files of torch.save as variables, tables and items: those of ranks are joined.

A tensor whose placement is in the file is a box of a whole one, and all boxes must tile it; ranks that have the same
box must have the same bytes, by the checksums in the files. A plain tensor, or a value, that all ranks have alike is
there once; where ranks differ, each has its own under a name that ends with its rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.base.words import abridged
from edl_ckpt.core.model.dtypes import DTYPES, item_type
from edl_ckpt.core.model.tables import DenseEntry, Extent, Problem, StoredSum
from edl_ckpt.core.sources.dcp.boxes import BoxValues, SavedTensor
from edl_ckpt.core.sources.dcp.indexing import add_variable
from edl_ckpt.core.sources.dcp.metadata import IndexedTensor, Item, SavedBox
from edl_ckpt.core.sources.dcp.names import shown_names
from edl_ckpt.core.sources.dcp.tables import add_tables
from edl_ckpt.core.sources.dcp.tiling import untiled
from edl_ckpt.core.sources.interface import NotOfFormatError
from edl_ckpt.core.sources.steps.content import Content, Found, problem_of
from edl_ckpt.core.sources.steps.interface import read_head
from edl_ckpt.core.sources.torch.files import FileContents, FileTensor, FileValue, open_file
from edl_ckpt.core.sources.torch.format import files_in_index
from edl_ckpt.core.sources.torch.groups import Groups, grouped
from edl_ckpt.core.sources.torch.kinds import check_kind
from edl_ckpt.core.sources.torch.names import INDEX, is_named_so
from edl_ckpt.core.sources.torch.sharding import Piece

VALUE: Final = "value"
UNKNOWN_CLASS: Final = "unknown-class"
_PICKLE: Final = "its pickle"


class Source(NamedTuple):
    """A file, the rank that it is of, and what its names begin with."""

    path: str
    rank: int
    file: Found
    contents: FileContents


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor in one file."""

    source: Source
    tensor: FileTensor

    @property
    def stored(self) -> tuple[str, tuple[int, ...], tuple[int, ...], int, int, int]:
        """Return what is the same of two parts with the same bytes."""
        values = self.tensor.values
        return (values.dtype, values.shape, values.strides, values.first - values.start, values.end - values.start,
                values.crc)  # fmt: skip

    def boxes(self) -> list[BoxValues]:
        """Return its boxes, with elements or without."""
        values, share = self.tensor.values, self.tensor.share
        whole = Piece((0,) * len(values.shape), values.shape, (0,) * len(values.shape))
        pieces = (whole,) if share is None else share.pieces
        found = []
        for piece in pieces:
            first = values.first + sum(n * stride for n, stride in zip(piece.inner, values.strides, strict=True))
            placed = replace(values, shape=piece.sizes, first=first)
            item = Item("", piece.offsets, self.source.path, values.start, values.end)
            found.append(BoxValues(SavedBox(piece.offsets, piece.sizes), self.source.file, placed, item))
        return found


def add_all(content: Content) -> None:
    """Add what the open files of a version have."""
    groups = _groups(content)
    every = groups.of_ranks or {name: dict(enumerate(paths)) for name, paths in groups.wholes.items()}
    by_group = {name: list(_opened(content, files)) for name, files in every.items()}
    contents = {name: [source.contents for source in sources] for name, sources in by_group.items()}
    add_sources(content, by_group, prefixes_of(contents, is_ranked=bool(groups.of_ranks)), ranks=groups.ranks)


def add_sources(
    content: Content, by_group: Mapping[str, Sequence[Source]], prefixes: Mapping[str, str], *, ranks: int
) -> None:
    """Add what the files of some groups have, whose names begin with these; `ranks` is 0 for files of no ranks."""
    saved: dict[str, SavedTensor] = {}
    for group, sources in by_group.items():
        prefix, title = prefixes[group], group.rpartition("/")[2]
        for source in sources:
            _add_sums(source, prefix)
            _add_problems(source, prefix)
        _add_values(sources, prefix, title, is_ranked=bool(ranks))
        _add_tensors(saved, sources, prefix, title, ranks=ranks)
    if content.tables:
        others = {name: one for name, one in saved.items() if one.tensor.dtype not in DTYPES or not one.whole}
        for name in others:
            del saved[name]
        add_tables(saved)
        saved |= others
    for one in saved.values():
        add_variable(one)
    for shard in content.shards.values():
        shard.infos = list(dict.fromkeys(shard.infos))


def _groups(content: Content) -> Groups:
    """Return the groups of the files that are open, as a listing would find them."""
    paths: list[str] = []
    listed: dict[str, list[str] | None] = {}
    for path, found in content.files.items():
        if path.endswith(INDEX) and found.reader is not None:
            folder = path[: path.rfind("/") + 1]
            try:
                listed[path] = [folder + name for name in files_in_index(read_head(found.reader))]
            except CorruptError as error:
                error.path = error.path or found.file.path
                content.fail(found.shard, error)
        elif is_named_so(path) and (found.reader is None or _is_of_format(found)):
            paths.append(path)
    return grouped(paths, listed)


def _is_of_format(found: Found) -> bool:
    """Say whether an open file is one of torch.save; one that was cut is."""
    try:
        if found.reader is not None:
            check_kind(found.reader)
    except NotOfFormatError:
        return False
    except EdlCkptError:
        pass
    return True


def _opened(content: Content, files: Mapping[int, str]) -> Iterable[Source]:
    """Yield the files that can be read, with their ranks."""
    for rank, path in sorted(files.items()):
        found = content.files.get(path)
        if found is None or found.reader is None:
            continue
        try:
            yield Source(path, rank, found, open_file(found.reader))
        except (CorruptError, UnsupportedError) as error:
            content.fail(found.shard, error)


def prefixes_of(by_group: Mapping[str, Sequence[FileContents]], *, is_ranked: bool) -> dict[str, str]:
    """Return what the names of each group begin with: nothing where there is one group."""
    if len(by_group) < 2:
        return dict.fromkeys(by_group, "")
    if not is_ranked:
        return {group: f"{group}/" for group in by_group}
    names: dict[str, set[str]] = {}
    for group, files in by_group.items():
        of_group = names.setdefault(f"{group}/", set())
        for contents in files:
            of_group.update(".".join(tensor.path) for tensor in contents.tensors)
    found: dict[str, str] = {}
    for folder, shown in shown_names(names).items():
        before = {name.removesuffix(old) for old, name in shown.items()}
        found[folder.removesuffix("/")] = max(before, default=folder.replace("/", "."), key=len)
    return found


def titled(prefix: str, path: Sequence[str], title: str) -> str:
    """Return the name of a value by its path; a value outside of dicts has the name of its file."""
    if path:
        return prefix + ".".join(path)
    return prefix.rstrip("./") or title


def _add_sums(source: Source, prefix: str) -> None:
    """Add the checksums that a file has: first that of its pickle, which has all values that are no tensors."""
    for one in source.contents.sums:
        name = titled(prefix, one.path, _PICKLE) if one.path else f"{source.path}: {_PICKLE}"
        extent = Extent(one.place.start, one.place.end, file=source.file.number)
        source.file.shard.sums.append(StoredSum(name, "crc32", one.place.crc, (extent,)))


def _add_problems(source: Source, prefix: str) -> None:
    """Add what is not read of a file, and the classes that are not known."""
    problems = source.file.shard.problems
    for unread in source.contents.unread:
        problems.append(problem_of(unread.error, titled(prefix, unread.path, source.path), unread.start))
    for name, path in source.contents.classes.items():
        message = f"an object of {name}, which is not known here: it is one item, and was not made"
        problems.append(Problem(UNKNOWN_CLASS, titled(prefix, path, source.path), None, message, warning=True))


def _add_values(sources: Sequence[Source], prefix: str, title: str, *, is_ranked: bool) -> None:
    """Add the values that are no tensors: once where all files have the same one, else one of each rank."""
    found: dict[str, list[tuple[Source, FileValue]]] = {}
    for source in sources:
        for value in source.contents.values:
            found.setdefault(titled(prefix, value.path, title), []).append((source, value))
    for name, places in found.items():
        same = {value.content for _, value in places}
        for source, value in places[:1] if len(same) == 1 else places:
            own = name if len(same) == 1 or not is_ranked else f"{name}.rank_{source.rank}"
            extent = Extent(value.start, value.end, file=source.file.number)
            shape = () if value.scalars is None else (value.scalars,)
            entry = DenseEntry(own, item_type(VALUE), shape, extent, value.start)
            source.file.shard.variables.append(entry)


def _add_tensors(
    saved: dict[str, SavedTensor], sources: Sequence[Source], prefix: str, title: str, *, ranks: int
) -> None:
    """Add the tensors of a group, each by its name."""
    found: dict[str, list[_Part]] = {}
    for source in sources:
        for tensor in source.contents.tensors:
            found.setdefault(titled(prefix, tensor.path, title), []).append(_Part(source, tensor))
    is_whole = len(sources) == ranks or not ranks
    for name, parts in found.items():
        problems = parts[0].source.file.shard.problems
        try:
            for own, joined in _joined(name, parts, is_whole=is_whole):
                if own in saved:
                    message = "another value has this name too: it is not shown"
                    problems.append(Problem("duplicate-variable", own, joined.first.item.start, message))
                saved.setdefault(own, joined)
        except (CorruptError, UnsupportedError) as error:
            problems.append(problem_of(error, name, parts[0].tensor.values.start))


def _joined(name: str, parts: Sequence[_Part], *, is_whole: bool) -> list[tuple[str, SavedTensor]]:
    """Return the tensor that some parts are of; of plain ones that differ each by its own name."""
    if all(part.tensor.share is None for part in parts):
        return _plain(name, parts)
    shape = _shape_of(parts)
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], list[tuple[_Part, BoxValues]]] = {}
    for part in parts:
        for box in part.boxes():
            boxes.setdefault((box.piece.offsets, box.piece.sizes), []).append((part, box))
    for (offsets, _), copies in boxes.items():
        _check_copies(offsets, copies)
    first_copies = [copies[0][1] for copies in boxes.values()]
    if 0 in shape:
        return [(name, _tensor(name, shape, first_copies or [_empty(parts[0], shape)]))]
    fault = untiled(shape, [box.piece for box in first_copies])
    if fault and not is_whole:
        ranks = abridged([str(part.source.rank) for part in parts], 4)
        raise UnsupportedError(f"only the parts of rank {ranks} are here, of a tensor {list(shape)}")
    if fault:
        raise CorruptError(fault)
    return [(name, _tensor(name, shape, first_copies))]


def _plain(name: str, parts: Sequence[_Part]) -> list[tuple[str, SavedTensor]]:
    """Return the tensor that all ranks have alike; else that of each rank, which the name says."""
    if len(parts) == 1 or len({part.stored for part in parts}) == 1:
        parts = parts[:1]
        names = [name]
    else:
        names = [f"{name}.rank_{part.source.rank}" for part in parts]
    return [(own, _tensor(own, part.tensor.values.shape, part.boxes())) for own, part in zip(names, parts, strict=True)]


def _shape_of(parts: Sequence[_Part]) -> tuple[int, ...]:
    """Return the shape of the tensor that parts say they are of; CorruptError unless all say the same."""
    shapes = {None if part.tensor.share is None else part.tensor.share.shape for part in parts}
    dtypes = {part.tensor.values.dtype for part in parts}
    shape = shapes.pop()
    if shapes or shape is None or len(dtypes) != 1:
        raise CorruptError("its parts are of different shapes or dtypes")
    return shape


def _empty(part: _Part, shape: tuple[int, ...]) -> BoxValues:
    values = part.tensor.values
    item = Item("", (0,) * len(shape), part.source.path, values.start, values.end)
    strides = tuple(0 for _ in shape)
    placed = replace(values, shape=shape, strides=strides)
    return BoxValues(SavedBox((0,) * len(shape), shape), part.source.file, placed, item)


def _tensor(name: str, shape: tuple[int, ...], boxes: list[BoxValues]) -> SavedTensor:
    pieces = tuple(box.piece for box in boxes)
    return SavedTensor(IndexedTensor(name, boxes[0].values.dtype, shape, pieces), boxes)


def _check_copies(offsets: Sequence[int], copies: Sequence[tuple[_Part, BoxValues]]) -> None:
    """Raise CorruptError where ranks that have the same box have other bytes, by the checksums of their storages."""
    first, *others = copies
    different = [part for part, _ in others if part.stored != first[0].stored and _is_comparable(part, first[0])]
    if different:
        ranks = abridged([str(part.source.rank) for part in (first[0], *different)], 4)
        message = f"ranks {ranks} have copies of the box at {list(offsets)} that differ"
        raise CorruptError(message, code="replicas-differ", offset=first[1].item.start)


def _is_comparable(part: _Part, other: _Part) -> bool:
    """Say whether the checksums of two parts tell whether their values are the same: they have the same layout."""
    return part.stored[:-1] == other.stored[:-1]
