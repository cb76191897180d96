"""When a prune holds the locks: a script from before its plan to its end, a person only after the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, numbers, save_small
from edl_ckpt.core import Guards, Latest, Policy, execute_prune, location_lock, plan_prune, prune
from edl_ckpt.core.base.errors import LockedError, RefusedError, UsageError
from edl_ckpt.core.operations.annotate import add_tag
from edl_ckpt.core.operations.prune import execute
from edl_ckpt.core.operations.prune.plan import PrunePlan
from pruning import NOW, check_whole

ONE = Policy((Latest(1),))


def is_locked(location: Path) -> bool:
    """Return True when a location's lock is held by somebody else."""
    try:
        with location_lock(location, "test", wait_seconds=0):
            return False
    except LockedError:
        return True


def test_a_script_holds_the_locks_while_it_plans(run: Path, tmp_path: Path) -> None:
    """Without a question, the locks of all locations are held when the plan is made, and free at the end."""
    save_small(tmp_path / "other", 1, 2, sealed=False)
    seen: list[tuple[bool, bool]] = []
    result = prune(
        [run, tmp_path / "other"],
        ONE,
        now=NOW,
        review=lambda plan: seen.append((is_locked(run), is_locked(tmp_path / "other"))),
    )
    assert seen == [(True, True)]
    assert len(result.deleted) == 4
    assert not is_locked(run)
    assert (numbers(run), numbers(tmp_path / "other")) == ([1, 5], [2])
    check_whole(run)


def test_a_question_locks_nobody_out(run: Path) -> None:
    """While a person thinks, other commands may change the location; the plan is then stale, and nothing is deleted."""

    def tag_meanwhile(_plan: PrunePlan) -> bool:
        add_tag(at(run, 3), "keep", wait_seconds=0)
        return True

    with pytest.raises(RefusedError, match="the plan is stale: tag keep"):
        prune([run], ONE, now=NOW, confirm=tag_meanwhile)
    assert numbers(run) == [1, 2, 3, 4, 5]
    assert prune([run], ONE, now=NOW, confirm=lambda plan: len(plan.deletions) == 2).trashed is False
    assert numbers(run) == [1, 3, 5]


def test_refusals(run: Path) -> None:
    """No answer, too many deletions, an error of the review and a held lock each end a prune before any deletion."""

    def refuse(_plan: PrunePlan) -> None:
        raise UsageError("no")

    cases: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"confirm": lambda plan: False}, RefusedError),
        ({"max_delete": 2}, RefusedError),
        ({"review": refuse}, UsageError),
    ]
    for settings, error in cases:
        with pytest.raises(error):
            prune([run], ONE, now=NOW, **settings)
    plan = plan_prune([run], ONE, now=NOW)
    with location_lock(run, "test"):
        with pytest.raises(LockedError):
            prune([run], ONE, now=NOW, wait_seconds=0)
        with pytest.raises(LockedError):
            execute_prune(plan, wait_seconds=0)
    assert numbers(run) == [1, 2, 3, 4, 5]
    assert len(prune([run], ONE, now=NOW, max_delete=3).deleted) == 3


def test_locks_are_taken_in_one_order(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two prunes of the same locations cannot wait for each other: both take the locks in the order of the names."""
    save_small(tmp_path / "a", 1, 2, sealed=False)
    taken: list[str] = []

    def watched(location: Any, *arguments: Any, **settings: Any) -> Any:
        taken.append(str(location))
        return location_lock(location, *arguments, **settings)

    monkeypatch.setattr(execute, "location_lock", watched)
    prune([run, tmp_path / "a"], ONE, now=NOW)
    prune([tmp_path / "a", run], ONE, now=NOW, confirm=lambda plan: True)
    assert taken == [str(tmp_path / "a"), str(run)] * 2


def test_only_the_trash(run: Path) -> None:
    """Without a rule, a purge empties the trash and considers no version; with guards it plans as ever."""
    prune([run], ONE, now=NOW, trash=True)
    plan = plan_prune([run], Policy(), purge_older_than_seconds=0)
    assert (plan.only_purges, plan.entries, [str(place) for place in plan.locations]) == (True, (), [str(run)])
    result = execute_prune(plan)
    assert result.purge is not None
    assert result.purge.freed_bytes > 0
    assert not plan_prune([run], Policy(), guards=Guards(incomplete=True), purge_older_than_seconds=0).only_purges
    with pytest.raises(UsageError, match="--even-newest needs a rule or --delete VERSION"):
        plan_prune([run], Policy(), guards=Guards(everything=True), purge_older_than_seconds=0)
    with pytest.raises(UsageError, match="no retention rule was given, and none is stored"):
        plan_prune([run], Policy())
