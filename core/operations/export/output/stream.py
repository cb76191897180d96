"""An export into a stream: stdout, a pipe or a device. Rows go out as they are made; arrays are proved before they do.

Formats of arrays have their fingerprint in front, and are read back for the proof, so they are written to the local
disk first. Nothing has to seek in the stream.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final, Self, cast

from edl_ckpt.core.base.errors import RefusedError, UsageError
from edl_ckpt.core.base.interruption import COMMIT
from edl_ckpt.core.operations.export.interface import ExportedFile, FormatTraits
from edl_ckpt.core.operations.export.output.places import OutputFile
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.streams import open_stream

_CHUNK_BYTES: Final = 1 << 20


class StreamTarget:
    """A stream as a target; what was written into it cannot be taken back."""

    def __init__(self, name: str, traits: FormatTraits, *, is_file: bool) -> None:
        if not is_file:
            raise UsageError(
                f"this export as {traits.name} is several files; a stream takes one",
                path=name,
                hint="give a directory as OUTPUT",
            )
        self._name = name
        self._directory = tempfile.TemporaryDirectory(prefix="edl-ckpt-")
        self.path = os.path.join(self._directory.name, "output")
        self.beside = ""
        self._is_text = traits.is_text
        self._size = 0

    def __enter__(self) -> Self:
        try:
            self._stream = self._open()
        except BaseException:
            self._directory.cleanup()
            raise
        return self

    def _open(self) -> IO[bytes]:
        stream = open_stream(self._name)
        if stream.isatty() and not self._is_text:
            stream.close()
            raise RefusedError(
                "is a terminal, and this format is not text", path=self._name, hint="give a file, or a pipe behind it"
            )
        return stream

    def __exit__(self, *_: object) -> None:
        self._directory.cleanup()
        with _sent(self._name):
            self._stream.close()

    @contextmanager
    def open_text(self) -> Iterator[IO[str]]:
        """Return a file of text whose lines go into the stream."""
        counted = _Counted(self._name, self._stream)
        with io.TextIOWrapper(cast("IO[bytes]", counted), encoding="utf-8", newline="\n") as text:
            yield text
        self._size = counted.size

    def new_file(self, path: str, size_bytes: int) -> OutputFile:
        """Make a file on the local disk, which is sent at the end."""
        return OutputFile(path, size_bytes, durable=False)

    def publish(self) -> tuple[ExportedFile, ...]:
        """Send what was written to the local disk, if it was; return the stream with its bytes."""
        if os.path.exists(self.path):
            counted = _Counted(self._name, self._stream)
            with open(self.path, "rb") as file:
                shutil.copyfileobj(file, cast("IO[bytes]", counted), _CHUNK_BYTES)
            self._size = counted.size
        with _sent(self._name):
            self._stream.flush()
        with COMMIT:  # not around the flush, which may wait for the reader
            pass
        return (ExportedFile(self._name, self._size),)


class _Counted(io.BufferedIOBase):
    """Counts the bytes that go into a stream, which it leaves open."""

    def __init__(self, name: str, stream: IO[bytes]) -> None:
        self._name, self._stream = name, stream
        self.size = 0

    def writable(self) -> bool:
        """Return True: `TextIOWrapper` asks."""
        return True

    def write(self, data: Any) -> int:
        """Write all of some bytes."""
        with _sent(self._name):
            done = self._stream.write(data)
        self.size += done
        return done


@contextmanager
def _sent(name: str) -> Iterator[None]:
    """Translate errors of writing into ours; that the reader has gone is none, and ends the program quietly.

    Only of writing: storage that hangs up while it is read is an error.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        with storage_errors(name):
            raise error from None
