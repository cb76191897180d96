from __future__ import annotations

import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest

from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.errors import NotFoundError, RefusedError, UsageError
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.plan import PrunePlan
from edl_ckpt.core.operations.prune.plan_file import read_plan, write_plan
from edl_ckpt.core.operations.prune.retention import (
    Best,
    EverySteps,
    ExperimentBest,
    Latest,
    Policy,
    Rule,
    Tagged,
    Within,
    determined,
    evaluate,
)
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.storage import Location
from places import DATA
from policy_cases import NOW, facts_of, guards_of, versions_of
from pruning import judge_versions

CASES = sorted((DATA / "policies").glob("*.json"))


def plan_lines(plan: PrunePlan) -> list[str]:
    """Return a plan in the words of the case files."""
    places = [e.path.replace("run/version-", "").replace("version-", "") for e in plan.entries]
    return [f"{e.action} {place}: {'; '.join(e.reasons)}" for e, place in zip(plan.entries, places, strict=True)]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_policy_case(path: Path, tmp_path: Path) -> None:
    """Each case file lists the versions that a policy keeps and deletes, the reasons, and the warnings."""
    case = json.loads(path.read_text(encoding="utf-8"))
    versions, _ = versions_of(case["versions"])
    policy = Policy.from_json(case["policy"])
    assert policy.to_json()["rules"] == case["policy"]["rules"]
    plan = judge_versions(versions, policy, now=NOW, guards=guards_of(case["guards"]), facts=facts_of(case["versions"]))
    assert plan_lines(plan) == case["expect"]
    assert list(plan.warnings) == case["warnings"]
    write_plan(tmp_path / "plan.json", plan)
    again = read_plan(tmp_path / "plan.json", plan.guards)
    assert (again.guards, len(again.emptied)) == (plan.guards, len(plan.emptied))


def test_there_are_cases() -> None:
    """The case files are found: an empty folder would test nothing."""
    assert len(CASES) >= 25


TRIALS = [
    *("t1/1 complete", "t1/2 complete", "t1/3 complete m=0.6", "t1/4 complete m=0.5", "t1/5 complete m=0.4"),
    *("t2/6 complete", "t2/7 complete m=0.2", "t2/8 complete m=0.3", "t2/9 complete", "t2/10 complete"),
]


@pytest.mark.parametrize(
    ("experiment_best", "trial_best", "trial_latest", "saved"),
    [
        (0, 0, 0, []),
        (2, 0, 0, [8, 7]),
        (5, 0, 0, [8, 7, 5, 4, 3]),
        (9, 0, 0, [8, 7, 5, 4, 3]),
        (0, 1, 0, [7, 5]),
        (0, 3, 0, [8, 7, 5, 4, 3]),
        (0, 7, 0, [8, 7, 5, 4, 3]),
        (0, 0, 1, [10, 5]),
        (0, 0, 3, [10, 9, 8, 5, 4, 3]),
        (2, 1, 0, [8, 7, 5]),
        (2, 0, 1, [10, 8, 7, 5]),
        (0, 1, 1, [10, 7, 5]),
        (2, 1, 1, [10, 8, 7, 5]),
    ],
)
def test_determined(experiment_best: int, trial_best: int, trial_latest: int, saved: list[int]) -> None:
    """Determined's three parameters save the versions of its own table: two trials, smaller is better."""
    versions, _ = versions_of(TRIALS)
    policy = determined("m", "min", experiment_best=experiment_best, trial_best=trial_best, trial_latest=trial_latest)
    kept = evaluate(policy, versions)
    assert sorted((v.version for v in versions if v.path in kept), reverse=True) == saved


def test_determined_defaults() -> None:
    """Without numbers Determined's policy keeps the best and the latest of each trial: (0, 1, 1)."""
    assert determined("m", "min") == determined("m", "min", experiment_best=0, trial_best=1, trial_latest=1)


def test_named_versions_are_guarded() -> None:
    """Naming the newest complete version, a tagged one, or one that is not there is an error, not a deletion."""
    versions, _ = versions_of(["1 complete", "2 complete tag:prod", "3 complete"])
    for number, error in ((3, RefusedError), (2, RefusedError), (4, NotFoundError)):
        with pytest.raises(error):
            judge_versions(versions, Policy(), now=NOW, guards=Guards(delete=(number,)))


def test_no_rule_is_an_error() -> None:
    """An empty policy is a mistake: it neither keeps nor deletes everything."""
    versions, _ = versions_of(["1 complete", "2 complete"])
    with pytest.raises(UsageError):
        judge_versions(versions, Policy(), now=NOW)


