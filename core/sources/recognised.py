"""Files that are recognised by their first bytes and not read: what each of them is, and the way on.

A clone without its large files has pointers in their place, a download that failed has a page, and a file of another
tool may have any name. Such a file is not damaged, so nothing says that it is, and a version with one is not complete.
"""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.storage.interface import RangeReader

HEAD_BYTES: Final = 512
POINTER_BYTES: Final = range(100, 200)
"""A pointer of Git LFS has so many bytes: a line with the version, a digest of 64 digits, and a size."""
_POINTER: Final = "this is a Git LFS pointer, not the file itself: run git lfs pull"
_PAGE: Final = "this is an HTML page, not the file itself: the download has failed, so download it again"
_SENTENCES: Final = (
    (b"version https://git-lfs.github.com/", _POINTER),
    (b"version https://hawser.github.com/", _POINTER),
    (b"<!doctype", _PAGE),
    (b"<html", _PAGE),
    (b"<?xml", "this is an XML document, such as the error of an object store, not the file itself: download it again"),
    (b"gguf", "this is a GGUF file, a model for llama.cpp, which is not read"),
    (b"\x89hdf\r\n\x1a\n", "this is an HDF5 file, such as Keras' .h5, which is not read"),
    (b"pk\3\4", "this is a zip, as torch.save, Keras or numpy write it, and not a file of this format"),
    (
        b"\x80\2\x8a\nl\xfc\x9cf\xf9 j\xa8p\x19",
        "this is a file of torch.save from before torch 1.6, which is not read here",
    ),
    (b"\x1f\x8b", "this is a file that gzip has compressed: decompress it"),
    (b"\x28\xb5\x2f\xfd", "this is a file that zstd has compressed: decompress it"),
    (b"\xfd7zxz\0", "this is a file that xz has compressed: decompress it"),
    (b"\x93numpy", "this is a .npy file of numpy: `edl-ckpt import` takes it"),
    (b"par1", "this is a Parquet file: `edl-ckpt import` takes it"),
)
"""How files begin, in lower case; space before a page does not count."""
_BEGINS: Final = tuple(begin for begin, _ in _SENTENCES)


def recognised(head: bytes) -> str:
    """Return what a file is, in words, by its first bytes; '' for one that is not recognised.

    >>> recognised(b"GGUF...")
    'this is a GGUF file, a model for llama.cpp, which is not read'
    """
    lower = head.removeprefix(b"\xef\xbb\xbf").lower()
    texts = (lower, lower.lstrip())
    if not any(text.startswith(_BEGINS) for text in texts):  # as nearly all files of a listing
        return ""
    return next((words for begin, words in _SENTENCES if any(text.startswith(begin) for text in texts)), "")


def recognised_file(file: RangeReader) -> str:
    """Return what an open file is, as `recognised`."""
    return recognised(file.read(0, min(file.size_bytes, HEAD_BYTES)))
