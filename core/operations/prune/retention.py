"""Which versions to keep: small frozen rules, joined by "any": a version that one of them keeps is kept.

A rule looks at complete versions only and gives the reason for each version that it keeps. Guards stand above them,
which no rule can lift. Several locations are the trials of one experiment: every rule looks at each location alone,
except `ExperimentBest` and the size budget.

Guards: the versions that no rule may delete.

These are the newest complete version, every version that is newer by number or by time (a job may be writing it),
tagged versions, and versions that still change. Savers write in place, so a listing can show all files of a version
that is half written. `find_unreadable` therefore opens the newest versions; one that cannot be read does not count.
"""

from __future__ import annotations

import heapq
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Final

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, RefusedError, UsageError
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import Mode, abridged, counted, duration, size
from edl_ckpt.core.catalog.listing import ranked
from edl_ckpt.core.catalog.swaps import GRACE_SECONDS, staged_paths
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.reading.newest import newest_readable
from edl_ckpt.core.state.metadata import mode_of
from edl_ckpt.core.state.shard_note import has_newer_note, noted_versions
from edl_ckpt.core.storage import Location, Store, open_store

Reasons = dict[str, list[str]]
"""Why versions are kept, by their paths."""


@dataclass(frozen=True, slots=True)
class Latest:
    """Keep the newest `count` complete versions of each location, by number; 0 keeps all (keep_checkpoint_max)."""

    count: int

    def choose(self, versions: Sequence[Version]) -> Iterator[tuple[Version, str]]:
        """Yield the versions to keep, with the reason."""
        for trial in by_location(versions):
            newest = trial[::-1] if self.count == 0 else trial[: -self.count - 1 : -1]
            for place, version in enumerate(newest, start=1):
                yield version, "all are kept" if self.count == 0 else f"latest {place} of {self.count}"

    def __str__(self) -> str:
        return "all versions" if self.count == 0 else f"the latest {self.count}"


@dataclass(frozen=True, slots=True)
class Best:
    """Keep the best `count` complete versions of each location by a metric.

    Of equal values the newer version is better. This rule never keeps NaN and missing values. `mode` is 'max' or 'min';
    `Policy.settle` must fill in a None first.
    """

    count: int
    metric: str
    mode: Mode | None = None
    _where: ClassVar[str] = ""
    """In words, where versions compete together instead of at each location."""

    def choose(self, versions: Sequence[Version]) -> Iterator[tuple[Version, str]]:
        """Yield the versions to keep, with the reason."""
        for trial in [versions] if self._where else by_location(versions):
            if self.mode is None:
                raise UsageError(f"metric {self.metric!r}: is higher or lower better?")
            for place, version in enumerate(ranked(trial, self.metric, self.mode)[: self.count], start=1):
                value = version.metrics[self.metric]
                yield version, f"best {place} of {self.count}{self._where} by {self.metric} ({value:g})"

    def __str__(self) -> str:
        return f"the best {self.count}{self._where} by {self.metric} ({self.mode or 'declared mode'})"


@dataclass(frozen=True, slots=True)
class ExperimentBest(Best):
    """Keep the best `count` complete versions over all locations together.

    Ties and NaN as in `Best`; of equal values and equal numbers, the location named first.
    """

    _where: ClassVar[str] = " in the experiment"


