"""Checkpoints of torch_checkpointing among the steps of a location: one file for each item and rank.

With `metadata.pkl` the content says which system it is, and all files of the step are its own. Without it the names do,
and only where no other format has a part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.model.systems import System
from edl_ckpt.core.sources.interface import NotOfFormatError
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.sources.torch.format import words_of
from edl_ckpt.core.sources.torch.kinds import check_kind
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA, RUNNING, files_by_item, item_named, lacking
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

about: Final = System(
    "torch-checkpointing", "torch_checkpointing", "rank", writes=True, judged_with=("torch_checkpointing 0.1.1",)
)
system: Final = about.name
marks: Final = ("_0.pt", METADATA)
alone: Final = True
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
    is_named = known is not None and not isinstance(known, NotOfFormatError)
    named = known["files"] if isinstance(known, dict) else {}
    items = files_by_item([path for path in files if path != METADATA]) if not is_named else {}
    if not is_named and not items:
        return None
    if is_named:
        items = _items(files, named)
    ranks = known["ranks"] if isinstance(known, dict) else max(max(every) for every in items.values()) + 1
    lacks = [
        f"{path} is missing: rank {rank} of {ranks} of {item}"
        for item, every in named.items()
        for rank, path in every.items()
        if path not in files
    ]
    if not is_named or any(files_of_item for files_of_item in items.values()):
        lacks += lacking(items, ranks, items.keys() - named.keys())
    read = {METADATA, *(path for every in items.values() for path in every.values())}
    faults = {path: fault for path, fault in digests.items() if isinstance(fault, Exception) and path in read}
    lacks += [words_of(path, fault) for path, fault in faults.items() if not isinstance(fault, UnsupportedError)]
    root = next((one.path.removesuffix(f"/{path}") for path, one in files.items()), "")
    if root.rpartition("/")[2].startswith(RUNNING):
        lacks.append(_RUNNING)
    shards: dict[int, list[str]] = {}
    for every in items.values():
        for rank, path in every.items():
            if path in files:
                shards.setdefault(rank, []).append(path)
    return Claim(
        shards,
        ranks,
        [METADATA] if is_named else (),
        lacks,
        "; ".join(words_of(path, fault) for path, fault in faults.items() if isinstance(fault, UnsupportedError)),
        yields=not is_named,
        owns=is_named,
    )


def _items(files: Files, named: Mapping[str, Mapping[str, str]]) -> dict[str, dict[int, str]]:
    """Return the files of each item by rank: those that the metadata name, and others by their names."""
    taken = {path for every in named.values() for path in every.values()}
    found = {item: {int(rank): path for rank, path in every.items()} for item, every in named.items()}
    for path in files:
        named_so = item_named(path)
        if path not in taken and named_so is not None:
            found.setdefault(named_so[0], {})[named_so[1]] = path
    return found


def index(content: Content) -> None:
    """Add the tensors of all items, joined from the ranks; other values are items."""
    from edl_ckpt.core.sources.torch_checkpointing.indexing import add_all

    add_all(content)
