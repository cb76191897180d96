"""How an operation tells how far it is: a protocol, and the one that does nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """What an operation calls as it goes on; called from several threads."""

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase of `total_bytes` bytes of work."""
        ...

    def advance(self, size_bytes: int) -> None:
        """Say that this many more bytes are done."""
        ...


class NoProgress:
    """Progress that nobody watches."""

    def start(self, what: str, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, size_bytes: int) -> None:
        """Do nothing."""


SILENT = NoProgress()