@dataclass(frozen=True, slots=True)
class EverySteps:
    """Keep the first complete version in every window of `steps` versions: [0, steps), [steps, 2 steps), ...

    Versions that are multiples of `steps` are the first of their windows. The first stays the first, so pruning twice
    keeps the same.
    """

    steps: int

    def choose(self, versions: Sequence[Version]) -> Iterator[tuple[Version, str]]:
        """Yield the versions to keep, with the reason."""
        for trial in by_location(versions):
            for window, members in groupby(trial, key=lambda v: v.version // self.steps):
                start = window * self.steps
                yield next(members), f"first of steps {start} to {start + self.steps - 1}"

    def __str__(self) -> str:
        return f"one every {self.steps} steps"


@dataclass(frozen=True, slots=True)
class Within:
    """Keep versions modified at most `seconds` before the newest complete version of their location.

    The time counts from the newest version and not from now, as in restic: a job that ended a month ago keeps its
    versions.
    """

    seconds: float

    def choose(self, versions: Sequence[Version]) -> Iterator[tuple[Version, str]]:
        """Yield the versions to keep, with the reason."""
        for trial in by_location(versions):
            for version in trial:
                if version.modified >= trial[-1].modified - self.seconds:
                    yield version, f"within {duration(self.seconds)} of the newest"

    def __str__(self) -> str:
        return f"within {duration(self.seconds)} of the newest"


@dataclass(frozen=True, slots=True)
class Tagged:
    """Keep versions with one of these tags."""

    tags: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "tags", several(self.tags, "tags"))

    def choose(self, versions: Sequence[Version]) -> Iterator[tuple[Version, str]]:
        """Yield the versions to keep, with the reason."""
        for version in versions:
            for tag in version.tags:
                if tag in self.tags:
                    yield version, f"tag {tag}"

    def __str__(self) -> str:
        return f"the tag{'s' if len(self.tags) > 1 else ''} {', '.join(self.tags)}"


@dataclass(frozen=True, slots=True)
class At:
    """What another rule keeps, in some locations only: trials may have numbers of their own. No policy stores it."""

    urls: tuple[str, ...]
    rule: Latest | Best

    def choose(self, versions: Sequence[Version]) -> Iterator[tuple[Version, str]]:
        """Yield the versions to keep, with the reason; the rule looks at all versions."""
        return (chosen for chosen in self.rule.choose(versions) if chosen[0].location.url in self.urls)

    def __str__(self) -> str:
        return f"{self.rule} at {abridged(self.urls, _SHOWN)}"


Rule = Latest | Best | ExperimentBest | EverySteps | Within | Tagged | At
_SHOWN: Final = 3
_RULES: Final[Mapping[str, type[Rule]]] = {
    "latest": Latest,
    "best": Best,
    "experiment-best": ExperimentBest,
    "every-steps": EverySteps,
    "within": Within,
    "tagged": Tagged,
}
_NAMES: Final = {kind: name for name, kind in _RULES.items()}


