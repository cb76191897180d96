"""The version of edl-ckpt, which is written here and nowhere else."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
