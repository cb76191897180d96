"""safetensors: tensors behind a JSON header, in one file or in a set with an index, as Hugging Face saves them."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.model.systems import System

ABOUT: Final = System("safetensors", "safetensors", writes=True, judged_with=("safetensors", "transformers"))
MARKS: Final = (".safetensors",)
ALONE: Final = False
