"""TensorFlow's tensor bundles: `PREFIX.index` names tensors, `PREFIX.data-SSSSS-of-NNNNN` have their bytes.

So tf.train, Estimator, the variables of a SavedModel, EasyRec, DeepRec, TFPlus and TFRA's tables in a bundle are saved.
A data file is a shard. Of several bundles in one directory, its file `checkpoint` names the one that counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import EdlCkptError, UnsupportedError
from edl_ckpt.core.base.words import abridged, counted
from edl_ckpt.core.sources.bundle.index import read_index, read_index_of
from edl_ckpt.core.sources.bundle.state_file import NAME as STATE_FILE
from edl_ckpt.core.sources.bundle.state_file import STATE_BYTES, name_in, parse_state
from edl_ckpt.core.sources.bundle.table import FOOTER_BYTES, SMALL_BYTES, is_table
from edl_ckpt.core.sources.interface import NotOfFormatError, OtherFormatError
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files
from edl_ckpt.core.storage.interface import RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content, Found

_FILE: Final = re.compile(r"(.*)\.(?:index|data-([0-9]{5})-of-([0-9]{5}))", re.ASCII | re.DOTALL)
_SHOWN: Final = 3


@dataclass(slots=True)
class BundleFiles:
    """The files of one prefix: its index, '' where it is missing, and data files by (number, how many there are)."""

    prefix: str
    index: str = ""
    data: dict[tuple[int, int], str] = field(default_factory=dict)

    @property
    def is_part(self) -> bool:
        """Return True for a part of a bundle that a saver has not merged yet."""
        return self.prefix.rpartition("/")[0].endswith("_temp")

    def name_of(self, number: int, count: int) -> str:
        """Return the name of a data file."""
        return f"{self.prefix}.data-{number:05}-of-{count:05}"


def bundles(names: Iterable[str]) -> list[BundleFiles]:
    """Return the bundles among files, in order; those that a saver has not merged yet only where there are no others.

    >>> [b.prefix for b in bundles(["m-1.index", "m-1_temp/part-00000-of-00001.index", "m-1.meta"])]
    ['m-1']
    """
    every: defaultdict[str, BundleFiles] = defaultdict(lambda: BundleFiles(""))
    for name in names:
        match = _FILE.fullmatch(name)
        if match:
            bundle = every[match[1]]
            bundle.prefix = match[1]
            if match[2] is None:
                bundle.index = name
            else:
                bundle.data[int(match[2]), int(match[3])] = name
    merged = [bundle for bundle in every.values() if not bundle.is_part]
    return sorted(merged or every.values(), key=lambda bundle: bundle.prefix)


def heads(files: Files) -> Sequence[str]:
    """Return the small indexes of a step, and the file that names one of several."""
    every = bundles(files)
    state = [STATE_FILE] if len(every) > 1 and STATE_FILE in files else []
    return [*state, *(bundle.index for bundle in every if bundle.index)]


def digest(file: RangeReader) -> Digest:
    """Return the number of data files of an index and the ends of their tensors; of `checkpoint`, the name in it.

    Of a large index only the footer is looked at: {}. Raises NotOfFormatError for an `.index` that is no table.
    """
    if file.path.rpartition("/")[2] == STATE_FILE:
        return name_in(parse_state(file.read(0, min(file.size_bytes, STATE_BYTES)), file.path).newest)
    if not is_table(file):
        if words := recognised_file(file):
            raise OtherFormatError(words, path=file.path)
        message = f"not the index of a bundle: it does not end with the footer of a table ({file.size_bytes} bytes)"
        raise NotOfFormatError(message, path=file.path, offset=max(file.size_bytes - FOOTER_BYTES, 0))
    if file.size_bytes > SMALL_BYTES:
        return {}
    read = read_index(file.read(0, file.size_bytes))
    return {"shards": read.shards, "ends": {str(shard): end for shard, end in read.ends().items()}}


def claim(files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
    """Return the data files of a bundle as shards, and what it lacks."""
    every = [bundle for bundle in bundles(files) if bundle.data or not _is_foreign(digests.get(bundle.index))]
    every = [bundle for bundle in every if _is_known(bundle, digests)] or every  # names alone tear nothing beside them
    if not every:
        return None
    if every[0].is_part:
        return Claim({}, None, lacks=[f"{counted(len(every), 'part')} of a bundle, not merged yet: {every[0].prefix}"])
    newest = digests.get(STATE_FILE)
    counting = [bundle for bundle in every if bundle.prefix == newest] or every
    if len(counting) > 1:
        prefixes = ", ".join(bundle.prefix for bundle in counting[:_SHOWN])
        reason = f"{counted(len(counting), 'bundle')} in one directory ({prefixes}): name one by its prefix"
        return Claim({}, None, unsupported=reason)
    bundle = counting[0]
    known = digests.get(bundle.index)
    if isinstance(known, UnsupportedError | OtherFormatError):
        return Claim({}, None, common=[bundle.index], unsupported=str(known), is_known=_is_known(bundle, digests))
    return _claim_of(bundle, known, files, is_known=_is_known(bundle, digests))


def _claim_of(bundle: BundleFiles, known: Digest | Exception | None, files: Files, *, is_known: bool) -> Claim:
    """Return the claim of one bundle; `known` is the digest of its index, an error for one that cannot be read."""
    in_index = known if isinstance(known, dict) else {}
    highest_count = max((count for _, count in bundle.data), default=0)
    count = in_index.get("shards", highest_count)
    shards = {number: [name] for (number, of), name in sorted(bundle.data.items()) if number < of == count}
    lacks: list[str] = []
    if isinstance(known, EdlCkptError):
        lacks.append(str(known))
    if not bundle.index:
        lacks.append(f"{bundle.prefix}.index")
    lacks += _missing(bundle, shards, count)
    ends = in_index.get("ends", {})
    for number, (name,) in shards.items():
        size_bytes = files[name].size_bytes
        end = ends.get(str(number), 0)
        if size_bytes < end:
            lacks.append(f"{name} ends at byte {size_bytes:,} of {end:,}")
    common = [bundle.index] if bundle.index else []
    return Claim(shards, count or None, common, lacks, is_known=is_known)


def _is_foreign(known: Digest | Exception | None) -> bool:
    return isinstance(known, NotOfFormatError)


def _is_known(bundle: BundleFiles, digests: Mapping[str, Digest | Exception]) -> bool:
    """Say whether the content of a bundle says that it is one: an index does, the names of data files do not."""
    return bool(bundle.index) and not _is_foreign(digests.get(bundle.index))


def _missing(bundle: BundleFiles, shards: Mapping[int, Sequence[str]], count: int) -> list[str]:
    """Return the first data files that are missing, and how many others."""
    absent = count - len(shards)
    first = [number for number in range(min(count, len(shards) + _SHOWN)) if number not in shards][:_SHOWN]
    names = [bundle.name_of(number, count) for number in first]
    return names + ([f"{absent - len(first)} other data files"] if absent > len(first) else [])


def index(content: Content) -> None:
    """Add the tensors and tables of the bundle whose data files are the shards."""
    from edl_ckpt.core.sources.bundle.tensors import add_tensors

    bundle = _bundle_of(content)
    opened = content.files.get(bundle.index) if bundle else None
    if bundle is None or opened is None or opened.reader is None:
        return
    try:
        read = read_index_of(opened.reader)
    except EdlCkptError as error:
        for shard in list(content.shards.values()):
            content.fail(shard, error)
        return
    data: dict[int, Found] = {}
    for (number, of), name in bundle.data.items():
        file = content.files.get(name)
        if of == read.shards and file is not None and file.reader is not None:
            data[number] = file
    add_tensors(content, read, data, opened.file.path)
    _warn_of_others(content, bundle)


def _bundle_of(content: Content) -> BundleFiles | None:
    """Return the bundle of which the shards of a version are data files; None where they are none."""
    for shard in content.shards.values():
        for file in shard.file.files:
            match = _FILE.fullmatch(content.version.name_of(file.path))
            if match and match[2]:
                every = bundles(content.files)
                return next((bundle for bundle in every if bundle.prefix == match[1]), None)
    return None


def _warn_of_others(content: Content, bundle: BundleFiles) -> None:
    """Add a warning that names the other bundles in a directory, of which its file `checkpoint` names one."""
    from edl_ckpt.core.model.tables import Problem

    wholes = [other for other in bundles(content.files) if other.index and other.data]
    others = [other.prefix for other in wholes if other.prefix != bundle.prefix]
    if others and content.shards:
        shard = content.shards[min(content.shards)]
        message = f"{counted(len(others), 'other bundle')} in the directory, not read ({abridged(others, _SHOWN)})"
        message += f"; {STATE_FILE} names {bundle.prefix}. Name another one by its prefix"
        shard.problems.append(Problem("passed-over", others[0], None, message, warning=True))
