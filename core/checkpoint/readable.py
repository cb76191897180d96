"""Whether a version that is complete by its listing can be read.

Savers write in place, so a listing can show all files of a version while the last one is still being written. Its
headers tell: such a shard is shorter than they say, grows while it is read, or ends before it describes its tables.
"""

from __future__ import annotations

from edl_ckpt.core.checkpoint.reader import open_checkpoint
from edl_ckpt.core.format.model import Version


def read_fault(version: Version) -> str | None:
    """Return why ElasticDL could not restore a version, as far as headers show; None when they show no fault.

    Raises the error of reading them, CorruptError for headers that are damaged.
    """
    with open_checkpoint(version) as checkpoint:
        for shard in checkpoint.shards:
            if checkpoint.reader(shard).size_bytes != shard.file.size_bytes:
                return f"{shard.file.path}: still being written"
            absent = checkpoint.infos.keys() - {info.name for info in shard.infos}
            if absent:
                return f"{shard.file.path}: does not describe table {min(absent)!r}, as other shards do"
    return None
