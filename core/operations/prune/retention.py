"""Rules of which versions to keep: small and frozen, joined by "any": a version that one of them keeps is kept.

A rule looks at complete versions only and gives the reason for each version that it keeps. Guards stand above them,
which no rule can lift. Several locations are the trials of one experiment: every rule looks at each location alone,
except `ExperimentBest` and the size budget.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, ClassVar, Final

from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.several import several
from edl_ckpt.core.base.words import abridged, duration, size
from edl_ckpt.core.catalog.ranking import ranked
from edl_ckpt.core.model.versions import State, Version
from edl_ckpt.core.state.metric_modes import mode_of
from edl_ckpt.core.storage import Location

Reasons = dict[str, list[str]]
"""Why versions are kept, by their paths."""
_SHOWN: Final = 3


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
        rules: list[dict[str, Any]] = []
        for rule in self.rules:
            document: dict[str, Any] = {"rule": _NAMES[type(rule)]}
            for name, value in asdict(rule).items():
                document[name] = list(value) if isinstance(value, tuple) else value
            rules.append(document)
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
    amount = None
    if isinstance(rule, Within):
        amount = rule.seconds
    elif isinstance(rule, EverySteps):
        amount = rule.steps
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
