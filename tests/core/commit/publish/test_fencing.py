"""A holder that sleeps beyond its lock wakes up, and neither loses nor mixes anything of the next holder.

The proxy stops a command at one of its requests. Meanwhile another command takes the lock over, as after ten minutes
of silence, settles, changes the location and ends. Then the first command goes on, or all its further requests fail,
as when it is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from checkpoints import at, only, save_small
from edl_ckpt.core import (
    execute_copy,
    export_version,
    import_arrays,
    list_versions,
    plan_copy,
    recover,
    reshard_version,
    verify_version,
)
from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError
from edl_ckpt.core.operations.annotate import add_tag, remove_tag, set_metadata, set_metrics, set_note
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.plan import store_policy
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.operations.verify.check import seal_version
from edl_ckpt.core.state import owner as owners
from edl_ckpt.core.state.metadata import read_metadata
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import open_store
from s3_fixtures import Bucket
from s3_proxy import Fault, Request, hook, ignore_conditions, status

CHANGES = {"put", "complete", "delete", "delete_many"}
"""The requests that change what others see.

A command proves its lock by a listing right before it sends one. Between that answer and the request it cannot look
again. So a file of our state is written on a condition, or kept twice: `LATE` has what is stopped at this very instant.
"""


@dataclass
class Scene:
    """One location on S3, a source beside it, and what the second command reported as done."""

    s3: Bucket
    source: Path
    done: dict[str, Any] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The location."""
        return self.s3.url

    def clear(self) -> None:
        """Remove everything."""
        self.s3.proxy.reset()
        self.s3.abort()
        self.s3.delete(*self.s3.objects())
        self.done.clear()

    def leftovers(self) -> list[str]:
        """What is there of our own state besides metadata and seals."""
        return [*self.s3.state(), *(key for key, _ in self.s3.open_uploads())]

    def check_whole(self, *versions: int) -> None:
        """Every version there is complete and correct, these are among them, and each has its own values."""
        found = {v.version: v for v in list_versions(self.url, grace_seconds=0).versions}
        assert set(versions) <= set(found)
        for version in found.values():
            check = verify_version(version, level="deep")
            assert (version.state.value, version.extra, check.findings) == ("complete", (), ())


@dataclass(frozen=True)
class Case:
    """What is there before, what the command that sleeps does, what the other one does, and what must hold."""

    before: Callable[[Scene], None]
    sleeper: Callable[[Scene], object]
    other: Callable[[Scene], None]
    holds: Callable[[Scene], None]


def _one(scene: Scene) -> None:
    scene.s3.upload(scene.source / "run")


def _tagged(scene: Scene) -> None:
    _one(scene)
    add_tag(at(scene.url, 7), "mine")
    scene.s3.proxy.reset()


def _four(scene: Scene) -> None:
    scene.s3.upload(scene.source / "four")


def _nothing(_scene: Scene) -> None:
    return


def _other_reshards(scene: Scene) -> None:
    """Settle, and bring the version to five shards."""
    recover(scene.url)
    scene.done["ps_num"] = reshard_version(only(scene.url), 5).to_ps


def _other_tags(version: int) -> Callable[[Scene], None]:
    def act(scene: Scene) -> None:
        recover(scene.url)
        held = at(scene.url, version)
        add_tag(held, "good")
        set_metrics(held, {"auc": 0.5}, mode="max")
        scene.done["tagged"] = version

    return act


def _other_saves(scene: Scene) -> None:
    """Write version 7 with other values in three shards."""
    save_small(scene.url, 7, ps_num=3)
    scene.done["ps_num"] = 3


def _seal(scene: Scene) -> None:
    version = at(scene.url, 7)
    seal_version(version, verify_version(version, level="deep").fingerprint or "")


def _is_resharded(scene: Scene) -> None:
    scene.check_whole(7)
    assert scene.done.get("ps_num") in {None, only(scene.url).ps_num}
    assert (
        verify_version(only(scene.url), level="deep").fingerprint
        == verify_version(only(scene.source / "run"), level="deep").fingerprint
    )


def _is_tagged(scene: Scene) -> None:
    if "tagged" in scene.done:
        scene.check_whole(scene.done["tagged"])
        version = at(scene.url, scene.done["tagged"])
        assert "good" in version.tags
        assert version.metrics["auc"] == 0.5
        assert read_metadata(open_store(scene.url)).modes == {"auc": "max"}
    scene.check_whole()


def _is_pruned(scene: Scene) -> None:
    """Every version that is left is whole, and among them the tagged one and the newest."""
    scene.check_whole(4, scene.done.get("tagged", 4))
    if "tagged" in scene.done:
        assert "good" in at(scene.url, 2).tags


def _is_one(scene: Scene) -> None:
    """The version is whole, of the one command or of the other; of the other when that reported success."""
    with suppress(NotFoundError):
        scene.check_whole()
    if "ps_num" in scene.done:
        assert only(scene.url).ps_num == scene.done["ps_num"]


