"""ElasticDL as a source: what it claims of a listing, and the index of a version, of all layouts and generations.

Names alone show which entries of a location are versions. One is complete when its directory has all its ps_num files
and no other entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.model.layouts import ShardName, VersionName
from edl_ckpt.core.model.systems import System
from edl_ckpt.core.model.versions import UNNUMBERED, ShardFile, State, Version
from edl_ckpt.core.sources.determined.record import is_uuid
from edl_ckpt.core.sources.elasticdl import names
from edl_ckpt.core.sources.interface import FlatListing, OnFault, ReadSmall
from edl_ckpt.core.storage.interface import Entry, RangeReader

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.model.tables import Problem, ShardIndex

about: Final = System(
    names.SYSTEM,
    "ElasticDL",
    "PS",
    writes=True,
    judged_with=("ElasticDL",),
    names_layouts=True,
    has_initializers=True,
    scans_locations=True,
    restores_one_row=True,
)
systems: Final = (about.name,)
alone = names.FREE_FILE
endings: Final = (".ckpt", ".chkpt")
shard_named, version_named, version_names = names.shard_named, names.version_named, names.version_names


def looks_into(directory: str) -> bool:
    """Say whether a directory's name is that of a version."""
    return "/" not in directory and (names.parse_version_dir(directory) is not None or is_uuid(directory))


def claims(listing: FlatListing, read_small: ReadSmall) -> list[Version]:  # noqa: ARG001 - names suffice
    """Return the versions among the entries of a location, without metadata."""
    named = ((entry, names.version_named(entry.name)) for entry in listing.inside.get("", ()))
    return [_version(listing, entry, by_name) for entry, by_name in named if by_name and _is(listing, entry, by_name)]


def _is(listing: FlatListing, entry: Entry, named: VersionName) -> bool:
    """Say whether an entry that has the name of a version is one: others may use such names.

    So a directory with other files, and without one shard, is none; an empty one is a version that begins, or is left.
    """
    if named.is_file or entry.fault:
        return not (named.is_file and entry.is_dir)
    content = listing.inside.get(entry.relative, ())
    has_shards = any(names.shard_named(file.name) for file in content)
    return entry.is_dir and (has_shards or not (content or named.layout.needs_shards))


def _version(listing: FlatListing, entry: Entry, named: VersionName) -> Version:
    """Return the version in a directory, or in a file, which is its one shard."""
    layouts = names.OF_SUFFIX[named.layout.name]
    files = [entry] if named.is_file else listing.inside.get(entry.relative, ())
    shards: list[ShardFile] = []
    extra: list[str] = []
    suffixes: set[str] = set()
    fault = entry.fault
    for file in files:
        part = ShardName(0, 1, named.layout.suffix) if named.is_file else names.shard_named(file.name)
        if part is None or file.is_dir or part.suffix not in layouts:
            extra.append(file.name)
            continue
        fault = fault or file.fault
        suffixes.add(part.suffix)
        facts = (file.path, file.size_bytes, file.modified, file.linked)
        shards.append(ShardFile(part.ps_id, part.ps_num, *facts, mark=file.mark, changed_ns=file.changed_ns))
    shards.sort(key=lambda shard: (shard.ps_num, shard.ps_id, shard.path))
    modified = max([entry.modified, *(file.modified for file in files)])
    counts = {shard.ps_num for shard in shards}
    ps_num = counts.pop() if len(counts) == 1 and len(suffixes) == 1 else None
    if named.number is None:  # ElasticDL never reads a directory named by a UUID
        extra.clear()
    state = _state(shards, ps_num, has_extra=bool(extra), is_fresh=listing.is_fresh(modified))
    return Version(
        listing.location,
        UNNUMBERED if named.number is None else named.number,
        entry.path,
        layouts.get(min(suffixes, default=""), named.layout),
        State.UNREADABLE if fault else state,
        ps_num,
        tuple(shards),
        tuple(sorted(extra)),
        modified,
        fault=fault,
        linked=entry.linked,
    )


def _state(shards: Sequence[ShardFile], ps_num: int | None, *, has_extra: bool, is_fresh: bool) -> State:
    """Return the state that names show; `ps_num` is None where the shards have several numbers or suffixes."""
    if shards and ps_num is None:
        return State.MIXED
    if ps_num is None or len(shards) < ps_num:
        return State.WRITING if is_fresh else State.INCOMPLETE
    return State.INVALID if has_extra else State.COMPLETE


def number_in_file(reader: RangeReader, name: str) -> int:
    """Return the version in a model, read from its first fields; without any, the number at the end of the name."""
    from edl_ckpt.core.sources.elasticdl import wire  # numpy: most references name no file

    if not reader.size_bytes:
        raise CorruptError("the file is empty (0 bytes)", code="empty-file", path=reader.path, offset=0)
    known = False
    try:
        for field in wire.Cursor(reader).fields(0, reader.size_bytes):
            if field.number == 1 and field.wire_type == wire.VARINT:
                return wire.signed32(field.value)
            if field.number not in {2, 3, 4, 5} or field.wire_type != wire.BYTES:  # the fields of all generations
                break  # a field that no reader knows, or damage: reading the rest tells which
            known = True
    except CorruptError:
        pass  # likewise, behind a field of a model
    if known:
        return names.number_in_name(name) or 0
    raise CorruptError(
        "not a checkpoint: it begins as no file of any system does that is read",
        path=reader.path,
        offset=0,
        hint="to import it as an ElasticDL checkpoint: edl-ckpt import FILE LOCATION@VERSION --ranks N",
    )


def index(
    version: Version, readers: Mapping[str, RangeReader], *, workers: int = 1, on_fault: OnFault | None = None
) -> Sequence[ShardIndex]:
    """Return the contents of shards; their generation is decided over all of them together."""
    from edl_ckpt.core.sources.elasticdl.indexing import index_version  # numpy and protobuf: no listing needs them

    return index_version(version, readers, workers=workers, on_fault=on_fault)


def check(version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex | None, Problem]]:
    """Return what the headers show that ElasticDL would lose, refuse or take for something else."""
    from edl_ckpt.core.sources.elasticdl.consistency import cross_check  # numpy

    return cross_check(version, shards)


def blocking(version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex, Problem]]:
    """Return the problems that make the content of a version uncertain."""
    from edl_ckpt.core.sources.elasticdl.consistency import blocking_problems  # numpy

    return blocking_problems(version, shards)
