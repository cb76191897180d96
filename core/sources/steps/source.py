"""Steps of other systems as versions: their directories and prefixes, claimed by formats, and the index of one.

The formats in `FORMATS` are asked in turn for their parts of a step. The first one that has a part names the system.
Files that no format knows belong to the version too: they are copied, sealed and deleted with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError, EdlCkptError, UnsupportedError
from edl_ckpt.core.model.layouts import Layout, ShardName
from edl_ckpt.core.model.versions import UNNUMBERED, ShardFile, State, Version
from edl_ckpt.core.sources.hostile import caused_by_bytes, damage, hostile_bytes
from edl_ckpt.core.sources.interface import FlatListing, OnFault, ReadSmall
from edl_ckpt.core.sources.recognised import POINTER_BYTES, recognised_file
from edl_ckpt.core.sources.steps import names
from edl_ckpt.core.sources.steps.folder import FormatFolder
from edl_ckpt.core.sources.steps.formats import FORMATS
from edl_ckpt.core.sources.steps.interface import Claim, Files
from edl_ckpt.core.sources.steps.shown import are_plain, is_of_host, is_shown
from edl_ckpt.core.sources.steps.spellings import number_of_directory, number_of_prefix
from edl_ckpt.core.sources.torch.names import is_of_elasticdl
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.interface import Entry, RangeReader
from edl_ckpt.core.storage.location import Location

if TYPE_CHECKING:  # a listing needs no index
    from edl_ckpt.core.model.tables import Problem, ShardIndex

_MARKS: Final = tuple(mark for form in FORMATS for mark in form.marks)
about: Final = tuple(form.about for form in FORMATS)
systems: Final = tuple(form.system for form in FORMATS)
looks_into, version_named, may_be_file = names.looks_into, names.version_named, names.may_be_file
completes = names.completes


def _formats(location: Location) -> list[FormatFolder]:
    return [form for form in FORMATS if location.system in {"", form.system}]


def _formats_of(version: Version) -> list[FormatFolder]:
    """Return the formats that may have a part of a version."""
    formats = _formats(version.location)
    own = [form for form in formats if form.alone and form.system == version.layout.system]
    return own or [form for form in formats if not form.alone]


def shard_named(name: str) -> ShardName | None:  # noqa: ARG001 - formats know the names of their files
    """Return None: what a file is depends on the files next to it."""
    return None


def version_names(number: int) -> list[str]:  # noqa: ARG001 - there is no end of spellings
    """Return nothing: nothing of ours is written under such names."""
    return []


def claims(listing: FlatListing, read_small: ReadSmall) -> list[Version]:
    """Return the steps among the directories of a location, and those whose files have one prefix there.

    A directory or a prefix of a spelling that no system uses is a version without a number, if its content says what it
    is, and if the location is not one checkpoint itself.
    """
    loose = [*_prefixes(listing), *_single_files(listing)]
    found = _versions(listing, [*_directories(listing), *loose], read_small)
    # Then the directory is the checkpoint, unless somebody tagged it, sealed it, or copied it there by its name.
    is_alone = sum(version.layout.loose for version in found) == 1 and not listing.has_state
    return [v for v in found if v.number is not None or not (is_alone and v.layout.loose)]


class _FoundStep:
    """A step that formats may claim: its path, its number, and its files by their paths in it.

    `shown` are those that formats may claim. A link that leads nowhere is no fault by itself: a job links to its logs,
    and moves them. It is one where a format claims the link.
    """

    def __init__(
        self,
        path: str,
        number: int | None,
        layout: Layout,
        entry: Entry | None,
        files: Files,
        formats: Sequence[FormatFolder],
    ) -> None:
        self.path, self.number, self.layout, self.entry = path, number, layout, entry
        self.files = self.shown = files
        every = "\n".join(files)
        if not are_plain(every):
            self.files = {name: file for name, file in files.items() if not is_of_host(name)}
            self.shown = {name: file for name, file in self.files.items() if is_shown(name)}
            every = "\n".join(self.shown)
        if ".ckpt" in every:
            every = "\n".join(name for name in self.shown if not is_of_elasticdl(name))
        self.formats = [form for form in formats if any(mark in every for mark in form.marks)]
        self.heads = [(form, name) for form in self.formats for name in form.heads(self.shown)]
        entries = [*self.files.values(), *([entry] if entry else [])]
        faulty = [found for found in entries if found.fault]
        self.fault = next((found.fault for found in faulty if found is entry or not found.linked), None)
        self.has_faults = bool(faulty)

    @property
    def modified(self) -> float:
        """Return when the newest of its files, or its directory, was last changed, in seconds since the epoch."""
        own = 0.0 if self.entry is None else self.entry.modified
        return max([own, *(file.modified for file in self.files.values())])


def _directories(listing: FlatListing) -> Iterator[_FoundStep]:
    formats = _formats(listing.location)
    top = listing.inside.get("", ())
    is_whole = names.is_whole(entry.name for entry in top if not entry.is_dir)
    for entry in top:
        number = number_of_directory(entry.name)
        if not (entry.is_dir or entry.fault) or (number is None and (is_whole or _is_no_run(listing, entry))):
            continue
        files = dict(_below(listing, entry.relative, len(entry.relative) + 1))
        if not names.steps_within(number, files):
            yield _FoundStep(entry.path, number, names.STEPS, entry, files, formats)


def _is_no_run(listing: FlatListing, entry: Entry) -> bool:
    """Say whether a directory without a number is no version: a link, a part, one without files of formats."""
    if entry.linked or entry.fault or names.is_part(entry.name):
        return True
    inside = listing.inside.get(entry.relative, ())
    if any(one.is_dir or one.fault for one in inside):
        return False
    every = "\n".join(one.relative for one in inside)
    return not any(mark in every for mark in _MARKS)


def _below(listing: FlatListing, directory: str, start: int) -> Iterator[tuple[str, Entry]]:
    """Yield the files below a directory, by their paths from a position on."""
    for entry in listing.inside.get(directory, ()):
        if entry.is_dir:
            yield from _below(listing, entry.relative, start)
        if entry.name and (not entry.is_dir or entry.fault):  # consoles of S3 write objects named DIRECTORY/
            yield entry.relative[start:], entry


def _prefixes(listing: FlatListing) -> Iterator[_FoundStep]:
    found: defaultdict[str, dict[str, Entry]] = defaultdict(dict)
    for entry in listing.inside.get("", ()):
        prefix = None if entry.is_dir or entry.name[:1] == "." else names.prefix_of(entry.name)
        if prefix is not None:
            found[prefix][entry.name] = entry
    for prefix, files in found.items():
        path = next(iter(files.values())).path.rpartition("/")[0] + f"/{prefix}"
        yield _FoundStep(path, number_of_prefix(prefix), names.PREFIX, None, files, _formats(listing.location))


def _single_files(listing: FlatListing) -> Iterator[_FoundStep]:
    """Yield the files of torch.save that are versions by themselves, each in one file."""
    entries = {entry.name: entry for entry in listing.inside.get("", ()) if not entry.is_dir and is_shown(entry.name)}
    formats = _formats(listing.location)
    folders = [entry.name for entry in listing.inside.get("", ()) if entry.is_dir]
    for name in names.single_files(entries, folders):
        entry = entries[name]
        if entry.linked and names.number_of_file(name) is None:  # as Lightning's last.ckpt: it is another one of these
            continue
        yield _FoundStep(entry.path, names.number_of_file(name), names.FILE, None, {name: entry}, formats)


def _versions(listing: FlatListing, steps: Sequence[_FoundStep], read_small: ReadSmall) -> list[Version]:
    claims = _claims(steps, read_small)
    # One bad read is no fact: what seems to be torn is read again before anything is said of it.
    doubtful = [n for n, claim in enumerate(claims) if claim.is_doubtful]
    for n, claim in zip(doubtful, _claims([steps[n] for n in doubtful], read_small, again=True), strict=True):
        claims[n] = claim
    _look_for_pointers(steps, claims, read_small)
    has_claims = any(claim.parts for claim in claims)
    return [
        _version(listing, step, claim)
        for step, claim in zip(steps, claims, strict=True)
        if (claim.parts and (step.number is not None or claim.is_sure)) or _may_be_whole(step, has_claims=has_claims)
    ]


def _may_be_whole(step: _FoundStep, *, has_claims: bool) -> bool:
    """Say whether a directory that cannot be listed now may be a version.

    A bare number may be anything, such as a process or its open file: it is one where others are versions.
    """
    if step.entry is None or step.fault is None:
        return False
    return has_claims or not step.entry.name.isdigit()


_Digests = dict[str, dict[str, Any]]
"""What the small files of a step say, by system and name."""


class _Claimed(NamedTuple):
    """The parts that formats have of a step, and whether its small files said that something is wrong."""

    parts: Sequence[tuple[FormatFolder, Claim]]
    is_doubtful: bool
    names: Sequence[str]
    """The files that formats claim."""
    is_sure: bool
    """True where the content of a file says which system saved the step: names alone may be of anything."""


def _claims(steps: Sequence[_FoundStep], read_small: ReadSmall, *, again: bool = False) -> list[_Claimed]:
    """Return the parts that formats have of each step."""
    wanted = [(step.shown[name], form.digest) for step in steps for form, name in step.heads]
    digests = iter(read_small.digests(wanted, again=again))
    claims: list[_Claimed] = []
    for step in steps:
        by_format: _Digests = {form.system: {} for form in step.formats}
        for form, name in step.heads:
            by_format[form.system][name] = next(digests)
        claims.append(_claimed(step, by_format))
    return claims


def _claimed(step: _FoundStep, digests: _Digests) -> _Claimed:
    """Return the parts that formats have of a step, and give it the fault of a small file that cannot be read now."""
    is_doubtful = False
    for form, name in step.heads:
        digest = digests[form.system][name]
        if isinstance(digest, CorruptError | UnsupportedError):
            is_doubtful = True
        elif isinstance(digest, EdlCkptError):
            step.fault = step.fault or Fault.of(digest, step.shown[name].path)
    parts = _parts_of(step, digests)
    is_torn = any(claim.lacks for _, claim in parts)
    # Where the content of a file names its system, names of other files alone name no second one.
    known = [(form, claim) for form, claim in parts if claim.is_known]
    claimed_names: list[str] = []
    for _, claim in known or parts:
        claimed_names += claim.common
        for members in claim.shards.values():
            claimed_names += members
    is_sure = any(not form.about.known_by_names for form, _ in known)
    return _Claimed(known or parts, is_doubtful or bool(step.heads and is_torn), claimed_names, is_sure)


def _parts_of(step: _FoundStep, digests: _Digests) -> list[tuple[FormatFolder, Claim]]:
    """Return what formats claim of a step: those that own it, else those that yield to no other, else the first."""
    parts: list[tuple[FormatFolder, Claim]] = []
    for form in step.formats:
        claim = _claim_of(form, step, digests[form.system])
        if claim is not None:
            parts.append((form, claim))
    owners = [(form, claim) for form, claim in parts if claim.owns]
    if owners:
        return owners
    firm = [(form, claim) for form, claim in parts if not claim.yields]
    return firm or parts[:1]


def _look_for_pointers(steps: Sequence[_FoundStep], claims: Sequence[_Claimed], read_small: ReadSmall) -> None:
    """Give a fault to the steps of which a file is only a pointer of Git LFS: they are neither whole nor torn."""
    found: list[tuple[_FoundStep, Entry]] = []
    for step, claim in zip(steps, claims, strict=True):
        if all(part.yields for _, part in claim.parts):  # each file was looked at for the claim
            continue
        for name in claim.names:
            file = step.files[name]
            if file.size_bytes < POINTER_BYTES.stop and file.size_bytes in POINTER_BYTES and not file.fault:
                found.append((step, file))
    words = read_small.digests([(file, recognised_file) for _, file in found])
    for (step, file), what in zip(found, words, strict=True):
        if isinstance(what, str) and what:
            step.fault = step.fault or Fault(UnsupportedError, what, file.path)


def _claim_of(form: FormatFolder, step: _FoundStep, digests: Mapping[str, Any]) -> Claim | None:
    """Return the part of a step that a format has; a step whose bytes it cannot stand is damaged, and only that."""
    try:
        return form.claim(step.shown, digests)
    except caused_by_bytes() as error:
        return Claim({}, None, lacks=[damage(error, step.path).message])


def _version(listing: FlatListing, step: _FoundStep, claimed: _Claimed) -> Version:
    """Return a step as a version."""
    claims = [claim for _, claim in claimed.parts]
    ps_num = max((claim.ps_num for claim in claims if claim.ps_num is not None), default=None)
    shards = _shards(step.files, claims, ps_num or 0)
    fault = _fault_of(step, claimed)
    lacks: list[str] = []
    shapes: dict[str, tuple[int, int]] = {}
    for claim in claims:
        lacks += claim.lacks
        shapes |= claim.shapes
    if fault and fault.kind is not UnsupportedError:
        lacks = []  # nothing is known to be missing where something cannot be read now
    modified = step.modified
    state = State.INCOMPLETE
    if fault:
        state = State.UNREADABLE
    elif shards and not lacks:
        state = State.COMPLETE
    elif listing.is_fresh(modified):
        state = State.WRITING
    layout = step.layout
    if claimed.parts:
        form, claim = claimed.parts[0]
        layout = replace(layout, system=form.system, placement=claim.placement)
    extra = () if shards else tuple(sorted(name for name, file in step.files.items() if not file.fault))
    return Version(
        listing.location,
        UNNUMBERED if step.number is None else step.number,
        step.path,
        layout,
        state,
        ps_num,
        shards,
        extra,
        modified,
        fault=fault,
        linked=step.entry is not None and step.entry.linked,
        lacks=tuple(lacks),
        whole_part=_whole_part(claimed.parts) if lacks else "",
        shapes=shapes,
        unclaimed=tuple(sorted(step.files.keys() - {*claimed.names})),
    )


def _fault_of(step: _FoundStep, claimed: _Claimed) -> Fault | None:
    """Return why a step cannot be read: its own fault, that of a claimed file, or what its format does not support."""
    own: Fault | None = step.fault
    if own:
        return own
    if step.has_faults:
        for name in claimed.names:
            fault: Fault | None = step.files[name].fault
            if fault:
                return fault
    for _, claim in claimed.parts:
        if claim.unsupported:
            return Fault(UnsupportedError, claim.unsupported, step.path)
    return None


def _whole_part(parts: Sequence[tuple[FormatFolder, Claim]]) -> str:
    """Return the system whose files say that its part is whole, where all that lacks something is known by names."""
    known = [(form, claim) for form, claim in parts if not form.about.known_by_names]
    return known[0][0].system if known and not any(claim.lacks for _, claim in known) else ""


def _shards(files: Files, claims: Sequence[Claim], ps_num: int) -> tuple[ShardFile, ...]:
    """Return the shards of all formats together; the files of no shard are with the first one.

    A link that no format claims is no file of theirs: what it leads to may be of others.
    """
    of_shard: defaultdict[int, list[str]] = defaultdict(list)
    for claim in claims:
        for ps_id, members in claim.shards.items():
            of_shard[ps_id] += members
    claimed = set[str]().union(*of_shard.values())
    of_no_shard = sorted(name for name in files if name not in claimed)
    if any(files[name].linked or files[name].fault for name in of_no_shard):
        common = set[str]().union(*(claim.common for claim in claims))
        of_no_shard = [name for name in of_no_shard if _goes_along(files[name], is_claimed=name in common)]
    shards: list[ShardFile] = []
    for ps_id, members in sorted(of_shard.items()):
        if not shards:
            members = [*members, *of_no_shard]  # noqa: PLW2901 - the first shard has them
        first, *others = dict.fromkeys(members)
        files_beside = tuple(_file(files[name], ps_id, ps_num) for name in others)
        shards.append(_file(files[first], ps_id, ps_num, files_beside))
    return tuple(shards)


def _goes_along(file: Entry, *, is_claimed: bool) -> bool:
    """Say whether a file of no shard is one of the version's: a link only where a format claims it."""
    return not file.fault and (is_claimed or not file.linked)


