"""The formats that are built in, in the order in which they are asked: the only place that knows their folders."""

from __future__ import annotations

from typing import Final

from edl_ckpt.core.sources import bundle, dcp, dynamicemb, safetensors, tfra, torch, torch_checkpointing
from edl_ckpt.core.sources.steps.folder import FormatFolder

FORMATS: Final[tuple[FormatFolder, ...]] = (
    FormatFolder(dcp),
    FormatFolder(bundle),
    FormatFolder(safetensors),
    FormatFolder(tfra),
    FormatFolder(dynamicemb),
    FormatFolder(torch_checkpointing),
    FormatFolder(torch),
)
"""The first one that has a part of a step names its system."""
