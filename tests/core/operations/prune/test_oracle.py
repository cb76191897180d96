"""Random locations with foreign files, links, pointers and damaged versions: the page of retention, restated."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest

from edl_ckpt.core import add_tag, list_versions, plan_prune, prune, verify_version
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.state.user_cache import remember_in
from retention_oracle import Place, is_known_as_damaged, kept, make, random_place
from stranger_files import NOW
from waiting import settle


def made(seed: int, root: Path) -> Place:
    """Make a random location; its tags are set by the product."""
    place = random_place(Random(seed))
    make(place, root)
    by_number = {version.version: version for version in list_versions(root).versions}
    assert by_number.keys() == place.steps.keys()
    for number, step in place.steps.items():
        if step.tagged:
            add_tag(by_number[number], f"tag-{number}")
    settle()  # what was found of a file that was written just now is not remembered
    for number, step in place.steps.items():
        if step.is_verified:
            verify_version(by_number[number], level="deep", beside=False)
    return place


@pytest.mark.parametrize(
    "seeds",
    [
        range(10),
        pytest.param(range(10, 80), marks=pytest.mark.slow),
        pytest.param(range(1000, 2000), marks=pytest.mark.hours),
    ],
    ids=["few", "some", "thousand"],
)
def test_the_page_is_what_happens(seeds: range, tmp_path: Path) -> None:
    """A plan deletes what the page says, nothing foreign, and nothing that a kept version or a pointer needs."""
    deleted = damaged = 0
    remember_in(str(tmp_path / "cache"))
    for seed in seeds:
        root = tmp_path / f"run{seed}"
        place, keep = made(seed, root), Random(seed).randint(1, 3)
        known = {version.version for version in list_versions(root, now=NOW).versions if version.damage}
        assert known == {number for number in place.steps if is_known_as_damaged(place, number)}, seed
        damaged += len(known)
        plan = plan_prune([root], Policy((Latest(keep),)), now=NOW)
        reasons = {entry.version: entry.reasons for entry in plan.entries}
        stays = {entry.version for entry in plan.entries if entry not in plan.deletions}
        assert stays == kept(place, keep), (seed, keep, reasons, place)
        going = {os.path.realpath(entry.path) for entry in plan.deletions if not os.path.islink(entry.path)}
        for number in stays:
            for path in (root / place.steps[number].name).rglob("*"):
                assert not any(os.path.realpath(path).startswith(f"{one}/") for one in going), seed
        assert not any(place.steps[entry.version].foreign for entry in plan.deletions), seed
        before = {number: sorted((root / step.name).rglob("*")) for number, step in place.steps.items()}
        assert prune([root], Policy((Latest(keep),)), now=NOW).failed == (), seed
        for number, step in place.steps.items():
            left = sorted((root / step.name).rglob("*"))
            assert left == (before[number] if number in stays else []), seed
        assert all(path.exists() for number in stays for path in before[number]), seed
        assert not plan_prune([root], Policy((Latest(keep),)), now=NOW).deletions, seed
        deleted += len(plan.deletions)
    assert deleted > len(seeds) // 2 < damaged
