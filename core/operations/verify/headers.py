"""The faults that the headers of a version show, without reading ids or values."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.reading.reader import Checkpoint, open_checkpoint
from edl_ckpt.core.sources.registry import source_of
from edl_ckpt.core.storage.interface import RangeReader


def open_readable_shards(
    version: Version, report: Report, stack: ExitStack, opened: dict[str, RangeReader]
) -> tuple[Checkpoint, bool]:
    """Open every shard that can be indexed, report the others, and return whether every shard is indexed.

    `opened` gets every reader that could be opened, by file name, even if its shard cannot be indexed.
    """
    files: Sequence[ShardFile] = version.shards
    if version.state is State.MIXED:  # the largest complete set, or else the largest
        sets: dict[tuple[int, str], list[ShardFile]] = {}
        for shard in version.shards:
            sets.setdefault((shard.ps_num, shard.path.rpartition(".")[2]), []).append(shard)
        files = max(sets.values(), key=lambda members: (len(members) == members[0].ps_num, members[0].ps_num))
    present = replace(version, shards=tuple(files), state=State.INCOMPLETE)
    checkpoint = stack.enter_context(open_checkpoint(present, partial="whole", staged=True))
    checkpoint.version = version
    of_number = {file.ps_id: file for file in files}
    for lost in checkpoint.lost:
        subject = ""
        if lost.code == "missing-shard":
            subject = "the shard cannot be opened: "
        elif lost.message.startswith("ends after "):
            subject = f"shard {lost.shard} "
        report.add(lost.code, subject + lost.message, shard=of_number[lost.shard or 0], offset=lost.offset)
    opened |= {version.name_of(path): reader for path, reader in checkpoint.files.items()}
    return checkpoint, len(checkpoint.shards) == len(version.shards) and not (version.lacks or version.missing_ranges)


def check_headers(version: Version, checkpoint: Checkpoint, report: Report) -> None:
    """Report the faults that headers show: contradictions, misplaced variables, sizes, generation, unknown fields."""
    own = ((shard, problem) for shard in checkpoint.shards for problem in shard.problems)
    across = (found for found in source_of(version).check(version, checkpoint.shards) if found[1].code != "lost-info")
    for shard, fault in chain(own, across):
        file = shard.file if shard else None
        name = fault.subject
        offset = fault.offset
        warning = fault.warning and not fault.unread
        report.add(
            fault.code, fault.message, shard=file, path=version.path, subject=name, offset=offset, warning=warning
        )
