"""The version of edl-ckpt: the same literal as in pyproject.toml, compared by a test."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
