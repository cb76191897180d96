"""The formats that are built in, in the order in which they are asked: the only place that knows their folders."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.sources.bundle import format as bundle
from edl_ckpt.core.sources.dcp import format as dcp
from edl_ckpt.core.sources.dynamicemb import format as dynamicemb
from edl_ckpt.core.sources.safetensors import format as safetensors
from edl_ckpt.core.sources.steps.interface import Format
from edl_ckpt.core.sources.tfra import format as tfra
from edl_ckpt.core.sources.torch import format as torch
from edl_ckpt.core.sources.torch_checkpointing import format as torch_checkpointing

FORMATS: Final[tuple[Format, ...]] = (dcp, bundle, safetensors, tfra, dynamicemb, torch_checkpointing, torch)
"""The first one that has a part of a step names its system."""