def test_modes() -> None:
    """A metric's mode is the one asked for, the declared one or that of a known name; it is never guessed."""
    assert Policy((Best(1, "loss"),)).settle({}).rules == (Best(1, "loss", "min"),)
    assert Policy((Best(1, "a/AUC"),)).settle({}).rules == (Best(1, "a/AUC", "max"),)
    assert Policy((ExperimentBest(1, "loss"),)).settle({"loss": "max"}).rules == (ExperimentBest(1, "loss", "max"),)
    assert Policy((Best(1, "loss", "max"),)).settle({}).rules == (Best(1, "loss", "max"),)
    for name in ("f1", "val_loss_gap", "aucx"):
        with pytest.raises(UsageError, match="better"):
            Policy((Best(1, name),)).settle({})


@pytest.mark.parametrize(
    "document",
    [
        {"rules": [{"rule": "sometimes"}]},
        {"rules": [{"rule": "latest"}]},
        {"rules": [{"rule": "latest", "count": -1}]},
        {"rules": [{"rule": "latest", "count": "2"}]},
        {"rules": [{"rule": "every-steps", "steps": 0}]},
        {"rules": [{"rule": "within", "seconds": float("nan")}]},
        {"rules": ["latest"]},
        {"rules": 3},
        {"rules": [], "max_size_bytes": "much"},
    ],
)
def test_foreign_policies(document: dict[str, Any]) -> None:
    """A stored policy that this version does not understand is an error: a rule left out would delete."""
    with pytest.raises(UsageError):
        Policy.from_json(document)


def random_versions(random: Random) -> list[Version]:
    """Return any versions of one to three locations."""
    versions: list[Version] = []
    for location in "abc"[: random.randint(1, 3)]:
        for number in random.sample(range(41), random.randint(0, 9)):
            modified = NOW - random.choice([0.0, 60.0, 3600.0, 86_400.0 * 3])
            path = f"{location}/version-{number}"
            shard = ShardFile(0, 1, f"{path}/variables-0-of-1.ckpt", random.randint(0, 50), modified)
            value = random.choice([None, math.nan, 0.0, 0.25, 0.5, math.inf])
            versions.append(
                Version(
                    Location(location),
                    number,
                    path,
                    ELASTICDL,
                    random.choice([State.COMPLETE] * 5 + list(State)),
                    1,
                    (shard,),
                    modified=modified,
                    metrics={} if value is None else {"m": value},
                    tags=("t",) if random.random() < 0.15 else (),
                )
            )
    return versions


def random_policy(random: Random) -> Policy:
    """Return a random policy with at least one rule or a size budget."""
    modes: list[Mode] = ["max", "min"]
    mode = random.choice(modes)
    rules: list[Rule] = [
        Latest(random.randint(0, 5)),
        Best(random.randint(0, 4), "m", mode),
        ExperimentBest(random.randint(0, 4), "m", mode),
        EverySteps(random.randint(1, 20)),
        Within(random.choice([1.0, 3600.0, 86_400.0])),
        Tagged(("t",)),
    ]
    chosen = tuple(random.sample(rules, random.randint(0, 3)))
    return Policy(chosen, random.randint(0, 200) if not chosen or random.random() < 0.3 else None)


@pytest.mark.parametrize(
    "many", [400, pytest.param(2000, marks=pytest.mark.slow), pytest.param(50_000, marks=pytest.mark.hours)]
)
def test_properties(many: int) -> None:
    """Random directories, random policies: no guard fails, kept versions stay, a second prune is idle.

    Never the newest complete version, nothing newer than it, nothing tagged, mixed, invalid or being written; rules
    joined keep the union of what each keeps; every version has a reason; a second prune finds nothing to delete.
    """
    deleted = 0
    for seed in range(many):
        random = Random(seed)
        versions, policy = random_versions(random), random_policy(random)
        guards = Guards(incomplete=random.random() < 0.5)
        plan = judge_versions(versions, policy, now=NOW, guards=guards)
        going = {e.path for e in plan.deletions}
        deleted += len(going)
        assert {e.path for e in plan.entries} == {v.path for v in versions}, seed
        assert all(e.reasons for e in plan.entries), seed
        for v in versions:
            if v.path in going:
                newer = [w for w in versions if w.location == v.location and w.version > v.version]
                assert any(w.state is State.COMPLETE for w in newer), seed
                assert not v.tags, seed
                assert v.state is State.COMPLETE or (v.state is State.INCOMPLETE and guards.incomplete), seed
        kept = set().union(*(evaluate(Policy((rule,)), versions) for rule in policy.rules))
        assert not going & kept, seed
        again = judge_versions([v for v in versions if v.path not in going], policy, now=NOW, guards=guards)
        assert not again.deletions, seed
    assert deleted > many
