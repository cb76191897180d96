"""TensorFlow's tensor bundles, with the tables of DeepRec, TFPlus and TFRA."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System

ABOUT: Final = System("tensorflow", "TensorFlow", writes=True, judged_with=("tensorflow 2.16",))
MARKS: Final = (".index", ".data-")
ALONE: Final = False
