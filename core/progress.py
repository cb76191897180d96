"""How an operation reports: warnings, and how far it is. A protocol, and the reporter that says nothing."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """What an operation calls as it works; called from several threads."""

    def warn(self, text: str) -> None:
        """Tell people something that they should look at; the operation goes on."""
        ...

    def start(self, what: str, total_bytes: int) -> None:
        """Begin a phase of `total_bytes` bytes of work."""
        ...

    def advance(self, size_bytes: int) -> None:
        """Report that this many more bytes are done."""
        ...


class SilentReporter:
    """A reporter that nobody listens to."""

    def warn(self, text: str) -> None:
        """Do nothing."""

    def start(self, what: str, total_bytes: int) -> None:
        """Do nothing."""

    def advance(self, size_bytes: int) -> None:
        """Do nothing."""


SILENT = SilentReporter()
