"""Plan and execute a prune in one step, and check the versions that stay."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import elasticdl_rules
from edl_ckpt.core import verify_version
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.prune.execute import PruneResult, execute_prune
from edl_ckpt.core.operations.prune.facts import NO_FACTS, Facts
from edl_ckpt.core.operations.prune.guards import NO_EXCEPTIONS, Guards
from edl_ckpt.core.operations.prune.plan import PrunePlan, choose, plan_of, plan_prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy

NOW = time.time() + 3600.0
"""Long after a test writes its versions: none is still being written."""


def plan_for(*locations: Path, keep: int = 1, guards: Guards | None = None) -> PrunePlan:
    """Return the plan that keeps the latest of each location."""
    return plan_prune([str(p) for p in locations], Policy((Latest(keep),)), guards=guards or Guards(), now=NOW)


def judge_versions(
    versions: Sequence[Version],
    policy: Policy,
    *,
    guards: Guards = NO_EXCEPTIONS,
    facts: Facts = NO_FACTS,
    now: float | None = None,
) -> PrunePlan:
    """Return the plan for listed versions, without a look into their directories."""
    return plan_of(choose(versions, policy, guards, facts, now), policy, guards, facts)


def prune(*locations: Path, keep: int = 1, trash: bool = False, guards: Guards | None = None) -> PruneResult:
    """Plan and execute."""
    return execute_prune(plan_for(*locations, keep=keep, guards=guards), trash=trash, now=NOW)


def check_whole(location: Path) -> None:
    """Assert that every version there verifies, and that ElasticDL's scan finds the newest."""
    versions = list_versions(str(location)).versions
    for version in versions:
        assert verify_version(version, level="deep").ok
    name = elasticdl_rules.latest_valid(location)
    assert name == f"version-{max(v.version for v in versions)}"
