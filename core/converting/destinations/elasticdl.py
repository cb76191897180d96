"""What shards of ElasticDL can hold; their layout is that of a reshard."""

from __future__ import annotations

from edl_ckpt.core.converting.destinations.interface import Holding
from edl_ckpt.core.sources.elasticdl.target import DESIGN


class ShardsHold(Holding):
    """Tables, and variables of the dtypes that tables have; items of other systems are left out."""

    system = DESIGN.system
    other_way = ""

    @property
    def holder(self) -> str:
        """Return what cannot hold a dtype, in words."""
        return "a checkpoint of ElasticDL"
