"""The files of a version that have values or ids; the others are not the system's, or are left from an earlier save."""

from __future__ import annotations

from edl_ckpt.core.reading.reader import Checkpoint


def files_read(source: Checkpoint) -> frozenset[str]:
    """Return the files of a version, by their paths in it, that have a value or an id of anything in its index."""
    paths: set[str] = set()
    for shard in source.shards:
        files = shard.file.files
        extents = [entry.values for entry in shard.variables]
        extents += [entry.values for entry in shard.tables]
        extents += [run for table in shard.tables for run in table.ids if run.is_stored]
        paths.update(files[extent.file].path for extent in extents if extent.file < len(files))
        of_boxes = shard.sources
        for rows in shard.gathered:
            paths.update(of_boxes[box.extent.file].path for box in rows.boxes)
            if rows.order is not None:
                paths.add(of_boxes[rows.order.file].path)
    return frozenset(map(source.version.name_of, paths))