def _file(entry: Entry, ps_id: int, ps_num: int, others: tuple[ShardFile, ...] = ()) -> ShardFile:
    facts = (entry.path, entry.size_bytes, entry.modified, entry.linked, others)
    return ShardFile(ps_id, ps_num, *facts, mark=entry.mark, changed_ns=entry.changed_ns)


def alone(listing: FlatListing, path: str, name: str, read_small: ReadSmall) -> Version | None:
    """Return the checkpoint that a directory is, or the files of a name in it, which belongs to no location.

    `name` is that of a file, of a prefix, or '' for the whole directory; `path` is that of the result.
    """
    files = dict(_below(listing, "", 0))
    if name:
        files = {inner: entry for inner, entry in files.items() if names.is_with(inner, name)}
    layout = replace(names.STEPS, name="directory" if not name else "file", in_location=False)
    last = path.rpartition("/")[2].removesuffix(".index")
    number = (number_of_prefix(last) if name else number_of_directory(last)) or 0
    step = _FoundStep(path, number, layout, None, files, _formats(listing.location))
    return next(iter(_versions(listing, [step], read_small)), None)


def index(
    version: Version,
    readers: Mapping[str, RangeReader],
    *,
    workers: int = 1,
    on_fault: OnFault | None = None,
    tables: bool = True,
) -> Sequence[ShardIndex]:
    """Return the contents of shards: what each format adds to them; without `tables` every tensor is a variable."""
    from edl_ckpt.core.sources.steps.apart import index_apart
    from edl_ckpt.core.sources.steps.content import Content

    content = Content(version, readers, workers, on_fault, tables=tables)
    with hostile_bytes(version.path):
        index_apart(content, _formats_of(version))
    return content.indexes()


def check(version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex | None, Problem]]:  # noqa: ARG001
    """Return what the names show that the version lacks; what headers show is with the shards."""
    return []


def blocking(version: Version, shards: Sequence[ShardIndex]) -> Sequence[tuple[ShardIndex, Problem]]:  # noqa: ARG001
    """Return the errors that headers show: values that overlap, or lie outside of their file, are none."""
    return [(shard, problem) for shard in shards for problem in shard.problems if not problem.warning]
