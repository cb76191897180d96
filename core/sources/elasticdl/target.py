"""The one door for writers of ElasticDL's shards: names, layouts, and the checks of what is written."""

from edl_ckpt.core.sources.elasticdl.checks import check_ps_num, check_texts, check_version, restore_warnings
from edl_ckpt.core.sources.elasticdl.generations import MAX_DIM, why_impossible
from edl_ckpt.core.sources.elasticdl.indexing import PlannedReader, planned_shards
from edl_ckpt.core.sources.elasticdl.literals import Literals
from edl_ckpt.core.sources.elasticdl.names import (
    DESIGN,
    ELASTICDL,
    WRITABLE,
    copied_layouts,
    numbers_among,
    writable_layout,
)
from edl_ckpt.core.sources.elasticdl.placement import MAX_PS_NUM, row_owners, variable_owner
from edl_ckpt.core.sources.elasticdl.shard_layout import (
    EMPTY_MODEL,
    CountedTable,
    PlacedVariable,
    VersionLayout,
    lay_out_shards,
    write_groups,
)
