"""The files of TFRA's FileSystemSaver: tables of TensorFlow Recommenders Addons beside a TensorFlow checkpoint."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System

ABOUT: Final = System(
    "tfra", "TFRA", writes=True, judged_with=("tensorflow-recommenders-addons 0.8.1",), known_by_names=True
)
MARKS: Final = ("-keys", "-values")
ALONE: Final = False
