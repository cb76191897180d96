"""The files of a bundle laid out as TensorFlow's BundleWriter writes them: a data file for each rank, the index last.

An array in one slab is one tensor. One in several is a partitioned variable: an entry that names its slices, and the
slices under keys of their own; those without elements are left out, because TensorFlow has no such slices. It cannot
read slices of float16 and of unsigned integers but uint8. Source: `tensorflow/core/util/tensor_bundle/tensor_bundle.cc`
and, for the bytes of strings, `WriteStringTensor` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import ClassVar, Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.names import name_bytes
from edl_ckpt.core.base.numbers import varint
from edl_ckpt.core.kernel.checksums import crc32c, masked
from edl_ckpt.core.sources.bundle.format import BundleFiles
from edl_ckpt.core.sources.bundle.index import StoredTensor, index_bytes, slice_key
from edl_ckpt.core.sources.bundle.state_file import NAME as STATE_FILE
from edl_ckpt.core.sources.bundle.state_file import state_bytes
from edl_ckpt.core.sources.steps.file_layout import Array

_STRING: Final = 7
"""The number of strings in tensorflow.DataType."""
_Part = tuple[str, int]
"""The key of an array, and the number of a slab."""


@dataclass(frozen=True, slots=True)
class BundleLayout:
    """Where everything goes in the files of a bundle."""

    checksum: ClassVar = "crc32c"
    files: Mapping[str, int]
    """The bytes of each file; the index is the last one."""
    _shards: int
    _places: Mapping[_Part, tuple[str, int]]
    _entries: Mapping[bytes, tuple[StoredTensor, _Part | None]]
    """What the index has, and the slab whose checksum it lacks."""
    _others: Sequence[tuple[str, int, bytes]]
    """The bytes of strings and of the file `checkpoint`."""

    def at(self, key: str, slab: int) -> tuple[str, int]:
        """Return the data file of a slab, and the offset of its values."""
        return self._places[key, slab]

    def literals(self, sums: Mapping[_Part, int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield all strings, the file `checkpoint` and the index, given the CRC-32C of each slab that has elements."""
        yield from self._others
        tensors = (
            (key, tensor if part is None else tensor._replace(crc32c=masked(sums[part])))
            for key, (tensor, part) in self._entries.items()
        )
        yield [*self.files][-1], 0, index_bytes(self._shards, tensors)


def lay_out(
    prefix: str,
    arrays: Sequence[Array],
    shards: int = 1,
    *,
    strings: Mapping[str, bytes] | None = None,
    items: Mapping[str, StoredTensor] | None = None,
    with_state: bool = False,
    others: Mapping[str, bytes] | None = None,
) -> BundleLayout:
    """Lay out arrays in `PREFIX.data-SSSSS-of-NNNNN`, that of rank S for each slab, and `PREFIX.index`.

    `strings` are scalars, such as the graph of objects that tf.train.Checkpoint keeps. `items` says of arrays that are
    items what an index said of them: their bytes are copied, and keep their checksum. `with_state` adds the file
    `checkpoint`, by which tf.train.latest_checkpoint knows the bundle; `others` are files as they are. UnsupportedError
    for a name that a bundle cannot have, or has already.
    """
    bundle, data = BundleFiles(prefix), _DataFiles([0] * shards)
    names = [bundle.name_of(rank, shards) for rank in range(shards)]
    for array in arrays:
        if array.dtype.is_item:
            data.add_item(array, (items or {})[array.key])
        else:
            data.add_array(array)
    literals = [(names[0], *data.add_string(name, text)) for name, text in (strings or {}).items()]
    whole = dict(others or {})
    if with_state:
        folder, slash, last = prefix.rpartition("/")
        whole[f"{folder}{slash}{STATE_FILE}"] = state_bytes(last, [last])
    files = {**dict(zip(names, data.sizes, strict=True)), **{name: len(text) for name, text in whole.items()}}
    literals += [(name, 0, text) for name, text in whole.items()]
    size_bytes = len(index_bytes(shards, ((key, tensor) for key, (tensor, _) in data.entries.items())))
    places = {part: (names[rank], start) for part, (rank, start) in data.places.items()}
    return BundleLayout({**files, f"{prefix}.index": size_bytes}, shards, places, data.entries, literals)


@dataclass(slots=True)
class _DataFiles:
    """What stands in the data files so far: their sizes, and what the index is to say."""

    sizes: list[int]
    places: dict[_Part, tuple[int, int]] = field(default_factory=dict)
    entries: dict[bytes, tuple[StoredTensor, _Part | None]] = field(default_factory=dict)

    def add_array(self, array: Array) -> None:
        """Give each slab of an array the next bytes of the file of its rank."""
        dtype, slabs = array.dtype.tf_enum, []
        for number, slab in enumerate(array.slabs):
            start = self.sizes[slab.rank]
            end = self.sizes[slab.rank] = start + prod(slab.sizes) * array.dtype.itemsize
            self.places[array.key, number] = slab.rank, start
            if end > start:
                tensor = StoredTensor(dtype, slab.sizes, slab.rank, start, end, 0, ())
                slabs.append((tensor, (array.key, number), tuple(zip(slab.offsets, slab.sizes, strict=True))))
        key = self._key(array.key)
        if len(slabs) == 1:
            self.entries[key] = slabs[0][:2]
            return
        rank, start = (slabs[0][0].shard, 0) if slabs else self.places[array.key, 0]  # as TensorFlow merges bundles
        slices, crc = tuple(bounds for *_, bounds in slabs), masked(crc32c(b""))
        self.entries[key] = StoredTensor(dtype, array.shape, rank, start, start, crc, slices), None
        for tensor, part, bounds in slabs:
            self.entries[slice_key(key, bounds)] = tensor, part

    def add_item(self, array: Array, stored: StoredTensor) -> None:
        """Give the bytes of an item, which are one slab, the next bytes of the file of its rank."""
        (slab,) = array.slabs
        start = self.sizes[slab.rank]
        end = self.sizes[slab.rank] = start + slab.sizes[0]
        self.places[array.key, 0] = slab.rank, start
        self.entries[self._key(array.key)] = stored._replace(shard=slab.rank, start=start, end=end), None

    def add_string(self, name: str, text: bytes) -> tuple[int, bytes]:
        """Give a string the next bytes of the first file; return their offset and them."""
        start, summed = self.sizes[0], crc32c(len(text).to_bytes(4, "little"))
        check = masked(summed).to_bytes(4, "little")
        data = varint(len(text)) + check + text
        self.sizes[0] += len(data)
        crc = masked(crc32c(text, crc32c(check, summed)))
        self.entries[self._key(name)] = StoredTensor(_STRING, (), 0, start, self.sizes[0], crc, ()), None
        return start, data

    def _key(self, name: str) -> bytes:
        """Return the key of a tensor, which is new; the header has none, and those of slices begin with zero."""
        key = name_bytes(name)
        if not key or not key[0] or key in self.entries or key.decode("utf-8", "replace") != name:
            raise UnsupportedError(f"{name!r}: a bundle cannot have this name, or has it already")
        return key
