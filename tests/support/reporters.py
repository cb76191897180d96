"""Reporters that remember what an operation reported."""

from __future__ import annotations

from edl_ckpt.core.base.progress import SilentReporter


class Recorder(SilentReporter):
    """Keeps the warnings in their order."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """Remember a warning."""
        self.warnings.append(text)
