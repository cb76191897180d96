"""The kind of a file with an ending of torch.save, by its first and last bytes: a listing reads no more of it."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.sources.interface import NotOfFormatError, OtherFormatError
from edl_ckpt.core.sources.recognised import recognised_file, recognised_zip
from edl_ckpt.core.sources.torch.zips import MAGIC, read_ending
from edl_ckpt.core.storage.interface import RangeReader

PICKLE: Final = b"data.pkl"
_LEGACY: Final = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""The magic number of a file from before torch 1.6, in a pickle of any protocol."""
_LEGACY_WITHIN: Final = 32
_HEAD_BYTES: Final = 512
_TAR: Final = b"ustar"
_TAR_AT: Final = 257
_OTHER_ZIP: Final = "this is a zip of another tool than torch.save: it is not read"


def is_legacy(head: bytes) -> bool:
    """Say whether a file with these first bytes is one from before torch 1.6.

    >>> is_legacy(bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")), is_legacy(b"PK")
    (True, False)
    """
    return head[:1] == b"\x80" and _LEGACY in head[:_LEGACY_WITHIN]


def check_kind(reader: RangeReader) -> None:
    """Raise CorruptError for a file of torch.save that was cut, UnsupportedError for one that is not read.

    NotOfFormatError says that it is none, OtherFormatError that another tool wrote it.

    Few bytes are read: those at the begin and at the end.
    """
    head = reader.read(0, min(reader.size_bytes, _HEAD_BYTES))
    if is_legacy(head):
        return
    if head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR:
        raise UnsupportedError("this is a tar, as torch 0.1 saved it: load and save it with a newer torch")
    if head[:4] != MAGIC:
        if words := recognised_file(reader):
            raise OtherFormatError(words, path=reader.path)
        raise NotOfFormatError("it does not begin as a file of torch.save does", path=reader.path, offset=0)
    if not _names_pickle(head):
        raise OtherFormatError(recognised_zip(reader, head) or _OTHER_ZIP, path=reader.path)
    read_ending(reader)


def _names_pickle(head: bytes) -> bool:
    """Say whether the first member of a zip is the pickle of torch.save, or another one that torch writes first."""
    length = int.from_bytes(head[26:28], "little")
    name = head[30 : 30 + length]
    return name.partition(b"/")[2] in {PICKLE, b"version", b"byteorder", b".format_version"}