@dataclass(frozen=True, slots=True)
class Policy:
    """Rules joined by "any", and a size budget in bytes for the versions that no rule keeps."""

    rules: tuple[Rule, ...] = ()
    max_size_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", several(self.rules, "rules"))

    @property
    def is_empty(self) -> bool:
        """Return True for a policy without a rule; it is a mistake, not a wish to delete everything."""
        return not self.rules and self.max_size_bytes is None

    @property
    def needs_modes(self) -> bool:
        """Return True when a rule goes by a metric whose better end the rule does not say."""
        return any(rule.mode is None for rule in self.ranking)

    @property
    def ranking(self) -> tuple[Best, ...]:
        """Return the rules that go by a metric, those for some locations too."""
        rules = (rule.rule if isinstance(rule, At) else rule for rule in self.rules)
        return tuple(rule for rule in rules if isinstance(rule, Best))

    def settle(self, modes: Mapping[str, str]) -> Policy:
        """Return the policy with the mode of each metric filled in: the declared mode, or that of a common metric.

        Raises UsageError for a metric whose mode is unknown.
        """

        def settled(rule: Any) -> Any:
            if isinstance(rule, At):
                return replace(rule, rule=settled(rule.rule))
            by_metric = isinstance(rule, Best)
            return replace(rule, mode=mode_of(rule.metric, rule.mode, modes)) if by_metric else rule

        return replace(self, rules=tuple(map(settled, self.rules)))

    def describe(self) -> tuple[str, ...]:
        """Return the rules in words, one text for each."""
        budget = () if self.max_size_bytes is None else (f"more while all fits into {size(self.max_size_bytes)}",)
        return (*map(str, self.rules), *budget)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as it is stored; `from_json` is the inverse."""
        fields = [(_NAMES[type(rule)], asdict(rule).items()) for rule in self.rules]
        rules = [{"rule": n, **{k: list(v) if isinstance(v, tuple) else v for k, v in items}} for n, items in fields]
        return {"rules": rules, "max_size_bytes": self.max_size_bytes}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Policy:
        """Return a stored policy; UsageError for a rule that this version of the tool does not know."""
        try:
            rules = tuple(_rule(dict(rule)) for rule in document.get("rules", ()))
            limit = document.get("max_size_bytes")
            return cls(rules, None if limit is None else int(limit))
        except (TypeError, ValueError, KeyError) as error:
            raise UsageError(f"the stored policy cannot be read: {error}") from None


def _rule(document: dict[str, Any]) -> Rule:
    kind = document.pop("rule")
    if kind not in _RULES:
        raise UsageError(f"no rule {kind!r}")
    if "tags" in document:
        document["tags"] = tuple(document["tags"])
    rule: Rule = _RULES[kind](**document)
    return check_rule(rule)


def check_rule(rule: Rule) -> Rule:
    """Return the rule; UsageError for a number that makes no sense."""
    amount = rule.seconds if isinstance(rule, Within) else rule.steps if isinstance(rule, EverySteps) else None
    count = getattr(rule, "count", None)
    if (amount is not None and not amount > 0) or (count is not None and (not isinstance(count, int) or count < 0)):
        raise UsageError(f"a rule that keeps {rule} makes no sense")
    return rule


def determined(
    metric: str, mode: Mode | None = None, *, experiment_best: int = 0, trial_best: int = 1, trial_latest: int = 1
) -> Policy:
    """Return Determined's policy, with its defaults: counts of 0 keep nothing.

    Source: Determined's checkpoint storage, save_experiment_best, save_trial_best and save_trial_latest.
    """
    rules: list[Rule] = [ExperimentBest(experiment_best, metric, mode), Best(trial_best, metric, mode)]
    if trial_latest:  # in `Latest` 0 keeps all, as in keep_checkpoint_max
        rules.append(Latest(trial_latest))
    return Policy(tuple(check_rule(rule) for rule in rules))


def evaluate(policy: Policy, versions: Iterable[Version]) -> Reasons:
    """Return why the policy's rules keep versions, by path. Only good versions count; others have no entry.

    A version that is known to be damaged, or may not be whole, stays too where a rule would keep it if it were good: to
    know of damage never deletes more.
    """
    complete = [v for v in versions if v.state is State.COMPLETE]
    good = [v for v in complete if v.is_good]
    reasons: Reasons = {}
    for rule in policy.rules:
        for version, why in rule.choose(good):
            reasons.setdefault(version.path, []).append(why)
        for version, why in rule.choose(complete) if len(good) < len(complete) else ():
            if not version.is_good:
                reasons.setdefault(version.path, []).append(f"{why}, but it does not count: {version.why_not_good}")
    return reasons


def fit(max_size_bytes: int, kept_bytes: int, candidates: Sequence[Version]) -> list[Version]:
    """Return the candidates to delete, the oldest first, so that the rest and `kept_bytes` fit into the budget.

    The oldest is the lowest number of a location; between locations, the one that was modified first.
    """
    total = kept_bytes + sum(v.size_bytes for v in candidates)
    going: list[Version] = []
    for version in heapq.merge(*by_location(candidates), key=lambda v: v.modified):
        if total <= max_size_bytes:
            break
        going.append(version)
        total -= version.size_bytes
    return going


def by_location(versions: Iterable[Version]) -> list[list[Version]]:
    """Return the versions of each location by number, locations in the order of their first version."""
    trials: dict[Location, list[Version]] = {}
    for version in versions:
        trials.setdefault(version.location, []).append(version)
    return [sorted(trial, key=lambda v: (v.version, v.path)) for trial in trials.values()]


Why = Mapping[str, tuple[str, ...]]
"""Why a version must not be deleted: each reason, with the option that lifts it and its value; () when none does."""
NEWEST: Final = ("--even-newest",)
"""The option that lifts the guard of the newest complete version; of a version that is named, of newer ones too."""
_IS_NEWEST: Final = "newest complete version"
_NEWER: Final[Why] = {"a newer edl-ckpt wrote its state; upgrade": ()}
ELASTICDL: Final = "elasticdl"
_ORDER: Final = ("dcp", "tensorflow", "tfra", "dynamicemb", "safetensors")
"""What jobs save comes before what is exported from it."""
_NO_COPY: Final = frozenset({State.INCOMPLETE, State.WRITING, State.MIXED, State.INVALID})
"""The states in which ElasticDL restores nothing from a version."""


@dataclass(frozen=True, slots=True)
class Guards:
    """The exceptions that the caller makes from the guards, and the grace period; none is made by default.

    The library takes an exception as it is given. Only the command line asks before it leaves no complete version.
    """

    incomplete: bool = False
    """Delete incomplete versions older than the newest complete one."""
    everything: bool = False
    """Delete even the newest complete version when no rule keeps it (`--even-newest`), and no newer one.

    It needs a rule or `delete`: a version of `delete` goes even if it is newer than the newest complete one.
    """
    delete: tuple[int, ...] = ()
    """Delete these versions, whatever the rules keep; mixed and invalid versions are deleted only if named here.

    An incomplete one goes even if it is newer than the newest complete one, unless it may still be written.
    """
    drop_tags: tuple[str, ...] = ()
    """Tags that do not protect."""
    grace_seconds: float = GRACE_SECONDS
    ignore_pointers: bool = False
    """Delete even what files and links of others name, as `latest`; a warning says what will lead nowhere."""
    with_foreign: bool = False
    """Delete the versions of `delete` even if there is more in their directories than a checkpoint; all of it goes."""
    allow_empty_rule: bool = False
    """Delete although no version of any location has the metric or the tag that a rule names: it keeps nothing."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "delete", several(self.delete, "delete"))
        object.__setattr__(self, "drop_tags", several(self.drop_tags, "drop_tags"))

    @property
    def ask_for_deletion(self) -> bool:
        """Return True when these ask for a deletion even without a rule."""
        return bool(self.incomplete or self.delete)