def _is_sealed(scene: Scene) -> None:
    """The seal is that of the shards that are there."""
    _is_resharded(scene)
    found = read_seal(open_store(scene.url), 7)
    if "ps_num" in scene.done:
        assert found is not None
        assert len(found.shards) == scene.done["ps_num"]


LATE = {
    "tag add",
    "tag remove",
    "metadata set",
    "note",
    "metrics set",
    "verify --seal",
    "seal, other reshards",
    "policy",
}
"""The commands that write nothing but files of our state: they may be stopped anywhere."""
CASES = {
    "reshard in place, other reshards": Case(
        _one, lambda s: reshard_version(only(s.url), 3), _other_reshards, _is_resharded
    ),
    "reshard in place, other tags": Case(_one, lambda s: reshard_version(only(s.url), 1), _other_tags(7), _is_tagged),
    "reshard --output": Case(
        _nothing, lambda s: reshard_version(only(s.source / "run"), 5, output=s.url), _other_saves, _is_one
    ),
    "import": Case(
        _nothing,
        lambda s: import_arrays(str(s.source / "m.npz"), s.url, 7, 5, layout="elasticdl"),
        _other_saves,
        _is_one,
    ),
    "save": Case(_nothing, lambda s: save_small(s.url, 7, ps_num=5), _other_saves, _is_one),
    "copy": Case(
        _nothing,
        lambda s: execute_copy(plan_copy([only(s.source / "run")], s.url), workers=1),
        _other_saves,
        _is_one,
    ),
    "prune": Case(_four, lambda s: prune([s.url], Policy((Latest(1),)), now=1e10), _other_tags(2), _is_pruned),
    "tag add": Case(_one, lambda s: add_tag(at(s.url, 7), "mine"), _other_tags(7), _is_tagged),
    "tag remove": Case(_tagged, lambda s: remove_tag(at(s.url, 7), "mine"), _other_tags(7), _is_tagged),
    "metadata set": Case(_one, lambda s: set_metadata(at(s.url, 7), {"k": 1}), _other_tags(7), _is_tagged),
    "note": Case(_one, lambda s: set_note(at(s.url, 7), "words"), _other_tags(7), _is_tagged),
    "metrics set": Case(_one, lambda s: set_metrics(at(s.url, 7), {"loss": 1.0}), _other_tags(7), _is_tagged),
    "seal, other reshards": Case(_one, _seal, _other_reshards, _is_sealed),
    "verify --seal": Case(_one, _seal, _other_tags(7), _is_tagged),
    "policy": Case(_one, lambda s: store_policy(s.url, Policy((Latest(3),))), _other_tags(7), _is_tagged),
}


def sampled(names: Iterable[str], sample: Container[str]) -> list[Any]:
    """Return names as parameters of a test: those outside of the sample are slow."""
    return [name if name in sample else pytest.param(name, marks=pytest.mark.hours) for name in names]


@pytest.fixture
def scene(s3: Bucket, tmp_path: Path) -> Scene:
    """Return an empty location, and sources: one version, four versions, and an .npz."""
    save_small(tmp_path / "run", 7)
    save_small(tmp_path / "four", 1, 2, 3, 4)
    export_version(only(tmp_path / "run"), str(tmp_path / "m.npz"))
    return Scene(s3, tmp_path)


def stopping_points(scene: Scene, case: Case, *, late: bool = False) -> list[int]:
    """Run the command undisturbed; return the requests, by number, before which it is stopped.

    Those that follow a proof of the lock are the `late` ones.
    """
    scene.clear()
    case.before(scene)
    case.sleeper(scene)
    requests = [r.operation for r in scene.s3.proxy.requests]
    took = next(k for k, r in enumerate(scene.s3.proxy.requests, 1) if "/lock-0/" in r.key and r.operation == "put")
    return [
        k
        for k, (before, here) in enumerate(pairwise(requests), 2)
        if k > took and late == (here in CHANGES and before == "list")
    ]


def sleep_at(scene: Scene, case: Case, nth: int, *, dies: bool, conditions: bool = True) -> BaseException | None:
    """Let the command sleep before its nth request while the other one is at work; return how it ended."""
    scene.clear()
    case.before(scene)
    if not conditions:
        scene.s3.proxy.fail(Fault(ignore_conditions, times=None))

    def meanwhile(_request: Request) -> None:
        with pytest.MonkeyPatch.context() as patch, suppress(EdlCkptError):
            patch.setattr(owners, "STALE_SECONDS", -1.0)
            case.other(scene)
        if dies:
            scene.s3.proxy.fail(Fault(status(403, "AccessDenied"), times=None))

    scene.s3.proxy.fail(Fault(hook(meanwhile), nth=nth))
    try:
        case.sleeper(scene)
    except EdlCkptError as error:
        return error
    finally:
        scene.s3.proxy.heal()
    return None


