"""Values outside of the output: in an .npy file, or as bytes alone, in a file, a pipe or stdout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from edl_ckpt.core.base.errors import RefusedError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class ValueFiles:
    """Where the values go beside the output: an .npy file, and their bytes alone."""

    npy: str | None
    raw: str | None

    def write(self, values: npt.NDArray[np.generic]) -> bool:
        """Write the values; return False when stdout has them, and nothing else may go there."""
        import numpy as np

        if self.npy == self.raw == "-":
            raise UsageError("--npy and --raw cannot both be stdout")
        if self.npy is None and self.raw is None:
            return True
        whole = values.copy(order="C")  # which keeps the shape of a scalar
        data = whole.reshape(-1).view(np.uint8).data
        if self.npy is not None:
            with _opened(self.npy) as file:
                np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
                file.write(data)
        if self.raw is not None:
            with _opened(self.raw) as file:
                file.write(data)
        return "-" not in {self.npy, self.raw}


@contextmanager
def _opened(path: str) -> Iterator[IO[bytes]]:
    """Open a file, a pipe or stdout for values; a terminal is refused, and so is what is no file and no stream."""
    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.local import STDOUT, check_target, is_stream, open_stream

    path = STDOUT if path == "-" else path
    if not is_stream(path):
        check_target(path)
        with storage_errors(path), open(path, "wb") as file:
            yield file
        return
    with open_stream(path) as stream:
        if stream.isatty():
            raise RefusedError("is a terminal, and values are no text", path=path, hint="give a file, or a pipe")
        yield stream
