"""A format by its folder: the folder's `__init__.py` describes it, and its `format.py` reads the files.

`source` asks a format for a step only where one of its marks is in the names of the files, so a location without such
steps never imports its reader.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # a location may have no step of any format
    from edl_ckpt.core.model.systems import System
    from edl_ckpt.core.sources.steps.content import Content
    from edl_ckpt.core.sources.steps.interface import Claim, Digest, Files, FormatReader
    from edl_ckpt.core.storage.interface import RangeReader


class Description(Protocol):
    """The `__init__.py` of a format's folder: what a listing needs of the format before it sees a file of it."""

    __name__: str

    @property
    def ABOUT(self) -> System:  # noqa: N802 - constants of a module
        """Return what the system says of itself."""

    @property
    def MARKS(self) -> tuple[str, ...]:  # noqa: N802
        """Return parts of the names of its files; it does not see a step whose names have none of them."""

    @property
    def ALONE(self) -> bool:  # noqa: N802
        """Say whether a step of it has no part of another format; other formats may share a step."""


class FormatFolder:
    """A format whose reader is imported when the first step of it is seen."""

    def __init__(self, folder: Description) -> None:
        self._name = folder.__name__
        self.about = folder.ABOUT
        self.system = folder.ABOUT.name
        self.marks = folder.MARKS
        self.alone = folder.ALONE

    @functools.cached_property
    def _reader(self) -> FormatReader:
        reader: FormatReader = import_module(f"{self._name}.format")
        return reader

    @property
    def digest(self) -> Callable[[RangeReader], Digest]:
        """Return the function of the reader: other processes find it by its module."""
        return self._reader.digest

    def heads(self, files: Files) -> Sequence[str]:
        """Return what `FormatReader.heads` returns."""
        return self._reader.heads(files)

    def claim(self, files: Files, digests: Mapping[str, Any]) -> Claim | None:
        """Return what `FormatReader.claim` returns."""
        return self._reader.claim(files, digests)

    def index(self, content: Content) -> None:
        """Add to the content of a version, as `FormatReader.index` does."""
        self._reader.index(content)
