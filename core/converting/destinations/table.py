"""The destinations that are built in, by their systems.

All of them are imported here, which takes a tenth of the start of a reshard: what writes to ElasticDL does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edl_ckpt.core.converting.destinations.bundle import ToBundle
from edl_ckpt.core.converting.destinations.dcp import ToDcp
from edl_ckpt.core.converting.destinations.dynamicemb import ToDynamicemb
from edl_ckpt.core.converting.destinations.interface import Destination
from edl_ckpt.core.converting.destinations.safetensors import ToSafetensors
from edl_ckpt.core.converting.destinations.tfra import ToTfra
from edl_ckpt.core.converting.destinations.torch import ToTorch
from edl_ckpt.core.converting.destinations.torch_checkpointing import (
    ToOwnTorchCheckpointing,
    ToTorchCheckpointing,
)

DESTINATIONS: Final[Mapping[str, type[Destination]]] = {
    each.system: each for each in (ToDcp, ToBundle, ToSafetensors, ToTfra, ToDynamicemb, ToTorch, ToTorchCheckpointing)
}
"""Every system whose files can be written, besides ElasticDL: a reshard lays out its shards."""

ANEW: Final[Mapping[str, type[Destination]]] = {each.system: each for each in (ToOwnTorchCheckpointing,)}
"""Systems whose versions are written anew in another way than those of others become theirs."""
