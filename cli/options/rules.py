"""Retention rules as options, of every command that takes rules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from edl_ckpt.cli.options.common import Mode, option
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_duration, parse_size
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.operations.prune.retention import Policy, Rule
    from edl_ckpt.core.storage.location import Location

_BEST_OF_ALL: Final = "Keep the best N of all locations."
_DETERMINED: Final = "Use Determined's rules, with the --save options."
_EXPERIMENT_BEST: Final = "For --policy determined: best of all locations. Default: 0."
_TRIAL_BEST: Final = "For --policy determined: best of each location. Default: 1."
_TRIAL_LATEST: Final = "For --policy determined: latest of each location. Default: 1."


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleOptions:
    """The retention rules, as options of every command that takes rules.

    Those for experiments, and Determined's, are shown where a policy is stored, and work in each command.
    """

    keep: Annotated[int | None, option("N", "Keep the latest N; 0 keeps all.", least=0)] = None
    keep_best: Annotated[int | None, option("N", "Keep the best N by --metric.", least=0)] = None
    metric: Annotated[str | None, option("NAME", "The metric that ranks versions.")] = None
    mode: Mode = None
    keep_experiment_best: Annotated[int | None, option("N", _BEST_OF_ALL, least=0, hidden=True)] = None
    keep_every: Annotated[int | None, option("STEPS", "Keep the first in every STEPS steps.", least=1)] = None
    keep_within: Annotated[str | None, option("DURATION", "Keep those saved so long before the newest.")] = None
    keep_tag: Annotated[list[str] | None, option("TAG", "Keep those with this tag; may be repeated.")] = None
    max_size: Annotated[str | None, option("SIZE", "Keep more, newest first, while all fit SIZE.")] = None
    policy_name: Annotated[str | None, option("determined", _DETERMINED, "--policy", hidden=True)] = None
    save_experiment_best: Annotated[int | None, option("N", _EXPERIMENT_BEST, least=0, hidden=True)] = None
    save_trial_best: Annotated[int | None, option("N", _TRIAL_BEST, least=0, hidden=True)] = None
    save_trial_latest: Annotated[int | None, option("N", _TRIAL_LATEST, least=0, hidden=True)] = None

    def policy(self, out: Output, places: Iterable[Location]) -> Policy:
        """Return the retention policy that the options describe; without any of them it is empty.

        Determined's numbers for the locations come from a configuration file where the options give none.
        """
        from edl_ckpt.core.operations.prune import retention

        best = self.policy_name or self.keep_best is not None or self.keep_experiment_best is not None
        if self.policy_name not in {None, "determined"}:
            raise UsageError(f"unknown policy {self.policy_name!r} (expected determined)")
        if self.policy_name is None and (saves := self._asked_saves().keys() - out.defaulted):
            flag = f"--{min(saves).replace('_', '-')}"
            raise UsageError(f"{flag} can only be used with --policy determined")
        if self.metric is None and best:
            raise UsageError("rules for the best versions need --metric NAME")
        rules: list[retention.Rule] = []
        if self.keep is not None:
            rules.append(retention.Latest(self.keep))
        if self.metric is not None:
            rules += self._best(self.metric, out, places)
        if self.keep_every is not None:
            rules.append(retention.EverySteps(self.keep_every))
        if self.keep_within is not None:
            rules.append(retention.check_rule(retention.Within(parse_duration(self.keep_within))))
        if self.keep_tag:
            rules.append(retention.Tagged(tuple(self.keep_tag)))
        return retention.Policy(tuple(rules), parse_size(self.max_size) if self.max_size is not None else None)

    def _asked_saves(self) -> dict[str, int]:
        """Return those of Determined's numbers that have a value, by their options."""
        names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
        return {name: number for name in names if (number := getattr(self, name)) is not None}

    def _best(self, metric: str, out: Output, places: Iterable[Location]) -> Iterator[Rule]:
        """Yield the rules that rank versions by a metric."""
        from edl_ckpt.core.operations.prune import retention

        if self.policy_name:
            groups = self._saves(out, places)
            for numbers, urls in groups.items():
                for rule in retention.determined(metric, self.mode, **dict(numbers)).rules:
                    yield retention.At(urls, rule) if len(groups) > 1 else rule  # type: ignore[arg-type]
        if self.keep_best is not None:
            yield retention.Best(self.keep_best, metric, self.mode)
        if self.keep_experiment_best is not None:
            yield retention.ExperimentBest(self.keep_experiment_best, metric, self.mode)

    def _saves(self, out: Output, places: Iterable[Location]) -> dict[tuple[tuple[str, int], ...], tuple[str, ...]]:
        """Return Determined's numbers, each from its option, else from the configuration file, and who has them."""
        found: dict[tuple[tuple[str, int], ...], tuple[str, ...]] = {}
        for place in places:
            saves = ({} if out.storages is None else out.storages.saves(place)) | self._asked_saves()
            key = tuple((name.removeprefix("save_"), number) for name, number in saves.items())
            found[key] = (*found.get(key, ()), place.url)
        return found or {(): ()}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRuleOptions(RuleOptions):
    """The retention rules where they are stored with a location: those for experiments are shown too."""

    keep_experiment_best: Annotated[int | None, option("N", _BEST_OF_ALL, least=0)] = None
    policy_name: Annotated[str | None, option("determined", _DETERMINED, "--policy")] = None
    save_experiment_best: Annotated[int | None, option("N", _EXPERIMENT_BEST, least=0)] = None
    save_trial_best: Annotated[int | None, option("N", _TRIAL_BEST, least=0)] = None
    save_trial_latest: Annotated[int | None, option("N", _TRIAL_LATEST, least=0)] = None
