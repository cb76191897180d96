"""What a format is: how another system than ElasticDL stores tensors and tables in the files of one step.

`source` finds the directories and the prefixes of steps in a listing, and makes versions of them. It asks each format
for its part of the files, because a step may have files of several formats. A format is a folder: its
`__init__.py` describes it (`Description` in `folder`), its `format.py` reads files (`FormatReader`), and the literal
table in `formats` is the only other place that knows it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import size
from edl_ckpt.core.model.layouts import Placement
from edl_ckpt.core.storage.interface import Entry, RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.sources.steps.content import Content

Files: TypeAlias = Mapping[str, Entry]
"""The files of one step by their paths in it, such as 'model/.metadata'; those of a prefix by their names."""
Digest: TypeAlias = Any
"""What `Format.digest` returns: a JSON value, since it is remembered between two listings."""
HEAD_BYTES: Final = 512 << 20
"""An index that is larger is not read: then the version is unsupported, and says so."""


def read_head(file: RangeReader) -> bytes:
    """Return the whole of an index; UnsupportedError for a larger one than any reader of ours has memory for."""
    if file.size_bytes > HEAD_BYTES:
        name = file.path.rpartition("/")[2]
        message = f"{name} has {size(file.size_bytes)}: an index of more than {size(HEAD_BYTES)} is not read"
        raise UnsupportedError(message, path=file.path)
    return file.read(0, file.size_bytes)


@dataclass(frozen=True, slots=True)
class Claim:
    """What files of a step a format reads, and what it lacks."""

    shards: Mapping[int, Sequence[str]]
    """The files of each shard by its number; the first one is the shard's own."""
    ps_num: int | None
    """How many shards there should be; None where nothing says it."""
    common: Sequence[str] = ()
    """Files that belong to no shard, such as an index."""
    lacks: Sequence[str] = ()
    """What is missing or truncated, in words: 'rank 3 of 8', '__1_0.distcp ends at byte 1,024 of 2,048'."""
    unsupported: str = ""
    """Why nothing can be read although nothing is missing, such as an unknown name in a pickle; '' for no reason."""
    placement: Placement = Placement.NONE
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The rows and the elements of a row of each table, where names and sizes of files say them."""
    is_known: bool = True
    """False where names alone speak for the format: such a part counts only in a step that no other format knows."""
    yields: bool = False
    """True for a part that counts only in a step where no other format has one: elsewhere its files go along."""
    owns: bool = False
    """True where a file says that the whole step is of this format: no other one has a part of it."""


class FormatReader(Protocol):
    """How a format reads the files of a step: the module `format.py` of its folder."""

    def heads(self, files: Files) -> Sequence[str]:
        """Return the small files of a step that `claim` needs to know, by their paths; () where it has none.

        Called for every step of a listing, so it looks at names only.
        """

    def digest(self, file: RangeReader) -> Digest:
        """Return what `claim` needs of such a file, as a small JSON value; a pure function, run in other processes too.

        Raises NotOfFormatError for a file that is none of this format by its content, CorruptError for damage, and
        UnsupportedError for what cannot be read.
        """

    def claim(self, files: Files, digests: Mapping[str, Digest | Exception]) -> Claim | None:
        """Return its part of the files of a step; None where there is none.

        `digests` has a digest of each head, or the error of making it: NotOfFormatError is a file of somebody else,
        any other CorruptError is something that it `lacks`, UnsupportedError is `unsupported`.
        """

    def index(self, content: Content) -> None:
        """Add the variables and tables of its files to the content of a version, from headers alone.

        A shard whose files are damaged goes to `content.fail`. Files that are not open are left out.
        """