def disturb(scene: Scene, name: str, *, every: bool) -> Iterator[tuple[int, bool]]:
    """Stop the command at some points, or at every one, with and without its death, and check what must hold."""
    case = CASES[name]
    points = stopping_points(scene, case)
    some = points[len(points) // 5 :: max(len(points) // 3, 1)]
    for number, nth in enumerate(points if every else some):
        for dies in (False, True) if every else (number % 2 == 1,):
            error = sleep_at(scene, case, nth, dies=dies)
            where = f"{name}, request {nth}, dies: {dies}, {error!r}, {scene.done}"
            if not dies and error is not None and scene.done:
                assert error.exit_code in {11, 16}, where  # type: ignore[attr-defined]
            with suppress(NotFoundError):
                recover(scene.url, drop_copies=True)
            try:
                case.holds(scene)
                assert scene.leftovers() == []
            except BaseException as failure:
                failure.add_note(where)
                raise
            with suppress(NotFoundError):
                assert recover(scene.url).done == (), where
            yield nth, error is not None


@pytest.mark.parametrize("name", sampled(CASES, {"reshard in place, other reshards", "prune"}))
def test_asleep_beyond_the_lock(scene: Scene, name: str) -> None:
    """The work of the other command stays, the sleeper ends with 11 or 16, and `recover` leaves nothing."""
    ended = list(disturb(scene, name, every=False))
    assert any(refused for _, refused in ended)


def arrive_late(scene: Scene, name: str, *, conditions: bool, every: bool) -> None:
    """Hold a request of the command that follows a proof of its lock, or every one, until the other one has ended."""
    case = CASES[name]
    points = stopping_points(scene, case, late=True)
    written = [k for k in points if "/meta-0/" in scene.s3.proxy.requests[k - 1].key]
    assert points if every else written
    for nth, dies in product(points, (False, True)) if every else ((written[0], not conditions),):
        error = sleep_at(scene, case, nth, dies=dies, conditions=conditions)
        where = f"{name}, request {nth}, dies: {dies}, {error!r}, {scene.done}"
        if name in LATE and nth in written and not dies:
            assert isinstance(error, LockedError), where
        try:
            if name in LATE and conditions:  # else the next command that takes the lock puts it back, or settles
                case.holds(scene)
            with suppress(NotFoundError):
                recover(scene.url, drop_copies=True)
            case.holds(scene)
        except BaseException as failure:
            failure.add_note(where)
            raise
        assert scene.leftovers() == [], where


@pytest.mark.parametrize("name", sampled(sorted(LATE), {"tag add", "metrics set", "seal, other reshards"}))
def test_a_late_write_takes_nothing_away(scene: Scene, name: str) -> None:
    """A write that arrives after the lock was lost leaves what another command has acknowledged, and ends with 11."""
    arrive_late(scene, name, conditions=True, every=False)


@pytest.mark.parametrize("name", sampled(sorted(LATE), {"metrics set", "policy"}))
def test_what_a_late_write_took_away_is_put_back(scene: Scene, name: str) -> None:
    """Without conditional writes, the next command puts it back, also when the late one was killed after its write."""
    arrive_late(scene, name, conditions=False, every=False)


@pytest.mark.hours
@pytest.mark.parametrize("conditions", [True, False], ids=["conditional writes", "no conditional writes"])
@pytest.mark.parametrize("name", CASES)
def test_every_late_request(scene: Scene, name: str, conditions: bool) -> None:
    """The same for each request that follows a proof, with a command that ends and one that is killed."""
    arrive_late(scene, name, conditions=conditions, every=True)


@pytest.mark.hours
@pytest.mark.parametrize("name", CASES)
def test_asleep_at_every_request(scene: Scene, name: str) -> None:
    """The same at each request that changes something."""
    assert any(refused for _, refused in disturb(scene, name, every=True))


def test_lost_lock_is_locked(scene: Scene) -> None:
    """The error of a lost lock has exit code 11 and names the holder."""
    case = CASES["tag add"]
    points = stopping_points(scene, case)
    error = sleep_at(scene, case, points[0], dies=False)
    assert isinstance(error, LockedError) or error is None


def test_a_late_shard_does_not_appear(scene: Scene) -> None:
    """A shard that becomes visible late, when the location has been settled and saved to again, does not: 0076."""

    def meanwhile(_request: Request) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owners, "STALE_SECONDS", -1.0)
            recover(scene.url, drop_copies=True)
            save_small(scene.url, 7, ps_num=3)
        scene.s3.proxy.fail(Fault(status(403, "AccessDenied"), times=None))  # and it is killed right after

    source = only(scene.source / "run")
    visible = [Fault(hook(meanwhile), operation=each, key="variables-") for each in ("complete", "put")]
    armed = [scene.s3.proxy.fail(each) for each in visible]
    with pytest.raises(EdlCkptError):
        execute_copy(plan_copy([source], scene.url), workers=1)
    scene.s3.proxy.heal()
    assert sum(each.hits for each in armed) == 1
    shards = [key.rpartition("/")[2] for key in scene.s3.objects() if "variables-" in key]
    assert shards == [f"variables-{shard}-of-3.ckpt" for shard in range(3)]
    scene.check_whole(7)
