"""The index of a checkpoint of torch: which tensors there are, in which boxes, and where the item of each box lies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, UnsupportedError
from edl_ckpt.core.sources.dcp.pickles import INDEX_NAMES, fields, kind_of, load, pairs
from edl_ckpt.core.sources.steps.interface import read_head
from edl_ckpt.core.sources.torch.tensors import whole_numbers
from edl_ckpt.core.storage.interface import RangeReader

VARIABLES_MARK: Final = "edl_ckpt_variables"


class SavedBox(NamedTuple):
    """A box of a tensor: the first element and the number of elements in each dimension."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IndexedTensor:
    """A tensor and the boxes that it was saved in; without a dtype, a value that is no tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[SavedBox, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """What was saved of a tensor, or of a value: the bytes [start, end) of a file. `offsets` tells its box."""

    name: str
    offsets: tuple[int, ...]
    path: str
    start: int
    end: int


def items(root: object) -> Iterator[Item]:
    """Yield the items of an index; errors as `ends`."""
    for index, info in pairs(fields(root, "Index").get("storage_data")):
        key, (path, start, end) = fields(index, "Key"), _place_of(info)
        name = key.get("fqn")
        if type(name) is not str:
            raise CorruptError("the index has an item without a name")
        yield Item(name, _numbers(key.get("offset")), path, start, end)


def ends(root: object) -> dict[str, int]:
    """Return where the last item in each file ends, by its path; CorruptError for one that leads out of the directory.

    Raises UnsupportedError for items that an extension of torch has transformed.
    """
    last: dict[str, int] = {}
    for _, info in pairs(fields(root, "Index").get("storage_data")):
        path, _, end = _place_of(info)
        if end > last.get(path, -1):
            last[path] = end
    for path in last:
        if any(part in {"", ".", ".."} for part in path.split("/")) or "\\" in path or "\0" in path:
            raise CorruptError(f"a file of the index has a path that leads out of its directory: {path!r}")
    return last


def paths(root: object) -> dict[str, tuple[str | int, ...]]:
    """Return where torch found each key in what it saved: names, and numbers in lists; {} where that is not stored."""
    stored = fields(root, "Index").get("planner_data")
    rest: Iterator[Any] = iter(stored if type(stored) is list else ())
    found: dict[str, tuple[str | int, ...]] = {}
    for one in rest:  # values are tuples, as single items are
        is_item = type(one) is tuple and len(one) == 2 and type(one[1]) is tuple
        key, path = one if is_item else (one, next(rest, None))
        if type(key) is str and type(path) is tuple and all(type(part) in {str, int} for part in path):
            found[key] = path
    return found


def marked_variables(root: object) -> frozenset[str]:
    """Return the keys that the writer of the index marked as variables, although their names are those of tables.

    Only edl-ckpt writes this mark. torch passes over it.
    """
    stored = fields(root, "Index").get(VARIABLES_MARK)
    return frozenset(key for key in stored if type(key) is str) if type(stored) is list else frozenset()


def _place_of(info: object) -> tuple[str, int, int]:
    """Return (path, start, end) of an item."""
    stored = fields(info, "Item")
    path = stored.get("relative_path")
    start = stored.get("offset")
    length = stored.get("length")
    if type(path) is not str or type(start) is not int or type(length) is not int or start < 0 or length < 0:
        raise CorruptError("the index has an item without a file, an offset or a length")
    if stored.get("transform_descriptors"):
        raise UnsupportedError("items are transformed, such as compressed or encrypted")
    return path, start, start + length


def tensors(root: object) -> Iterator[IndexedTensor]:
    """Yield the tensors of an index, and the values that are none."""
    for name, stored in pairs(fields(root, "Index").get("state_dict_metadata")):
        if type(name) is not str:
            raise CorruptError("the index has a tensor whose name is no text")
        if kind_of(stored) == "Value":
            yield IndexedTensor(name, "", (), ())
            continue
        tensor = fields(stored, "Tensor")
        state, chunks = getattr(tensor.get("properties"), "state", None), tensor.get("chunks")
        dtype, shape = state[0] if type(state) is tuple and state else None, _numbers(tensor.get("size"))
        if type(dtype) is not str or type(chunks) is not list:
            raise CorruptError(f"{name!r}: the index has no dtype or no boxes of it")
        boxes = [fields(chunk, "Box") for chunk in chunks]
        pieces = tuple(SavedBox(_numbers(box.get("offsets")), _numbers(box.get("sizes"))) for box in boxes)
        if any(not len(shape) == len(piece.offsets) == len(piece.sizes) for piece in pieces):
            raise CorruptError(f"{name!r}: a box has another number of dimensions than the tensor")
        yield IndexedTensor(name, dtype, shape, pieces)


def _numbers(stored: Any) -> tuple[int, ...]:
    """Return a torch.Size; () for None."""
    return () if stored is None else whole_numbers(stored)


def read(file: RangeReader) -> Any:
    """Return the content of a `.metadata` file, for `items` and `tensors`; errors as `load` and `read_head`.

    It takes memory of 10 times the bytes of the file, 40 times those of an attack, and 70 ns for each of them.
    """
    return load(read_head(file), INDEX_NAMES)
