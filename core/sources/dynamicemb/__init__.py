"""The files of dynamicemb: hash tables of TorchRec models, as NVIDIA's recsys-examples and TorchEasyRec save them."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System

ABOUT: Final = System(
    "dynamicemb", "dynamicemb", "rank", writes=True, judged_with=("recsys-examples",), known_by_names=True
)
MARKS: Final = (".rank_",)
ALONE: Final = False
