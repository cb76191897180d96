"""Checkpoints of torch.distributed.checkpoint (DCP): a `.metadata`, and the files `__R_N.distcp` of each rank R.

`.metadata` is written last, so files without it are no checkpoint yet. It names the items of all files.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.dcp import metadata
from edl_ckpt.core.sources.interface import NotOfFormatError, OtherFormatError
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

HEAD: Final = ".metadata"
_RANK: Final = re.compile(r"__([0-9]{1,6})_[0-9]+\.distcp")
_OF_RANK: Final = re.compile(r"__[0-9]{1,6}\.metadata")
_RANKS_ALONE: Final = "each rank has an index of its own, which is not read (a save with use_collectives=False)"
_NOT_READ: Final = (UnsupportedError, OtherFormatError)
_NAMES: Final = (b"torch.distributed", b"megatron.core")
_HEAD_BYTES: Final = 128
"""The name of the first object in a pickle is before them."""


def heads(files: Files) -> list[str]:
    """Return the indexes of a step: a job may save its model and its optimizer each in a directory of its own.

    Where each rank has kept an index for itself, the first one tells what all of them are.
    """
    every = [path for path in files if path.endswith(HEAD)]
    indexes = [path for path in every if path.rpartition("/")[2] == HEAD]
    if len(indexes) == len(every):
        return indexes
    folders = {_folder(path) for path in indexes}
    own: dict[str, str] = {}
    for path in sorted(every):
        folder = _folder(path)
        if folder not in folders and _OF_RANK.fullmatch(path[len(folder) :]):
            own.setdefault(folder, path)
    return [*indexes, *own.values()]


def is_index(head: bytes) -> bool:
    """Say whether a file begins as a pickle of torch's or Megatron's index does, by the first name in it."""
    return head[:1] == b"\x80" and any(name in head[:_HEAD_BYTES] for name in _NAMES)


def digest(file: RangeReader) -> Digest:
    """Return where the last item in each file ends, by its path; errors as `metadata.ends`.

    Raises NotOfFormatError for a file that is no index of torch, UnsupportedError for that of one rank alone.
    """
    if not is_index(file.read(0, min(file.size_bytes, _HEAD_BYTES))):
        if words := recognised_file(file):
            raise OtherFormatError(words, path=file.path)
        raise NotOfFormatError("it does not begin as an index of torch does", path=file.path, offset=0)
    if file.path.rpartition("/")[2] != HEAD:
        raise UnsupportedError(_RANKS_ALONE, path=file.path)
    return metadata.ends(metadata.read(file))


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the files of each rank; it lacks what an index names and no file has, and an index of files without.

    A link that the index next to it does not name is no file of a rank: it may lead to anything.
    """
    ranked = {path for path in files if _rank(path) is not None}
    indexes = _indexes(digests, {_folder(path) for path in ranked})
    if not ranked and not indexes:
        return None
    faults: dict[str, Exception] = {}
    ends: dict[str, int] = {}
    for path in indexes:
        digest_or_fault = digests[path]
        if isinstance(digest_or_fault, Exception):
            faults[path] = digest_or_fault
        else:
            ends |= {_folder(path) + name: end for name, end in digest_or_fault.items()}
    whole = {_folder(path) for path in indexes if path not in faults}
    ranked = {path for path in ranked if path in ends or not (files[path].linked and _folder(path) in whole)}
    shards: dict[int, list[str]] = {}
    for path in sorted(ranked | (ends.keys() & files.keys())):
        shards.setdefault(_rank(path) or 0, []).append(path)
    lacks = _missing_indexes(ranked - ends.keys(), indexes)
    unsupported: list[str] = []
    for path, fault in faults.items():
        reasons = unsupported if isinstance(fault, _NOT_READ) else lacks
        reasons.append(_words(path, fault))
    lacks += _torn(files, ends)
    last_rank = max((_rank(path) or 0 for path in ends or ranked), default=0)
    is_known = not all(isinstance(known, NotOfFormatError) for known in digests.values())
    return Claim(shards, last_rank + 1, indexes, lacks, "; ".join(unsupported), is_known=is_known)


def _indexes(digests: Mapping[str, Digest | Exception], ranked_folders: Container[str]) -> list[str]:
    """Return the indexes of a step: those of torch, and others of this name only next to a file of a rank."""
    foreign = [path for path, known in digests.items() if isinstance(known, NotOfFormatError)]
    own = [path for path in digests if path not in foreign]
    return own + [path for path in foreign if _folder(path) in ranked_folders]


def _missing_indexes(unnamed: Iterable[str], indexes: Iterable[str]) -> list[str]:
    """Return the indexes that should be next to files of ranks that no index names."""
    folders = {_folder(path) for path in unnamed} - {_folder(path) for path in indexes}
    return [f"{folder}{HEAD}" for folder in sorted(folders)]


def _torn(files: Files, ends: Mapping[str, int]) -> Iterator[str]:
    """Yield what is missing of files whose last items end somewhere."""
    for path, end in sorted(ends.items()):
        if path not in files:
            yield path
        elif files[path].size_bytes < end:
            yield f"{path} ends at byte {files[path].size_bytes:,} of {end:,}"


def _words(path: str, fault: Exception) -> str:
    """Return what is wrong with an index."""
    offset = getattr(fault, "offset", None)
    return f"{path}: {getattr(fault, 'message', fault)}" + ("" if offset is None else f" (at byte {offset})")


def _folder(path: str) -> str:
    """Return the directory of a file, with a slash at its end; '' for that of the step."""
    return path[: path.rfind("/") + 1]


@functools.lru_cache(maxsize=4096)  # each of a thousand steps has the same names
def _rank(path: str) -> int | None:
    """Return the rank that saved a file; None for a file with another name."""
    named = _RANK.fullmatch(path[path.rfind("/") + 1 :])
    return int(named[1]) if named else None


def index(content: Content) -> None:
    """Add the tensors of every index of a version."""
    from edl_ckpt.core.sources.dcp.indexing import add_all

    add_all(content, _indexes_among(content))


def _indexes_among(content: Content) -> list[str]:
    """Return the indexes that are open, by their paths; other files of this name are left alone."""
    ranked_folders = {_folder(path) for path in content.files if _rank(path) is not None}
    found: list[str] = []
    for path, file in content.files.items():
        if path.rpartition("/")[2] != HEAD or file.reader is None:
            continue
        head = file.reader.read(0, min(file.reader.size_bytes, _HEAD_BYTES))
        if _folder(path) in ranked_folders or is_index(head):
            found.append(path)
    return found
