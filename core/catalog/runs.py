"""Which run each shard of a version is from, where servers save their own shards without a coordinator.

A restarted job that reaches a version again replaces one shard after the other. Until the last one is replaced, the
version has all its files and yet is a mixture. The notes on shards (`state/shard_note.py`) tell the runs apart: each
fits one file, and bears the name of a run. A version with a seal has one run: the servers seal no mixture, and take the
seal away before the first shard is replaced.

Servers may have no name for their run. The note of such a server then names the notes that were there before its saver
was made. A shard with one of those is of an earlier run, whatever the clocks of the machines say.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, NotFoundError, UnsupportedError
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.words import base_name
from edl_ckpt.core.model.versions import Seal, ShardFile, State, Version
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document, parse_seal
from edl_ckpt.core.state.paths import notes_dir, seal_file
from edl_ckpt.core.state.shard_note import EARLIER, NoteName, named_shards, note_names, read_note, run_digest
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import Store


@dataclass(frozen=True, slots=True)
class NotedShards:
    """The notes that fit the shards of a version, by ps_id, and the seal that it had before a shard was replaced."""

    notes: Mapping[int, NoteName]
    unknown: tuple[int, ...]
    """The shards that no note fits."""
    earlier: Seal | None = None

    @property
    def runs(self) -> set[str]:
        """Return the digests of the runs that the notes name."""
        return {note.run for note in self.notes.values()}


def find_notes(store: Store, version: Version) -> NotedShards:
    """Return the notes that fit the files of a version now; one look at each file, and none without notes."""
    names = note_names(store, version.version)
    marks = _marks(store, version) if names else {}
    fitting = {
        note.ps_id: note for note in names if note.ps_num == version.ps_num and marks.get(note.ps_id) == note.mark
    }
    unknown = tuple(shard.ps_id for shard in version.shards if shard.ps_id not in fitting)
    return NotedShards(fitting, unknown, _earlier_seal(store, version.version) if fitting and unknown else None)


def mixed_runs(version: Version) -> str:
    """Return why a version is no checkpoint of one run, in words; '' when its shards agree, as far as is known.

    Makes one listing, and looks at the shards only where servers left notes. A version that was sealed, or that other
    programs wrote, costs nothing more. Raises the errors of storage.
    """
    return mixture(open_store(version.location), version)


def mixture(store: Store, version: Version) -> str:
    """Do the work of `mixed_runs` in the opened store of the version."""
    if version.state is not State.COMPLETE or not version.layout.is_numbered:
        return ""
    if not note_names(store, version.version) or store.read_small(seal_file(version.version)) is not None:
        return ""
    found = find_notes(store, version)
    if not found.notes:  # a copy of the files, say: nothing is known
        return ""
    if are_mixed(store, version, found):
        return f"its shards are of several runs: {_described(store, version, found)}"
    before = _of_run(version, found)
    rest = [ps_id for ps_id in found.unknown if ps_id not in before]
    if not rest:
        return ""
    new, count = named_shards(sorted(found.notes), version.ps_num or 0), version.ps_num or 0
    have = "has" if len(found.notes) == 1 else "have"
    return f"{new} {have} been replaced, and {named_shards(rest, count)} may be of an earlier run"


def are_mixed(store: Store, version: Version, found: NotedShards) -> bool:
    """Say whether the notes on a version's shards show several runs, or cannot show that it is one.

    Savers without a name may see different notes when they are made, and yet be of one run: one of them is restarted,
    and saves its own shard again. They are of two where a shard is older than the saver of another one.
    """
    if len(found.runs) < 2:
        return False
    try:
        read = [read_note(store, version.version, name) for name in found.notes.values()]
    except (CorruptError, UnsupportedError):
        return True
    names = {str(name) for name in found.notes.values()}
    return any(note is None or note.run or not names.isdisjoint(note.older) for note in read)


def with_mixture(store: Store, version: Version) -> Version:
    """Return a version with what `mixed_runs` says of it; as it is when it changes just now."""
    with suppress(EdlCkptError):
        return replace(version, mixture=mixture(store, version))
    return version


def _of_run(version: Version, found: NotedShards) -> set[int]:
    """Return the shards without a note that an earlier seal shows to be of the same run, which has a name."""
    if found.earlier is None or not found.earlier.run or {run_digest(found.earlier.run)} != found.runs:
        return set()
    sizes = found.earlier.sizes
    return {
        shard.ps_id
        for shard in version.shards
        if shard.ps_id in found.unknown and sizes.get(base_name(shard.path)) == shard.size_bytes
    }


def _described(store: Store, version: Version, found: NotedShards) -> str:
    """Return which shards are of which run."""
    of: dict[str, list[int]] = {}
    for ps_id, note in sorted(found.notes.items()):
        of.setdefault(note.run, []).append(ps_id)
    parts = [
        f"{named_shards(shards, version.ps_num or 0)} of {_named_run(store, version.version, found.notes[shards[0]])}"
        for shards in of.values()
    ]
    if found.unknown:
        parts.append(f"{named_shards(found.unknown, version.ps_num or 0)} of an earlier one")
    return ", ".join(parts)


def _named_run(store: Store, version: int, name: NoteName) -> str:
    try:
        note = read_note(store, version, name)
    except EdlCkptError:
        note = None
    if note is None:
        return "a run that is not known"
    return f"run {note.run!r}" if note.run else f"a {'later ' if note.older else ''}run without a name"


def _marks(store: Store, version: Version) -> dict[int, str]:
    """Return the mark of each shard's file; NotFoundError when one is gone by now."""
    directory = base_name(version.path)

    def mark(shard: ShardFile) -> str:
        found = store.stat(f"{directory}/{base_name(shard.path)}")
        if found is None:
            raise NotFoundError("is gone", path=shard.path)
        return found.mark

    marks = run_parallel(mark, version.shards, store.properties.at_a_time(REMOTE_WORKERS))
    return {shard.ps_id: mark for shard, mark in zip(version.shards, marks, strict=True)}


def _earlier_seal(store: Store, version: int) -> Seal | None:
    """Return the seal that a version had before a shard of it was replaced; None without one, or when it is damaged."""
    try:
        data = store.read_small(f"{notes_dir(version)}/{EARLIER}")
        return None if data is None else parse_seal(parse_document(data, EARLIER, limit=MAX_SUMS_BYTES))
    except EdlCkptError:
        return None
