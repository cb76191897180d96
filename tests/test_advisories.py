"""The judgement of CI over the report of pip-audit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from places import TOP

VULNERABLE = {
    "name": "urllib3",
    "version": "1.26.4",
    "vulns": [{"id": "PYSEC-2021-108", "fix_versions": ["1.26.5"], "aliases": ["CVE-2021-33503"], "description": ""}],
}
SOUND = {"name": "numpy", "version": "2.3.0", "vulns": []}
UNKNOWN = {"name": "nosuch", "skip_reason": "Dependency not found on PyPI and could not be audited: nosuch (1)"}


@pytest.mark.parametrize(
    ("packages", "code", "words"),
    [
        ([SOUND, VULNERABLE], 1, "urllib3 1.26.4: PYSEC-2021-108, fixed in 1.26.5"),
        ([SOUND], 0, "1 packages audited, 0 advisories"),
        ([SOUND, UNKNOWN], 0, "not audited: nosuch"),
        ([UNKNOWN], 0, "skipped: "),
        (None, 0, "skipped: "),
    ],
)
def test_advisories_end_ci(packages: list[dict[str, Any]] | None, code: int, words: str, tmp_path: Path) -> None:
    """A known vulnerability ends CI with 1; what could not be audited is named, never silent."""
    report = tmp_path / "audit.json"
    if packages is not None:
        report.write_text(json.dumps({"dependencies": packages, "fixes": []}))
    done = subprocess.run(
        [sys.executable, TOP / ".ci" / "advisories.py", report], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr
    assert words in done.stdout
