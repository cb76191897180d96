"""The check of `fault_shim.c`: each function that it stands for fails as it was told, by a path and by a descriptor.

`python -m shim_check FOLDER`, with the library before the C library, prints the error of each call. The C library's
functions are called by their names, so each of its variants is: `open64`, `fstatat64`, `renameat2`. Then Python's calls
by a descriptor, and those of an open `Directory`, must meet the same functions.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import c_char_p, c_int, c_long, c_void_p
from errno import ESTALE
from pathlib import Path

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.storage.beneath import Directory
from shim_sweep import ERROR, shim

_MAP_FAILED = 2**64 - 1
_READ, _CREATE = os.O_RDONLY, os.O_WRONLY | os.O_CREAT
_AT_REMOVEDIR = 0x200

_BUFFER = ctypes.create_string_buffer(4096)
_C: tuple[tuple[str, str, tuple[object, ...]], ...] = (
    ("open open64", "open", (b"F", _READ, 0)),
    ("openat openat64", "create", ("dir", b"new", _CREATE, 0o600)),
    ("read", "read", ("file", _BUFFER, c_long(8))),
    ("write", "write", ("file", _BUFFER, c_long(8))),
    ("pread pread64", "pread", ("file", _BUFFER, c_long(8), c_long(0))),
    ("pwrite pwrite64", "pwrite", ("file", _BUFFER, c_long(8), c_long(0))),
    ("preadv preadv64", "pread", ("file", _BUFFER, 1, c_long(0))),
    ("preadv2 preadv64v2", "pread", ("file", _BUFFER, 1, c_long(0), 0)),
    ("mmap mmap64", "mmap", (None, c_long(8), 1, 1, "file", c_long(0))),
    ("close", "close", ("extra",)),
    ("fsync fdatasync", "fsync", ("file",)),
    ("flock", "flock", ("file", 1)),
    ("ftruncate ftruncate64", "ftruncate", ("file", c_long(8))),
    ("fstat fstat64", "fstat", ("file", _BUFFER)),
    ("fchmod", "chmod", ("file", 0o600)),
    ("fchown", "chown", ("file", -1, -1)),
    ("futimens", "utime", ("file", None)),
    ("fsetxattr", "setxattr", ("file", b"user.x", b"v", c_long(1), 0)),
    ("fstatvfs fstatvfs64", "statvfs", ("file", _BUFFER)),
    ("posix_fallocate posix_fallocate64", "fallocate", ("file", c_long(0), c_long(8))),
    ("stat stat64", "stat", (b"F", _BUFFER)),
    ("lstat lstat64", "lstat", (b"F", _BUFFER)),
    ("statvfs statvfs64", "statvfs", (b"F", _BUFFER)),
    ("access", "access", (b"F", 0)),
    ("unlink", "unlink", (b"F",)),
    ("rmdir", "rmdir", (b"D",)),
    ("mkdir", "mkdir", (b"N", 0o700)),
    ("chmod", "chmod", (b"F", 0o600)),
    ("chown lchown", "chown", (b"F", -1, -1)),
    ("rename", "rename", (b"F", b"N")),
    ("symlink", "symlink", (b"x", b"N")),
    ("readlink", "readlink", (b"F", _BUFFER, c_long(64))),
    ("link", "link", (b"F", b"N")),
    ("fstatat fstatat64", "lstat", ("dir", b"file", _BUFFER, 0x100)),
    ("symlinkat", "symlink", (b"x", "dir", b"new")),
    ("readlinkat", "readlink", ("dir", b"file", _BUFFER, c_long(64))),
    ("utimensat", "utime", ("dir", b"file", None, 0)),
    ("faccessat", "access", ("dir", b"file", 0, 0)),
    ("unlinkat", "rmdir", ("dir", b"inside", _AT_REMOVEDIR)),
    ("mkdirat", "mkdir", ("dir", b"new", 0o700)),
    ("fchmodat", "chmod", ("dir", b"file", 0o600, 0)),
    ("fchownat", "chown", ("dir", b"file", -1, -1, 0)),
    ("renameat", "rename", ("dir", b"file", "dir", b"new")),
    ("renameat2", "rename", ("dir", b"file", "dir", b"new", 1)),
    ("linkat", "link", ("dir", b"file", "dir", b"new", 0)),
    ("opendir", "opendir", (b"D",)),
    ("fdopendir", "opendir", ("extra",)),
    ("readdir readdir64", "readdir", ("stream",)),
)
"""Functions, what they count as, and their arguments: F a file, D a directory, N a new name, by their paths."""


def _python(top: Directory, fd: int, path: str) -> Iterator[tuple[str, str, Callable[[], object]]]:
    at = {"dir_fd": top.fd}
    yield "os.open at", "open", lambda: os.open("file", _READ, **at)
    yield "os.open at, new", "create", lambda: os.open("new", _CREATE, **at)
    yield "os.mkdir at", "mkdir", lambda: os.mkdir("new", **at)
    yield "os.mkdir", "mkdir", lambda: os.mkdir(f"{path}/new")
    yield "os.rename at", "rename", lambda: os.rename("file", "new", src_dir_fd=top.fd, dst_dir_fd=top.fd)
    yield "os.replace", "rename", lambda: os.replace(f"{path}/file", f"{path}/new")
    yield "os.link at", "link", lambda: os.link("file", "new", src_dir_fd=top.fd, dst_dir_fd=top.fd)
    yield "os.unlink at", "unlink", lambda: os.unlink("file", **at)
    yield "os.rmdir at", "rmdir", lambda: os.rmdir("inside", **at)
    yield "os.stat at", "lstat", lambda: os.stat("file", follow_symlinks=False, **at)
    yield "os.listdir of a number", "opendir", lambda: os.listdir(top.fd)
    yield "os.posix_fallocate", "fallocate", lambda: os.posix_fallocate(fd, 0, 8)
    yield "os.pwrite", "pwrite", lambda: os.pwrite(fd, b"x", 0)
    yield "os.write", "write", lambda: os.write(fd, b"x")
    yield "os.fsync", "fsync", lambda: os.fsync(fd)
    yield "open", "create", lambda: Path(path, "new").write_bytes(b"x")
    yield "Directory.make", "mkdir", lambda: top.make("new")
    yield "Directory.enter", "mkdir", lambda: top.enter("new", make=True)
    yield "Directory.create", "create", lambda: top.create("new", 8)
    yield "Directory.rename", "rename", lambda: top.rename("file", top, "new")
    yield "Directory.rename_new", "rename", lambda: top.rename_new("file", top, "new")
    yield "Directory.exchange", "rename", lambda: top.exchange("file", top, "inside")
    yield "Directory.unlink", "unlink", lambda: top.unlink("file")
    yield "Directory.remove_empty", "rmdir", lambda: top.remove_empty("inside")
    yield "Directory.flush", "fsync", top.flush


def _error_of(call: Callable[[], object]) -> int | None:
    try:
        call()
    except EdlCkptError as error:
        return getattr(error.__cause__, "errno", None)
    except OSError as error:
        return error.errno
    return None


def main(folder: str) -> None:
    """Print the error of each call."""
    library, c = shim(), ctypes.CDLL(None, use_errno=True)
    Path(folder, "file").write_bytes(b"bytes")
    Path(folder, "inside").mkdir()
    paths = {b"F": f"{folder}/file", b"D": f"{folder}/inside", b"N": f"{folder}/new"}
    fd = os.open(f"{folder}/file", os.O_RDWR)
    c.fdopendir.restype = c.opendir.restype = c.readdir.restype = c.readdir64.restype = c.mmap.restype = c_void_p
    c.mmap64.restype = c_void_p
    found: dict[str, dict[str, int | None]] = {"c": {}, "python": {}}
    with Directory.open(folder) as top:
        stream = c_void_p(c.opendir(c_char_p(os.fsencode(folder))))

        def value(word: object) -> object:
            if isinstance(word, bytes):
                return c_char_p(os.fsencode(paths.get(word, word)))
            numbers = {"file": fd, "dir": top.fd}
            if word == "extra":
                return c_int(os.open(folder, os.O_RDONLY))
            return stream if word == "stream" else c_int(numbers[word]) if isinstance(word, str) else word

        def armed(label: str, call: Callable[[], object]) -> int | None:
            library.shim_arm(label.encode(), os.fsencode(folder), 1, ESTALE, ERROR, 0)
            try:
                return _error_of(call)
            finally:
                library.shim_disarm()

        for name, label, words in ((name, label, words) for names, label, words in _C for name in names.split()):
            values = [value(word) for word in words]

            def call(name: str = name, values: list[object] = values) -> None:
                ctypes.set_errno(0)
                result = getattr(c, name)(*values)
                if name.startswith("posix_"):
                    raise OSError(result, "")
                if result in {-1, None, _MAP_FAILED}:
                    raise OSError(ctypes.get_errno(), "")

            found["c"][name] = armed(label, call)
        for name, label, act in _python(top, fd, folder):
            found["python"][name] = armed(label, act)
    with suppress(OSError):
        os.close(fd)
    print(json.dumps(found))


if __name__ == "__main__":
    main(os.path.realpath(sys.argv[1]))
