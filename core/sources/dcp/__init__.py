"""PyTorch distributed checkpoints (DCP), with the tables of TorchRec."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System

ABOUT: Final = System("dcp", "torch DCP", "rank", writes=True, judged_with=("torch 2.13", "torchrec 1.8"))
MARKS: Final = (".distcp", ".metadata")
ALONE: Final = False
