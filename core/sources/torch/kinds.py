"""What a file is that has an ending of torch.save, by its first and last bytes: a listing asks no more of it."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.interface import NotOfFormatError, OtherFormatError
from edl_ckpt.core.sources.recognised import recognised_file
from edl_ckpt.core.sources.torch.zips import MAGIC, read_ending
from edl_ckpt.core.storage.interface import RangeReader

PICKLE: Final = b"data.pkl"
LEGACY: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The magic number of a file from before torch 1.6, as a pickle."""
_TAR: Final = b"ustar"
_TAR_AT: Final = 257
_OTHER_ZIP: Final = "this is a zip of another tool than torch.save, such as numpy, Keras or torch.jit: it is not read"


def check_kind(reader: RangeReader) -> None:
    """Raise CorruptError for a file of torch.save that was cut, UnsupportedError for one that is not read.

    NotOfFormatError says that it is none, OtherFormatError that another tool wrote it.

    Few bytes are read: those at the begin and at the end.
    """
    head = reader.read(0, min(reader.size_bytes, 512))
    if head[: len(LEGACY)] == LEGACY:
        return
    if head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        raise UnsupportedError("this is a tar, as torch 0.1 saved it: load and save it with a newer torch")
    if head[:4] != MAGIC:
        if words := recognised_file(reader):
            raise OtherFormatError(words, path=reader.path)
        raise NotOfFormatError("it does not begin as a file of torch.save does", path=reader.path, offset=0)
    if not _names_pickle(head):
        raise OtherFormatError(_OTHER_ZIP, path=reader.path)
    read_ending(reader)


def _names_pickle(head: bytes) -> bool:
    """Say whether the first member of a zip is the pickle of torch.save, or another one that torch writes first."""
    length = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + length]
    return name.partition(b"/")[2] in {PICKLE, b"version", b"byteorder", b".format_version"}
