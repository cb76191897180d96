"""Files of torch.save among the files of a step: a file, a set with an index, or one file of each rank.

A step in which another system has files is that system's: what torch.save wrote beside them goes along, as before. A
listing reads the begin and the end of each file. The files of a step are those that `groups` names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.sources.interface import NotOfFormatError, OtherFormatError
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files, read_head
from edl_ckpt.core.sources.torch.groups import Groups, grouped
from edl_ckpt.core.sources.torch.kinds import check_kind
from edl_ckpt.core.sources.torch.names import INDEX, is_named_so, set_named
from edl_ckpt.core.sources.torch_checkpointing.names import files_by_item
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

_OTHERS: Final = (".distcp", ".safetensors", ".safetensors.index.json")
"""What other systems of torch's world write: a step with such a file is theirs."""


def _is_of_others(path: str) -> bool:
    return path.endswith(_OTHERS) or path.rpartition("/")[2] == ".metadata"


def heads(files: Files) -> Sequence[str]:
    """Return the files whose endings are those of torch.save, and the indexes of sets."""
    if any(map(_is_of_others, files)) or files_by_item(files):
        return []
    return [path for path in files if is_named_so(path) or path.endswith(INDEX)]


def digest(file: RangeReader) -> Digest:
    """Return of an index the files that it lists, and of a file of torch.save True.

    Raises NotOfFormatError for a file that is none, CorruptError for one that was cut, UnsupportedError for one that is
    recognised and not read.
    """
    if not file.path.endswith(INDEX):
        check_kind(file)
        return True
    try:
        return files_in_index(read_head(file))
    except CorruptError as error:
        if words := recognised_file(file):
            raise UnsupportedError(words, path=file.path) from error
        raise


def files_in_index(data: bytes) -> list[str]:
    """Return the files that an index lists, in order; CorruptError for a path that leads out of its directory."""
    weights = parse_object(data, "").get("weight_map")
    names = weights.values() if isinstance(weights, dict) else [None]
    if not all(isinstance(name, str) for name in names):
        raise CorruptError("there is no weight_map in it")
    for name in sorted(set(names)):
        if {"", ".", ".."} & {*name.split("/")} or "\\" in name or "\0" in name or not is_named_so(name):
            raise CorruptError(f"weight_map names a file that is none of its set: {name!r:.80}")
    return sorted(set(names))


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of each shard: of a rank, of a set, or by themselves; and what an index or a rank lacks."""
    del files
    foreign = {path for path, known in digests.items() if isinstance(known, NotOfFormatError)}
    recognised = {path for path in foreign if isinstance(digests[path], OtherFormatError)}
    listed = _files_by_index({path: known for path, known in digests.items() if path not in foreign})
    paths = {path for path in digests if path not in listed and path not in foreign - recognised}
    if not paths and not listed:
        return None
    groups = grouped(paths, listed)
    if not listed and not groups.unsupported and recognised.issuperset(groups.paths):
        return _claim_of_others(recognised, digests)
    torn = list(groups.lacks)
    unsupported = [groups.unsupported] if groups.unsupported else []
    for path in sorted({*groups.paths, *listed}):
        fault = digests[path]
        if isinstance(fault, Exception):
            reasons = unsupported if _is_unread(fault) else torn
            reasons.append(words_of(path, fault))
    shards, ps_num = shards_of(groups)
    return Claim(shards, ps_num, sorted(listed), torn, "; ".join(unsupported), yields=True)


def _files_by_index(digests: Mapping[str, Digest | Exception]) -> dict[str, list[str] | None]:
    """Return the files that each index of a set lists; None for an index that cannot be read."""
    listed: dict[str, list[str] | None] = {}
    for path, names in digests.items():
        if path.endswith(INDEX):
            folder = path[: path.rfind("/") + 1]
            listed[path] = None if isinstance(names, Exception) else [folder + name for name in names]
    return listed


def _claim_of_others(recognised: Collection[str], digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return a claim that says which other formats the files of a step have; None where none was recognised."""
    if not recognised:
        return None
    words = sorted(f"{path}: {getattr(digests[path], 'message', '')}" for path in recognised)
    return Claim({}, None, unsupported="; ".join(words), yields=True)


def _is_unread(fault: object) -> bool:
    return isinstance(fault, UnsupportedError | OtherFormatError)


def words_of(path: str, fault: object) -> str:
    """Return what is wrong with a file."""
    offset = getattr(fault, "offset", None)
    return f"{path}: {getattr(fault, 'message', fault)}" + ("" if offset is None else f" (at byte {offset:,})")


def shards_of(groups: Groups) -> tuple[dict[int, list[str]], int]:
    """Return the files of each shard by its number, and how many there should be: ranks, the files of a set, or all."""
    shards: dict[int, list[str]] = {}
    if groups.of_ranks:
        for files in groups.of_ranks.values():
            for rank, path in files.items():
                shards.setdefault(rank, []).append(path)
        return shards, groups.ranks
    paths = groups.paths
    in_sets = [name for path in paths if (name := set_named(path)) is not None]
    totals = {total for _, _, total in in_sets}
    if len(groups.wholes) == 1 and len(in_sets) == len(paths) and len(totals) == 1:
        shards = {number - 1: [path] for path, (_, number, _) in zip(paths, in_sets, strict=True)}
        return shards, totals.pop()
    return {number: [path] for number, path in enumerate(paths)}, len(paths)


def index(content: Content) -> None:
    """Add the tensors of all files that are open, joined from the files of ranks, and all else as items."""
    from edl_ckpt.core.sources.torch.indexing import add_all

    add_all(content)