NO_EXCEPTIONS: Final = Guards()
IN_A_JOB: Final = Guards(allow_empty_rule=True)
"""The exceptions for savers: a job must not stop pruning because no version has a metric yet; it warns."""


def prunable(versions: Iterable[Version]) -> list[Version]:
    """Return the versions that a prune looks at: all but those that only a name tells from others.

    Those with a UUID are Determined's; of others without a number of their own nothing says which is the older one.

    They neither go nor count: the newest complete version is one with a number.
    """
    return [version for version in versions if not version.is_named]


def main_system(trial: Iterable[Version]) -> str:
    """Return the system whose versions the rules of one location are about.

    It is ElasticDL's where it has a version there, else that of the newest complete version, and of two with one number
    the first one in a fixed order. No prune changes the answer: the newest complete version stays. The system of most
    versions would be another one after a prune, and the next prune would delete the others.
    """
    versions = list(trial)
    if not versions or any(v.is_elasticdl for v in versions):
        return ELASTICDL
    named = [v for v in versions if not is_only_a_number(v)] or versions
    complete = [v for v in named if v.state is State.COMPLETE] or named
    newest = max(v.version for v in complete)
    systems = [v.layout.system for v in complete if v.version == newest]
    return min(systems, key=lambda system: (_ORDER.index(system) if system in _ORDER else len(_ORDER), system))


def counted_versions(trial: Iterable[Version]) -> list[Version]:
    """Return the versions of one location that rules look at: those of its system whose name says that they are steps.

    The others neither go by a rule nor count. A directory that is named by a number alone may be anything: a run of a
    sweep, a year, an exported model.
    """
    versions = list(trial)
    system = main_system(versions)
    return [v for v in versions if v.layout.system == system and not is_only_a_number(v)]


