"""What loaders of whole files would refuse, file by file, found without the loaders and before a job fails.

Each rule is restated here from its source, and needs no framework: `torch/_weights_only_unpickler.py` of torch 2.13,
`checkpoint_reader.py` of torch_checkpointing 0.1.1, `modeling_utils.py` and `utils/hub.py` of transformers 5.24.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.base.words import abridged, counted
from edl_ckpt.core.reading.reader import Checkpoint
from edl_ckpt.core.sources.safetensors.indexing import read_header
from edl_ckpt.core.sources.safetensors.sets import ENDING, INDEX, weight_map
from edl_ckpt.core.sources.steps.interface import read_head
from edl_ckpt.core.sources.torch.names import is_named_so
from edl_ckpt.core.sources.torch.weights_only import refusals
from edl_ckpt.core.sources.torch_checkpointing.metadata import read_metadata
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA, files_by_item, ranks_in
from edl_ckpt.core.storage.interface import RangeReader

_TORCH: Final = "torch"
_TORCH_CHECKPOINTING: Final = "torch-checkpointing"
_SAFETENSORS: Final = "safetensors"
_BIN: Final = "pytorch_model.bin"
_BIN_INDEX: Final = "pytorch_model.bin.index.json"
_UNREAD_TAGS: Final = ("F6_E2M3", "F6_E3M2")
"""Dtypes that PyTorch has no name for."""
_SHOWN: Final = 4


class FileFault(NamedTuple):
    """What makes a loader fail at a file of a version, or what it asks for: that is a warning."""

    path: str
    words: str
    is_warning: bool = False


FileRule: TypeAlias = Callable[[Checkpoint, int], Iterator[FileFault]]
"""Yields what a loader would not load of a version, on so many ranks."""


def _files(checkpoint: Checkpoint) -> dict[str, RangeReader]:
    """Return the open files of a version by their names in it."""
    found = {name: checkpoint.files.get(checkpoint.version.path_of(name)) for name in checkpoint.version.sizes}
    return {name: reader for name, reader in found.items() if reader is not None}


def weights_only(checkpoint: Checkpoint, ranks: int) -> Iterator[FileFault]:
    """Yield the names that `torch.load` refuses by default in each file of torch.save."""
    del ranks
    for name, reader in sorted(_files(checkpoint).items()):
        if is_named_so(name):
            yield from _refused(name, reader)


def _refused(name: str, reader: RangeReader) -> Iterator[FileFault]:
    try:
        found = list(refusals(reader))
    except (CorruptError, UnsupportedError) as error:
        yield FileFault(name, error.message)
        return
    if words := [one.words for one in found if not one.import_helps]:
        yield FileFault(name, f"torch.load with weights_only=True, its default, refuses {abridged(words, _SHOWN)}")
    elif found:
        words = [one.words.rpartition(".")[2] for one in found]
        wanted = f"a program must import torch.distributed.tensor first: it has {abridged(words, _SHOWN)}"
        yield FileFault(name, wanted, is_warning=True)


def torch_checkpointing(checkpoint: Checkpoint, ranks: int) -> Iterator[FileFault]:
    """Yield the files that ranks would not find: an item that is not in the metadata is read by each from its own file.

    Without metadata no item can be cut anew, so another number of ranks has other parts.
    """
    files = _files(checkpoint)
    reader = files.get(METADATA)
    metadata = None if reader is None else read_metadata(reader)
    described = {} if metadata is None else metadata.files
    taken = {METADATA}
    for paths in described.values():
        taken.update(paths.values())
    others = [name for name in files if name not in taken]
    items = files_by_item(others) or _by_item(others)
    for item, of_ranks in sorted(items.items()):
        lost = [f"{item}_{rank}.pt" for rank in range(ranks) if rank not in of_ranks]
        if lost:
            whose = "their files" if len(lost) > 1 else "its file"
            words = f"{counted(len(lost), 'rank')} of {ranks} would not find {whose} of {item!r}: each reads its own"
            yield FileFault(lost[0], words)
    if metadata is None and ranks != ranks_in(items):
        saved = ranks_in(items)
        words = f"there is no metadata.pkl, so {saved} ranks cannot become {ranks}: each reads what its own file has"
        yield FileFault(METADATA, words)
    for item, paths in sorted(described.items()):
        for path in sorted(paths.values()):
            if path not in files:
                yield FileFault(path, f"metadata.pkl names this file of {item!r}, and it is missing")


def _by_item(names: list[str]) -> dict[str, dict[int, str]]:
    """Return files by item and rank, where one item alone is not described."""
    found: dict[str, dict[int, str]] = {}
    for name in names:
        item, _, rank = name.partition(".")[0].rpartition("_")
        if item and rank.isascii() and rank.isdigit() and "/" not in name:
            found.setdefault(item, {})[int(rank)] = name
    return found


def transformers(checkpoint: Checkpoint, ranks: int) -> Iterator[FileFault]:
    """Yield what `from_pretrained` of the directory would not find, or not read, in the order in which it looks."""
    del ranks
    files = _files(checkpoint)
    top = {name for name in files if "/" not in name}
    if "config.json" not in top:
        yield FileFault("config.json", "there is no config.json: from_pretrained does not know what model this is")
    single = f"model{ENDING}"
    if single in top:
        yield from _read_by_transformers(single, files[single])
    elif f"model{INDEX}" in top:
        yield from _set(f"model{INDEX}", files)
    elif _BIN in top:
        yield from _refused(_BIN, files[_BIN])
    elif _BIN_INDEX in top:
        yield from _set(_BIN_INDEX, files)
    else:
        words = f"there is no {single}, no index of a set and no {_BIN}: from_pretrained finds no weights here"
        yield FileFault(single, words)


def _set(index: str, files: Mapping[str, RangeReader]) -> Iterator[FileFault]:
    """Yield what is wrong with a set: files that are missing, tensors that no file has, metadata that are not there."""
    try:
        document = parse_object(read_head(files[index]), index)
        weights = document.get("weight_map") if index == _BIN_INDEX else weight_map(document, index)
    except (CorruptError, UnsupportedError) as error:
        yield FileFault(index, error.message)
        return
    if not isinstance(weights, dict) or not isinstance(document.get("metadata"), dict):
        yield FileFault(index, "it has no `metadata` or no `weight_map`: transformers stops there with a KeyError")
        return
    wanted: dict[str, set[str]] = {}
    for tensor, name in weights.items():
        wanted.setdefault(str(name), set()).add(tensor)
    for name, tensors in sorted(wanted.items()):
        reader = files.get(name)
        if reader is None:
            yield FileFault(name, f"{index} names it, and it is missing")
        elif index == _BIN_INDEX:
            yield from _refused(name, reader)
        else:
            yield from _read_by_transformers(name, reader, tensors)


def _read_by_transformers(name: str, reader: RangeReader, wanted: set[str] | None = None) -> Iterator[FileFault]:
    try:
        header = read_header(reader)
    except (CorruptError, UnsupportedError) as error:
        yield FileFault(name, error.message)
        return
    lost = sorted((wanted or set()) - {tensor.name for tensor in header.tensors})
    if lost:
        yield FileFault(name, f"the index says that it has {abridged(lost, _SHOWN)}, which would be initialized anew")
    if unread := [tensor.name for tensor in header.tensors if tensor.tag in _UNREAD_TAGS]:
        yield FileFault(name, f"PyTorch has no dtype for {abridged(unread, _SHOWN)}")
    if header.metadata and "format" not in header.metadata:
        words = "its metadata have no `format`: transformers before 5 refuses the file"
        yield FileFault(name, words, is_warning=True)


FILE_LOADERS: Final[Mapping[str, tuple[tuple[str, ...], FileRule]]] = {
    "torch:weights-only": ((_TORCH, _TORCH_CHECKPOINTING), weights_only),
    "torch-checkpointing": ((_TORCH_CHECKPOINTING,), torch_checkpointing),
    "transformers": ((_SAFETENSORS, _TORCH), transformers),
}
"""By their names: the systems whose files each reads, and its rule."""
