"""Facts about versions that a prune needs beyond their listing: the entries of their directories, and what needs them.

`Facts` is a value, and the guards that follow from it are pure. A `Survey` finds them: it looks into the directories of
the versions that a plan would delete, and of those that it keeps, because a link in one of them may lead into another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.words import abridged, base_name, counted, escaped, size
from edl_ckpt.core.catalog.pointers import Pointers
from edl_ckpt.core.commit.deletion.holdings import Holdings, holdings, leads_to, leads_to_by_names, object_trees
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.operations.prune.guards import Guards, Why
from edl_ckpt.core.sources.side_files import unaccounted
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.interface import lists_marks
from edl_ckpt.core.storage.links import Identity
from edl_ckpt.core.storage.mounts import mount_points
from edl_ckpt.core.storage.tree import Tree

_SHOWN: Final = 3
"""So many names are said one by one."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What lies in the directory of a version and is not known to belong to its checkpoint."""

    names: tuple[str, ...]
    """The entries directly in the directory that are foreign, or have something foreign in them."""
    count: int
    size_bytes: int

    @property
    def shown(self) -> str:
        """Return the first names."""
        return abridged(map(escaped, self.names), _SHOWN)

    def __str__(self) -> str:
        return f"{counted(self.count, 'file')}, {size(self.size_bytes)} ({self.shown})"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of versions, by their paths. Of a version that was not looked into nothing is known."""

    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Why complete versions cannot be read, as of `looked_at`."""
    held: Mapping[str, Holdings] = field(default_factory=dict)
    """What is in their directories."""
    unlisted: Mapping[str, str] = field(default_factory=dict)
    """Why it cannot be said what is in them."""
    foreign: Mapping[str, Foreign] = field(default_factory=dict)
    needed: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The references of the versions that need files of another one, each with the path that leads there."""

    doubtful: tuple[str, ...] = ()
    """Why it cannot be said now what some of the versions need that stay: then none goes."""
    named: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The files and links that name a version, as paths in its location."""
    unread: Mapping[Location, str] = field(default_factory=dict)
    """The files of a location that may name any version of it, and cannot be read now."""

    def with_pointers(self, found: Iterable[Pointers]) -> Facts:
        """Return the facts with what names versions of some locations."""
        named, unread = dict(self.named), dict(self.unread)
        for pointers in found:
            named.update(pointers.named)
            if pointers.unread:
                name, reason = next(iter(pointers.unread.items()))
                unread[pointers.location] = f"{name} cannot be read now, and may name it: {reason}"
        return replace(self, named=named, unread=unread)

    def dangling(self, going: Iterable[str]) -> list[str]:
        """Return a warning for each file or link that names a version which goes, by its path."""
        warnings: list[str] = []
        for path in going:
            folder, _, last = path.rpartition("/")
            warnings += (f"{folder}/{name} names {last}, and will lead nowhere" for name in self.named.get(path, ()))
        return warnings

    @property
    def obstacles(self) -> tuple[Facts, Mapping[str, tuple[str, ...]]]:
        """Return all that may keep a version from deletion: every fact but how much is in a directory."""
        mounts = {path: held.mounts for path, held in self.held.items() if held.mounts}
        return replace(self, held={}), mounts

    def size_bytes(self, version: Version) -> int:
        """Return the bytes of all files that a deletion of a version removes, as far as they are known."""
        known = self.held.get(version.path)
        return version.size_bytes if known is None else known.size_bytes

    def digest(self, version: Version) -> str:
        """Return what tells the content of a version's directory from any other; '' where it is not known."""
        known = self.held.get(version.path)
        return "" if known is None else known.digest

    def why(self, version: Version, guards: Guards) -> Why:
        """Return why a version must not be deleted, for what is in it or leads into it."""
        path = version.path
        is_named = version.version in guards.delete
        why: dict[str, tuple[str, ...]] = {}
        for ref, name in self.needed.get(path, {}).items():
            why[f"needed by {ref}: {escaped(name)}"] = ()
        if version.location.local_path is not None:
            why |= dict.fromkeys(self.doubtful[:_SHOWN], ())
        if not guards.ignore_pointers:
            why |= self._pointers_to(version)
        if version.whole_part and not is_named:
            reason = f"its part of {version.whole_part} is whole, and names alone say that more belongs to it"
            why[reason] = ("--delete", str(version.key))
        known = self.held.get(path)
        if known is not None and known.mounts:
            places = abridged((escaped(place) or "the directory itself" for place in known.mounts), _SHOWN)
            why[f"a file system is mounted in it: {places}"] = ()
        if path in self.unlisted and version.state is not State.UNREADABLE:
            why[f"what is in it cannot be listed now: {self.unlisted[path]}"] = ()
        if path in self.foreign:
            why |= self._foreign_content(version, guards, is_named=is_named)
        return why

    def _pointers_to(self, version: Version) -> dict[str, tuple[str, ...]]:
        """Return a reason for each file or link that names a version, or may name it."""
        why: dict[str, tuple[str, ...]] = {}
        for name in self.named.get(version.path, ()):
            why[f"named by {escaped(name)}"] = (IGNORE_POINTERS,)
        if version.location in self.unread:
            why[self.unread[version.location]] = (IGNORE_POINTERS,)
        return why

    def _foreign_content(self, version: Version, guards: Guards, *, is_named: bool) -> dict[str, tuple[str, ...]]:
        """Return the reason that files of others in its directory give, unless they may go with a named version."""
        content = f"foreign content: {self.foreign[version.path].shown}"
        number = str(version.key)
        if is_named:
            return {} if guards.with_foreign else {content: (WITH_FOREIGN,)}
        if version.state is State.UNREADABLE:  # what it is cannot be said now
            return {}
        return {f"{content} (--delete {number} {WITH_FOREIGN})": ("--delete", number, WITH_FOREIGN)}