def is_only_a_number(version: Version) -> bool:
    """Say whether the name of a version's directory is a number and nothing else."""
    return not version.is_file and version.path.rpartition("/")[2].isdigit()


def _not_of_the_location(version: Version, system: str, *, is_named: bool) -> Why:
    """Return why no rule deletes a version that does not count; nothing for one that is named."""
    if is_named:
        return {}
    own, number = version.layout.system, str(version.key)
    if own != system:
        return {f"of {own}, and rules look at the versions of {system} here (--system {own})": ("--system", own)}
    return {f"its name is only a number: deleted only when named (--delete {number})": ("--delete", number)}


def is_good(version: Version, unreadable: Mapping[str, str]) -> bool:
    """Say whether a job could resume from a version, as far as is known; `unreadable` is as of `looked_at`.

    Only a good version is the newest one, counts for a rule, or is the reason to delete another one.
    """
    return version.is_good and version.path not in unreadable


def guard_reasons(
    trial: Sequence[Version], guards: Guards, unreadable: Mapping[str, str], *, now: float
) -> dict[str, Why]:
    """Return, by path, why versions of one location must not be deleted whatever the rules say."""
    reasons: dict[str, Why] = {}
    if not trial:
        return reasons
    system = main_system(trial)
    counts = {v.path for v in counted_versions(trial)}
    whole = [v for v in trial if v.layout.system == system and is_good(v, unreadable)]
    newest = next((v for v in reversed(whole) if v.path in counts), whole[-1] if whole else None)
    compared = counts if newest is not None and newest.path in counts else {v.path for v in trial}
    store = open_store(trial[0].location)
    noted: list[int] = []
    with suppress(EdlCkptError):  # where our state cannot be read, tags cannot either, and they protect all versions
        noted = noted_versions(store)
    for version in trial:
        why = dict(_NEWER) if version.is_newer else {}
        age, named = now - version.modified, version.version in guards.delete
        fresh = age <= guards.grace_seconds
        strange = {} if version.path in counts else _not_of_the_location(version, system, is_named=named)
        first = list[str]()
        if version.path in compared and not (strange or (guards.everything and named)):
            first = _against_the_newest(version, newest, guards.grace_seconds, unreadable)
            first = [reason for reason in first if not (guards.everything and reason == _IS_NEWEST)]
        why |= strange
        given_up = named and version.state in _NO_COPY
        doubtful = version.state is State.INCOMPLETE or version.path in unreadable or (given_up and first)
        doubtful = doubtful or bool(version.doubts)
        if not given_up:
            why |= dict.fromkeys(first, NEWEST)
        if version.state is State.WRITING or (doubtful and fresh):
            why["still being written"] = ("--grace", f"{int(age)}s") if fresh and age >= 0 else ()
        why |= {f"tag {tag}": ("--drop-tag", tag) for tag in version.tags if tag not in guards.drop_tags}
        if version.metadata_fault:
            why["its tags cannot be read"] = ()
        if version.state is State.UNREADABLE:
            why[version.why_unreadable] = ()
        if version.state in {State.MIXED, State.INVALID} and not named:
            why[f"{version.state}: deleted only when named (--delete {version.version})"] = (
                "--delete",
                str(version.version),
            )
        if why or (version.version in noted and _has_newer_note(store, version.version)):
            reasons[version.path] = why or _NEWER
    return reasons


def _has_newer_note(store: Store, number: int) -> bool:
    with suppress(EdlCkptError):
        return has_newer_note(store, number)
    return False


def guarded(ref: str, why: Why, *others: Why) -> RefusedError:
    """Return the error for a version that must not be deleted; its hint has the options that would delete all."""
    hint = None
    given = [option for each in (why, *others) for option in each.values()]
    if all(given):
        options = {option[:1] if "--grace" in option else option: shlex.join(option) for option in given}
        sure = "if no process is writing it" if ("--grace",) in options else "to delete it all the same"
        hint = f"it was not deleted; {sure}, add: {' '.join(options.values())}"
    return RefusedError(f"cannot be deleted: {', '.join(why)}", path=ref, hint=hint)


