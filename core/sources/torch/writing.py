"""Files of torch.save laid out from the pickles of others: the place of each storage, before a value moves."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.sources.dcp.writing import small_members
from edl_ckpt.core.sources.torch.editing import objects_in
from edl_ckpt.core.sources.torch.files import MOST_PICKLE, FileContents, is_zip, open_file
from edl_ckpt.core.sources.torch.kinds import PICKLE
from edl_ckpt.core.sources.torch.machine import Value, read
from edl_ckpt.core.sources.torch.renewing import MESH, NEW
from edl_ckpt.core.sources.torch.rewriting import written
from edl_ckpt.core.sources.torch.zips import TorchZip as StoredZip
from edl_ckpt.core.sources.zip_layout import TorchZip, ZipMember, ZipPlan, lay_out_zip
from edl_ckpt.core.storage.interface import RangeReader

_MOST_CARRIED: Final = 1 << 20
"""A storage of no tensor, such as the ranks of a mesh, has at most so many bytes."""


@dataclass(slots=True)
class SavedFile:
    """A file of torch.save as it was read: its pickle as a tree, and its storages."""

    path: str
    root: Value
    protocol: int
    archive: StoredZip
    contents: FileContents
    objects: Mapping[tuple[str, ...], Value]
    """What dicts and lists of the tree lead to, by paths: tensors are among them."""


def saved_file(path: str, reader: RangeReader) -> SavedFile:
    """Return a file as it was saved; UnsupportedError where parts of it are not read, or for a legacy one."""
    contents = open_file(reader)
    if contents.unread:
        first = contents.unread[0]
        message = (
            f"{'.'.join(first.path) or path!r} is not read ({first.error.message}), so the file is not written anew"
        )
        raise UnsupportedError(message, path=reader.path)
    if not is_zip(reader):
        raise UnsupportedError("a file from before torch 1.6 is not written anew", path=reader.path)
    archive = StoredZip(reader)
    data, _ = archive.content(PICKLE, MOST_PICKLE)
    root, _, _ = read(data)
    protocol = data[1] if data[:1] == b"\x80" else 2
    return SavedFile(path, root, protocol, archive, contents, objects_in(root))


class ZipOfTree(NamedTuple):
    """The zip of a tree, and the member that each new storage is in it, by its number."""

    plan: ZipPlan
    members: Sequence[str]


def zip_plan(saved: SavedFile, root: Value, sizes: Sequence[int], ranks: int) -> ZipOfTree:
    """Return the zip of a tree with new storages of so many bytes; others are carried.

    Storages are numbered as they come in the pickle, as torch does: torch_checkpointing computes where each one lies
    from their order there, and reads no directory.
    """
    members: dict[str, ZipMember] = {}

    def carry(key: str) -> str:
        if key not in members:
            name = f"data/{len(members)}"
            if key.startswith(NEW):
                members[key] = ZipMember(name, sizes[int(key.removeprefix(NEW))])
            else:
                is_mesh = key == MESH
                data = struct.pack(f"<{ranks}i", *range(ranks)) if is_mesh else _content(saved.archive, key)
                members[key] = ZipMember(name, len(data), data)
        return members[key].name.removeprefix("data/")

    before, behind = small_members(written(root, saved.protocol, carry))
    plan = lay_out_zip([*before, *members.values(), *behind], TorchZip())
    return ZipOfTree(plan, [members[f"{NEW}{number}"].name for number in range(len(sizes))])


def _content(archive: StoredZip, key: str) -> bytes:
    return archive.content(b"data/" + key.encode(errors="replace"), _MOST_CARRIED)[0]


@dataclass(frozen=True, slots=True)
class PlannedZips:
    """Where everything goes in files of torch.save, and other files whole."""

    zips: Mapping[str, ZipOfTree]
    sizes: Mapping[str, Sequence[int]]
    """Of each file the bytes of each of its storages."""
    others: Mapping[str, bytes]

    @property
    def files(self) -> Mapping[str, int]:
        """Return the bytes of each file, the others last."""
        zips = {file: made.plan.size for file, made in self.zips.items()}
        return zips | {file: len(data) for file, data in self.others.items()}

    def at(self, file: str, number: int) -> int:
        """Return the offset of a storage."""
        made = self.zips[file]
        return made.plan.places[made.members[number]]

    def literals(self, sums: Mapping[tuple[str, int], int]) -> Iterator[tuple[str, int, bytes]]:
        """Yield what stands around values, given the CRC-32 of each storage by its file and number."""
        for file, made in self.zips.items():
            of_file = {member: sums[file, number] for number, member in enumerate(made.members)}
            for offset, data in made.plan.parts(0, of_file):
                yield file, offset, data
        for file, data in self.others.items():
            yield file, 0, data


def new_index(data: bytes, path: str, names: Mapping[str, str], total: int) -> bytes:
    """Return the index of a set whose tensors have these names by their old ones; the others are gone."""
    document = parse_object(data, path)
    weights = document.get("weight_map")
    assert isinstance(weights, dict)  # noqa: S101 - the version was read by it
    document["weight_map"] = {names[name]: file for name, file in weights.items() if name in names}
    metadata = document.get("metadata")
    if isinstance(metadata, dict) and "total_size" in metadata:
        document["metadata"] = {**metadata, "total_size": total}
    return (json.dumps(document, indent=2) + "\n").encode()
