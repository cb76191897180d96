"""Checkpoints of torch_checkpointing among the steps of a location: one file for each item and rank.

With `metadata.pkl` the content says which system it is, and all files of the step are its own. Without it the names do,
and only where no other format has a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.interface import NotOfFormatError
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.sources.torch.format import words_of
from edl_ckpt.core.sources.torch.kinds import check_kind
from edl_ckpt.core.sources.torch_checkpointing.names import (
    METADATA,
    RUNNING,
    files_by_item,
    items_of,
    lacking,
    ranks_in,
)
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

_RUNNING: Final = f"its save has not ended: torch_checkpointing renames {RUNNING}STEP when all ranks have written"


def heads(files: Files) -> Sequence[str]:
    """Return the metadata, and the files of torch.save."""
    if METADATA not in files and not files_by_item(files):
        return []
    return [path for path in files if path == METADATA or (path.endswith(".pt") and "/" not in path)]


def digest(file: RangeReader) -> Digest:
    """Return of the metadata the ranks and the files that they name; of a file of torch.save True.

    Raises NotOfFormatError for a file of another program, CorruptError for damage, UnsupportedError for others.
    """
    if file.path.rpartition("/")[2] != METADATA:
        check_kind(file)
        return True
    from edl_ckpt.core.sources.torch_checkpointing.metadata import read_metadata  # 5 ms: few listings have one

    metadata = read_metadata(file)
    files = {item: {str(rank): path for rank, path in ranks.items()} for item, ranks in metadata.files.items()}
    return {"ranks": metadata.ranks, "files": files}


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of each rank; it lacks what the metadata name, and ranks that other items have."""
    known = digests.get(METADATA)
    if known is None or isinstance(known, NotOfFormatError):
        return _claim_by_names(files, digests)
    named: dict[str, dict[int, str]] = {}
    if isinstance(known, dict):
        for item, ranked in known["files"].items():
            named[item] = {int(rank): path for rank, path in ranked.items()}  # the keys of JSON are texts
    items = items_of(files, named)
    ranks = known["ranks"] if isinstance(known, dict) else ranks_in(items)
    lacks = _missing(files, named, ranks)
    if any(items.values()):
        lacks += lacking(items, ranks, items.keys() - named.keys())
    return _claim(files, digests, items, ranks, lacks, has_metadata=True)


def _claim_by_names(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of each rank by their names alone; None where these do not show the system."""
    items = files_by_item([path for path in files if path != METADATA])
    if not items:
        return None
    ranks = ranks_in(items)
    return _claim(files, digests, items, ranks, lacking(items, ranks, items.keys()), has_metadata=False)


def _claim(
    files: Files,
    digests: Mapping[str, Digest | Exception],
    items: Mapping[str, Mapping[int, str]],
    ranks: int,
    lacks: list[str],
    *,
    has_metadata: bool,
) -> Claim:
    """Return the claim of the files of items: it also lacks the damaged ones, and the end of a running save."""
    read = {METADATA, *(path for ranked in items.values() for path in ranked.values())}
    unsupported: list[str] = []
    for path, fault in digests.items():
        if path in read and isinstance(fault, Exception):
            reasons = unsupported if isinstance(fault, UnsupportedError) else lacks
            reasons.append(words_of(path, fault))
    if _is_running(files):
        lacks.append(_RUNNING)
    shards: dict[int, list[str]] = {}
    for ranked in items.values():
        for rank, path in ranked.items():
            if path in files:
                shards.setdefault(rank, []).append(path)
    common = [METADATA] if has_metadata else []
    return Claim(
        shards, ranks or None, common, lacks, "; ".join(unsupported), yields=not has_metadata, owns=has_metadata
    )


def _missing(files: Files, named: Mapping[str, Mapping[int, str]], ranks: int) -> list[str]:
    """Return the files that the metadata name and that are not there, in words."""
    missing: list[str] = []
    for item, ranked in named.items():
        for rank, path in ranked.items():
            if path not in files:
                missing.append(f"{path} is missing: rank {rank} of {ranks} of {item}")
    return missing


def _is_running(files: Files) -> bool:
    """Return True where the directory of the step has the name of a save that has not ended."""
    if not files:
        return False
    path, entry = next(iter(files.items()))
    step_directory = entry.path.removesuffix(f"/{path}")
    return step_directory.rpartition("/")[2].startswith(RUNNING)


def index(content: Content) -> None:
    """Add the tensors of all items, joined from the ranks; other values are items."""
    from edl_ckpt.core.sources.torch_checkpointing.indexing import add_all

    add_all(content)
