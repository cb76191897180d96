"""Files that are recognised by their first bytes and not read: what each of them is, and the way on.

A clone without its large files has pointers in their place, a download that failed has a page, and a file of another
tool may have any name. Such a file is not damaged, so nothing says that it is, and a version with one is not complete.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from edl_ckpt.core.storage.interface import RangeReader

HEAD_BYTES: Final = 512
POINTER_BYTES: Final = range(100, 200)
"""A pointer of Git LFS has so many bytes: a line with the version, a digest of 64 digits, and a size."""
_POINTER: Final = "this is a Git LFS pointer, not the file itself: run git lfs pull"
_PAGE: Final = "this is an HTML page, not the file itself: the download has failed, so download it again"
_GGUF: Final = (
    "this is a GGUF file, a model for llama.cpp, which is not read: name the Hugging Face directory that it was made of"
)
_HDF5: Final = (
    "this is an HDF5 file, such as Keras' .h5, which is not read: load it with Keras, and save it by"
    " tf.train.Checkpoint"
)
_TF_V1: Final = (
    "this is a checkpoint of TensorFlow's format V1, which is not read: save it with tf.compat.v1.train.Saver and"
    " write_version=V2"
)
_ORBAX: Final = (
    "this is an Orbax checkpoint of JAX, which is not read: load it with Orbax, and save the arrays as safetensors"
)
_KERAS: Final = "this is a .keras archive, which is not read: load it with Keras, and save it by tf.train.Checkpoint"
TORCHSCRIPT: Final = (
    "this is a program of TorchScript, which is not read: load it with torch.jit.load, and torch.save its state_dict()"
)
_PT2: Final = (
    "this is a program of torch.export, which is not read: load it with torch.export.load, and torch.save its"
    " state_dict"
)
_NPZ: Final = "this is a .npz file of numpy: `edl-ckpt import` takes it"
_ZIP: Final = b"pk\3\4"
_DIRECTORY_BYTES: Final = 64 << 10
"""So many last bytes of a zip are looked at: the directory of small members is there."""
_MEMBERS: Final = (
    (b"/constants.pkl", TORCHSCRIPT),
    (b"/archive_version", _PT2),
    (b"/archive_format", _PT2),
    (b"model.weights.h5", _KERAS),
    (b".npy", _NPZ),
)
"""What members of zips end with, in the order in which they are asked."""
_OF_ORBAX: Final = frozenset({"_CHECKPOINT_METADATA", "manifest.ocdbt", "ocdbt.process_0"})
_TABLE_END: Final = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"
"""The last bytes of a table of LevelDB: a checkpoint of V1 is one, and so is the index of V2."""
_SENTENCES: Final = (
    (b"version https://git-lfs.github.com/", _POINTER),
    (b"version https://hawser.github.com/", _POINTER),
    (b"<!doctype", _PAGE),
    (b"<html", _PAGE),
    (b"<?xml", "this is an XML document, such as the error of an object store, not the file itself: download it again"),
    (b"gguf", _GGUF),
    (b"\x89hdf\r\n\x1a\n", _HDF5),
    (b"pk\3\4", "this is a zip, as Keras or numpy write it: one of torch.save is read if its name ends with .pt"),
    (
        b"\x80\2\x8a\nl\xfc\x9cf\xf9 j\xa8p\x19",
        "this is a file of torch.save from before torch 1.6, which is read if its name ends with .pt",
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

    >>> recognised(b"GGUF...")[:19], recognised(b"model")
    ('this is a GGUF file', '')
    """
    lower = head.removeprefix(b"\xef\xbb\xbf").lower()
    texts = (lower, lower.lstrip())
    if not any(text.startswith(_BEGINS) for text in texts):  # as nearly all files of a listing
        return ""
    return next((words for begin, words in _SENTENCES if any(text.startswith(begin) for text in texts)), "")


def recognised_file(file: RangeReader) -> str:
    """Return what an open file is, as `recognised`, or by its last bytes."""
    head = file.read(0, min(file.size_bytes, HEAD_BYTES))
    if words := recognised_zip(file, head) or recognised(head):
        return words
    is_table = file.size_bytes > HEAD_BYTES and file.read(file.size_bytes - 8, 8) == _TABLE_END
    return _TF_V1 if is_table and not file.path.endswith(".index") else ""


def recognised_zip(file: RangeReader, head: bytes) -> str:
    """Return what a zip with these first bytes is by the names of its members; '' for another file.

    No member is decoded, and what is cut has no directory: then the first bytes tell.
    """
    if head[:4].lower() != _ZIP:
        return ""
    size = min(file.size_bytes, _DIRECTORY_BYTES)
    tail = file.read(file.size_bytes - size, size)
    names = [entry[42 : 42 + int.from_bytes(entry[24:26], "little")] for entry in tail.split(b"PK\1\2")[1:]]
    return next((words for end, words in _MEMBERS if any(name.endswith(end) for name in names)), "")


def recognised_names(names: Collection[str]) -> str:
    """Return what a directory is that has entries of some names and no version; '' where they do not show it.

    >>> recognised_names(["model-q4.gguf"])[:19], recognised_names(["notes.txt"])
    ('this is a GGUF file', '')
    """
    if not _OF_ORBAX.isdisjoint(names):
        return _ORBAX
    by_ending = ((".gguf", _GGUF), (".h5", _HDF5), (".keras", _KERAS))
    for ending, words in by_ending:
        if any(name.endswith(ending) for name in names):
            return words
    prefixes = {name.removesuffix(".meta") for name in names if name.endswith(".meta")}
    present = set(names)
    if any(prefix in present and f"{prefix}.index" not in present for prefix in prefixes):
        return _TF_V1
    return ""