def looked_at(
    versions: Iterable[Version], errors: list[EdlCkptError] | None = None
) -> tuple[list[Version], dict[str, str]]:
    """Return the versions that a prune looks at, and by path why complete ones cannot be read, as `find_unreadable`.

    An incomplete version of which a living process is saving a shard is being written, even if the process has not
    touched the version for longer than the grace period. On object storage nothing shows it.
    """
    listed = prunable(versions)
    places = {version.location for version in listed if version.state is State.INCOMPLETE}
    staged = {path for place in places for path in staged_paths(open_store(place))}
    writing = [v.state is State.INCOMPLETE and v.path in staged for v in listed]
    listed = [replace(v, state=State.WRITING) if now else v for v, now in zip(listed, writing, strict=True)]
    return listed, find_unreadable(listed, errors)


def _against_the_newest(
    version: Version, newest: Version | None, grace_seconds: float, unreadable: Mapping[str, str]
) -> list[str]:
    if newest is None:
        return ["no complete version could take its place"]
    if version.path == newest.path:
        return [_IS_NEWEST]
    if version.path in unreadable:
        return [f"newer than the newest version that can be read: {unreadable[version.path]}"]
    if version.version >= newest.version and version.why_not_good:
        return [f"newer than the newest good version; {version.why_not_good}"]
    if version.version >= newest.version:
        return ["newer than the newest complete version"]
    if _written_long_after(version, newest, grace_seconds):
        return [f"written after version {newest.version}: the job may have restarted its count"]
    return []


def _written_long_after(version: Version, newest: Version, grace_seconds: float) -> bool:
    """Return True for a version of a job that may have restarted its count; a shorter time is the order of a copy."""
    late = newest.modified + max(grace_seconds, GRACE_SECONDS)
    return version.state is State.COMPLETE and version.version < newest.version and version.modified > late


def guard_warnings(trial: Sequence[Version], guards: Guards, unreadable: Mapping[str, str]) -> list[str]:
    """Return warnings about one location: faults to check before its versions are deleted."""
    warnings = [f"{v.ref}: {v.why_unreadable}; it is kept" for v in trial if v.why_unreadable]
    torn = [v for v in trial if v.path in unreadable]
    if torn:
        older = len(torn) - 1
        has = f" and {counted(older, 'older version')} have all their" if older else " has all its"
        warnings.append(f"{torn[-1].ref}{has} files but cannot be read: {unreadable[torn[-1].path]}")
    poor = [v for v in trial if v.state is State.COMPLETE and v.why_not_good]
    warnings += [f"{v.ref} does not count as a version to keep: {v.why_not_good}" for v in poor]
    whole = [v for v in counted_versions(trial) if is_good(v, unreadable)]
    late = [str(v.version) for v in whole if _written_long_after(v, whole[-1], guards.grace_seconds)]
    if late:
        was = "version {} was" if len(late) == 1 else "versions {} were"
        warnings.append(
            f"{trial[0].location}: {was.format(', '.join(late))} written long after higher numbers. The job may have"
            f" restarted its count{', but ElasticDL restores the highest number' if whole[-1].is_elasticdl else ''}"
        )
    return warnings


def find_unreadable(versions: Iterable[Version], errors: list[EdlCkptError] | None = None) -> dict[str, str]:
    """Return, by path, why good versions cannot be read: from each location's newest down to the first that can.

    Reads headers only: a shard that is still being written is shorter than its headers say, grows while it is read, or
    ends before it describes its tables. `errors` gets the errors of reading, which say nothing of the content.
    """
    faults: dict[str, str] = {}
    found: list[EdlCkptError] = []
    for trial in by_location(v for v in versions if v.is_good):
        faults |= newest_readable(trial, found)[1]
    if errors is not None:
        errors += [error for error in found if not isinstance(error, LockedError)]
    return faults
