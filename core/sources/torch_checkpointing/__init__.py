"""Checkpoints of torch_checkpointing, Meta's library: a file for each item and rank, and what joins them."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System
from edl_ckpt.core.sources.torch_checkpointing.names import METADATA

ABOUT: Final = System(
    "torch-checkpointing", "torch_checkpointing", "rank", writes=True, judged_with=("torch_checkpointing 0.1.1",)
)
MARKS: Final = ("_0.pt", METADATA)
ALONE: Final = True
