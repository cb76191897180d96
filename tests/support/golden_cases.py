"""The golden checkpoints by name, and where each stands in expected.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CURRENT = ["ps1", "ps2", "ps3", "ps4"]

LEGACY = {"v0d": "v0", "v1": "v1", "v1c": "v1", "v1c-slots": "v1", "v1s": "v1", "v2": "v2", "v3": "v3", "v4a": "v4"}

BEYOND_ELASTICDL = {
    "legacy/v0d": {"unsupported-dtype"},
    "legacy/v1": {"unsupported-dtype"},
    "legacy/v1c": {"unsupported-dtype"},
    "legacy/v1s": {"unsupported-dtype"},
    "legacy/v1c-slots": {"unknown-initializer"},
}
"""What keeps today's ElasticDL from restoring the content of old files in any generation: float16, and slot tables
of optimizers, whose initializer is a number."""

ALL = [f"current/{name}" for name in CURRENT] + [f"legacy/{name}" for name in LEGACY]


def section_of(expected: Any, case: str) -> Any:
    kind, name = case.split("/")
    return expected[kind] if kind == "current" else expected[kind][name]


def shard_files(location: Path) -> list[Path]:
    return [p for p in location.rglob("*") if p.is_file() and p.suffix in {".ckpt", ".chkpt"}]
