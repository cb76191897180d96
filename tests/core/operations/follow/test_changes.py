"""Events as the difference of two moments: plain values, no file."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import ShardFile, State, Version
from edl_ckpt.core.operations.follow.observe import (
    Health,
    HealthCheck,
    Limits,
    Moment,
    changes,
    moment_after,
    next_due,
    to_check,
)
from edl_ckpt.core.sources.elasticdl.names import ELASTICDL
from edl_ckpt.core.storage.faults import Fault
from edl_ckpt.core.storage.location import Location

RUN = Location("run")
LIMITS = Limits(stall_seconds=60.0, corrupt_seconds=30.0)
EMPTY = Moment(0.0, 0.0)
READABLE = HealthCheck(Health.READABLE)
DAMAGED = HealthCheck(Health.DAMAGED, "cut short")


def version(number: int, *ids: int, ps_num: int = 2, written: float = 1.0, state: State | None = None) -> Version:
    """Return a version with some shards, each written at a time."""
    path = f"run/version-{number}"
    shards = tuple(ShardFile(i, ps_num, f"{path}/variables-{i}-of-{ps_num}.ckpt", 100, written) for i in ids)
    state = state or (State.COMPLETE if len(ids) == ps_num else State.WRITING)
    return Version(RUN, number, path, ELASTICDL, state, ps_num if ids else None, shards)


def after(before: Moment, *versions: Version, tick: float, check: HealthCheck = READABLE, **more: object) -> Moment:
    """Return the moment of a listing in which each version that is asked for has the same headers."""
    listing = replace(Listing(RUN, versions), **more)  # type: ignore[arg-type]
    checks = {v.path: check for v in to_check(before, listing)}
    return moment_after(before, listing, checks, at=1000 + tick, tick=tick)


def words(before: Moment, later: Moment) -> list[str]:
    """Return the events between two moments, in short."""
    return [
        f"{e.kind} {e.version.version}" + (f".{e.shard.ps_id}" if e.shard else "") + (" again" if e.replaced else "")
        for e in changes(before, later, LIMITS)
    ]


def test_a_version_from_its_first_shard_to_its_end() -> None:
    """Each thing that happens is one event, at the look that finds it, and nothing is repeated."""
    one = after(EMPTY, version(10, 0), tick=1)
    assert words(EMPTY, one) == ["new-version 10", "shard-arrived 10.0"]
    two = after(one, version(10, 0, 1), tick=2)
    assert words(one, two) == ["shard-arrived 10.1", "complete 10"]
    three = after(two, replace(version(10, 0, 1), fingerprint="edl1:f"), tick=3)
    assert words(two, three) == ["sealed 10"]
    assert words(three, after(three, replace(version(10, 0, 1), fingerprint="edl1:f"), tick=99)) == []
    assert words(three, after(three, tick=100)) == ["deleted 10"]
    assert words(three, moment_after(three, None, {}, at=0, tick=100)) == ["deleted 10"]
    assert {e.at for e in changes(EMPTY, one, LIMITS)} == {1001}


def test_everything_at_once_comes_in_order() -> None:
    """One look that finds a lot reports deletions, then versions by number, each in the order of its life."""
    before = after(EMPTY, version(5, 0, 1), tick=1)
    later = after(before, version(10, 0, 1), version(9, 0), tick=2)
    assert words(before, later) == [
        "deleted 5",
        *("new-version 9", "shard-arrived 9.0"),
        *("new-version 10", "shard-arrived 10.0", "shard-arrived 10.1", "complete 10"),
    ]


def test_complete_means_readable() -> None:
    """All files of a version that is written in place are there before it is complete: its headers decide."""
    torn = after(EMPTY, version(10, 0, 1), tick=1, check=DAMAGED)
    assert words(EMPTY, torn) == ["new-version 10", "shard-arrived 10.0", "shard-arrived 10.1"]
    whole = after(torn, version(10, 0, 1, written=2.0), tick=2)
    assert words(torn, whole) == ["complete 10"]


def test_a_version_that_stays_unreadable_is_corrupt() -> None:
    """Corrupt is a version that is damaged and does not change any more, and it is reported once."""
    moments = [after(EMPTY, version(10, 0, 1), tick=1, check=DAMAGED)]
    assert next_due(moments[0], LIMITS) == 31
    for tick in (30.9, 31, 32, 200):
        moments.append(after(moments[-1], version(10, 0, 1), tick=tick, check=DAMAGED))
    assert [words(a, b) for a, b in pairwise(moments)] == [[], ["corrupt 10"], [], []]
    (event,) = changes(moments[1], moments[2], LIMITS)
    assert event.why == "cut short"
    assert words(moments[-1], after(moments[-1], version(10, 0, 1, written=2.0), tick=201)) == ["complete 10"]


@pytest.mark.parametrize("check", [HealthCheck(Health.UNREAD, "permission denied"), HealthCheck(Health.UNKNOWN)])
def test_what_cannot_be_read_now_is_not_corrupt(check: HealthCheck) -> None:
    """An error of reading says nothing of the content, however long it lasts: the version is not complete."""
    before = after(EMPTY, version(10, 0, 1), tick=1, check=check)
    later = after(before, version(10, 0, 1), tick=59, check=check)
    assert words(before, later) == []
    assert words(later, after(later, version(10, 0, 1), tick=61, check=check)) == ["stalled 10"]


def test_stalled() -> None:
    """A version to which nothing happens is reported once, and again only when it has changed in between."""
    begun = after(EMPTY, version(10, 0, ps_num=3), tick=1)
    stalled = after(begun, version(10, 0, ps_num=3), tick=61)
    assert words(begun, stalled) == ["stalled 10"]
    (event,) = changes(begun, stalled, LIMITS)
    assert event.why == "it has 1 of 3 shards"
    assert words(stalled, after(stalled, version(10, 0, ps_num=3), tick=500)) == []
    moved = after(stalled, version(10, 0, 1, ps_num=3), tick=600)
    assert words(stalled, moved) == ["shard-arrived 10.1"]
    assert words(moved, after(moved, version(10, 0, 1, ps_num=3), tick=660)) == ["stalled 10"]
    assert words(moved, after(moved, version(10, 0, 1, ps_num=3), tick=659.9)) == []
    assert next_due(moved, LIMITS) == 660
    assert next_due(moved, Limits(None)) is None


def test_a_version_that_servers_remove_is_not_stalled() -> None:
    """A version that was complete and has lost shards is on its way out, not on its way in."""
    whole = after(EMPTY, version(10, 0, 1), tick=1)
    less = after(whole, version(10, 0), tick=2)
    assert words(whole, less) == words(less, after(less, version(10, 0), tick=900)) == []


def test_a_version_that_is_written_again() -> None:
    """A restarted job that replaces shards is told apart: `replaced`, once for each shard and once for the version."""
    whole = after(EMPTY, version(10, 0, 1), tick=1)
    half = replace(version(10, 0, 1), shards=(version(10, 0, written=5.0).shards[0], version(10, 0, 1).shards[1]))
    torn = after(whole, half, tick=2, check=DAMAGED)
    assert words(whole, torn) == ["shard-arrived 10.0 again"]
    more = after(torn, replace(half, shards=(version(10, 0, written=6.0).shards[0], half.shards[1])), tick=3)
    assert words(torn, more) == ["complete 10 again"]
    assert words(more, after(more, version(10, 0, 1, written=6.0), tick=4)) == [
        "shard-arrived 10.1 again",
        "complete 10 again",
    ]


def test_a_version_that_cannot_be_listed_stays_as_it_was() -> None:
    """What cannot be looked at, or is being replaced by another command, has not happened."""
    whole = after(EMPTY, version(10, 0, 1), tick=1)
    fault = replace(version(10, state=State.UNREADABLE), fault=Fault(OSError, "permission denied", "run"))  # type: ignore[arg-type]
    assert words(whole, after(whole, fault, tick=2)) == []
    swapped = replace(version(10, 0, state=State.MIXED), replaced_by="reshard")
    assert words(whole, after(whole, swapped, tick=2)) == []
    assert words(whole, after(whole, tick=2, replacing={10: "reshard"})) == []
    back = after(after(whole, tick=2, replacing={10: "reshard"}), version(10, 0, 1, 2, ps_num=3), tick=3)
    assert words(whole, back)[-1] == "complete 10 again"