NO_FACTS: Final = Facts()
IGNORE_POINTERS: Final = "--ignore-pointers"
WITH_FOREIGN: Final = "--with-foreign"


class Survey:
    """Looks into the directories of versions, into each of them once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._needs: dict[str, Mapping[Identity, str]] = {}
        self._listed_together: Mapping[str, Tree] = {}
        """The trees of directories on object storage that were listed just now, by the paths of their versions."""

    def look(self, versions: Iterable[Version], going: Iterable[str], considered: Iterable[str] = ()) -> bool:
        """Learn what matters for a plan that deletes the versions with these paths; say whether other ones may go then.

        `versions` are all that are at the locations, also those that no prune deletes. Those that are `considered`
        stay, and a reason says how they are deleted: what would be in the way of that is learned too.
        """
        every, doomed = list(versions), set(going)
        wanted = doomed.union(considered)
        before = self.facts.obstacles
        self._look_into(version for version in every if version.path in wanted)
        if any(version.path in wanted and version.location.local_path is not None for version in every):
            self._find_needs(every, doomed, wanted)
        return self.facts.obstacles != before

    def _look_into(self, versions: Iterable[Version]) -> None:
        """Learn what is in the directories of versions."""
        facts = self.facts
        unknown = [v for v in versions if v.path not in facts.held and v.path not in facts.unlisted]
        if not unknown:
            return
        workers = REMOTE_WORKERS if any(v.location.local_path is None for v in unknown) else 1
        self._listed_together = _trees_together(unknown)
        found = list(run_parallel(self._listed, unknown, workers))
        held = dict(facts.held)
        unlisted = dict(facts.unlisted)
        foreign = dict(facts.foreign)
        for version, content in zip(unknown, found, strict=True):
            if isinstance(content, EdlCkptError):
                unlisted[version.path] = content.message
                continue
            held[version.path] = content
            strange = foreign_in(version, content)
            if strange is not None:
                foreign[version.path] = strange
        self.facts = replace(facts, held=held, unlisted=unlisted, foreign=foreign)

    def _listed(self, version: Version) -> Holdings | EdlCkptError:
        """Return what is in the directory of a version, or why that cannot be said."""
        try:
            known = self._listed_together.get(version.path)
            return holdings(open_store(version.location), version, self._mounts, known)
        except EdlCkptError as error:
            return error

    @cached_property
    def _mounts(self) -> frozenset[str]:
        return mount_points()

    def _find_needs(self, versions: Iterable[Version], doomed: set[str], wanted: set[str]) -> None:
        """Learn which of the versions that are wanted one that stays needs; an incomplete one that stays needs, too."""
        local = [version for version in versions if version.location.local_path is not None]
        self._look_into(local)
        facts = self.facts
        owners: dict[Identity, list[str]] = {}
        for version in local:
            if version.path in wanted and version.path in facts.held:
                for identity in facts.held[version.path].identities:
                    owners.setdefault(identity, []).append(version.path)
        needed = {path: dict(by) for path, by in facts.needed.items()}
        doubtful: list[str] = []
        for version in local:
            if version.path in doomed:
                continue
            try:
                needs = self._needs_of(version)
            except EdlCkptError as error:
                where = f"where {error.path} leads cannot be said now: {error.message}"
                doubtful.append(f"{version.ref} may need it, and {where}")
                continue
            for identity in needs.keys() & owners.keys():
                for path in owners[identity]:
                    if path == version.path:
                        continue
                    needed.setdefault(path, {}).setdefault(version.ref, needs[identity])
        self.facts = replace(facts, needed=needed, doubtful=tuple(doubtful))

    def _needs_of(self, version: Version) -> Mapping[Identity, str]:
        """Return what a version needs; of one whose directory cannot be listed, what its known files need."""
        if version.path not in self._needs:
            held = self.facts.held.get(version.path)
            needs = leads_to_by_names(version) if held is None else leads_to(version.location, version, held)
            self._needs[version.path] = needs
        return self._needs[version.path]


def _trees_together(versions: Iterable[Version]) -> dict[str, Tree]:
    """Return the trees of versions on object storage, by their paths, where one listing shows those of many."""
    found: dict[str, Tree] = {}
    by_location: defaultdict[Location, list[Version]] = defaultdict(list)
    for version in versions:
        if version.location.local_path is None and not version.is_file:
            by_location[version.location].append(version)
    for location, some in by_location.items():
        store = open_store(location)
        if lists_marks(store):
            with suppress(EdlCkptError):  # each one is listed by itself then, and says why it cannot be
                trees = object_trees(store, [base_name(version.path) for version in some])
                found |= {v.path: trees[base_name(v.path)] for v in some if base_name(v.path) in trees}
    return found


def foreign_in(version: Version, content: Holdings) -> Foreign | None:
    """Return what is foreign in the directory of a version; None when everything in it is accounted for."""
    if version.is_file or version.linked:
        return None
    unclaimed = {*version.unclaimed, *version.extra}
    claimed = {version.name_of(file.path) for file in version.files} - unclaimed
    names = unaccounted(version.layout.system, content.names, claimed, content.empty_folders)
    if not names:
        return None
    strange = set(names)
    first = dict.fromkeys(name.partition("/")[0] for name in names)
    total = sum(entry.size_bytes for path, entry in content.entries.items() if path in strange)
    return Foreign(tuple(first), len(names), total)
