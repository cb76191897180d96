"""Files of torch.save: their zips and pickles, read without torch, and the files of ranks joined."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System
from edl_ckpt.core.sources.torch.names import ENDINGS, INDEX

ABOUT: Final = System("torch", "torch.save", "file", writes=True, judged_with=("torch 2.13",))
MARKS: Final = (*ENDINGS, INDEX)
ALONE: Final = True
