"""Annotations on the page of a GitHub job: lines on stderr that its runner reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.cli.terminal.text import escaped

if TYPE_CHECKING:
    from edl_ckpt.core.operations.verify.findings import VerifyResult

_SHOWN: Final = 10
"""GitHub shows ten errors and ten warnings of a step, and drops the others."""


def is_runner() -> bool:
    """Return True when a runner of GitHub Actions reads the output."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotation(severity: str, message: str, title: str = "edl-ckpt") -> str:
    """Return a workflow command, 'error' or 'warning', without its end of line.

    >>> annotation("error", "50% is lost", "verify: 1")
    '::error title=verify%3A 1::50%25 is lost'
    """
    return f"::{severity} title={_data(title).replace(':', '%3A').replace(',', '%2C')}::{_data(message)}"


def finding_lines(results: Sequence[VerifyResult]) -> Iterator[str]:
    """Yield an annotation for each finding of verify, as many as are shown; errors come first."""
    for severity in ("error", "warning"):
        found = [(result.ref, f) for result in results for f in result.findings if f.severity == severity]
        for ref, finding in found[:_SHOWN]:
            place = f" [{finding.place}]" if finding.place else ""
            yield annotation(severity, f"{ref}{place}: {finding.message}", finding.code)


def _data(text: str) -> str:
    return escaped(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
