"""On S3 only a 404 of an object says that it is missing: 403, 500 and a missing bucket are errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import at, save_small
from edl_ckpt.core import add_tag, list_versions, plan_prune, prune
from edl_ckpt.core.base.errors import AuthError, EdlCkptError, NotFoundError, UnavailableError
from edl_ckpt.core.commit.repair.recovery import forget_gone
from edl_ckpt.core.operations.prune.guards import Guards
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.storage import open_store
from s3_fixtures import Bucket
from s3_proxy import Fault, status

META = ".edl-ckpt-0/meta-0/1.json"


@pytest.fixture
def tagged(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """Return a bucket with three versions, the first with a tag; nothing waits between attempts."""
    save_small(tmp_path / "run", 1, 2, 3, sealed=False)
    add_tag(at(tmp_path / "run", 1), "prod")
    s3.upload(tmp_path / "run")
    monkeypatch.setattr("edl_ckpt.core.storage.s3.client.pause", lambda _seconds: None)
    return s3


def test_forbidden_metadata(tagged: Bucket) -> None:
    """A 403 for metadata: the version is listed, it is protected, and the listing says that it lacks something."""
    tagged.proxy.fail(Fault(status(403, "AccessDenied"), operation="get", key=META, times=None))
    listing = list_versions(tagged.url)
    assert listing.unread
    assert [v.metadata_fault != "" for v in listing.versions] == [True, False, False]
    plan = plan_prune([tagged.url], Policy((Latest(1),)))
    assert plan.unread
    assert [e.action.value for e in plan.entries] == ["keep", "delete", "keep"]
    with pytest.raises(AuthError):
        add_tag(at(tagged.url, 1), "other")
    tagged.proxy.heal()
    prune([tagged.url], Policy((Latest(1),)))
    assert [(v.version, v.tags) for v in list_versions(tagged.url).versions] == [(1, ("prod",)), (3, ())]


@pytest.mark.parametrize(("number", "code"), [(500, "InternalError"), (503, "SlowDown")])
def test_failing_service(tagged: Bucket, number: int, code: str) -> None:
    """A service that fails for good is unavailable: nothing is listed as missing, nothing is deleted or forgotten."""
    tagged.proxy.fail(Fault(status(number, code), operation="get", key=META, times=None))
    before = tagged.objects().keys()
    with pytest.raises(UnavailableError):
        list_versions(tagged.url)
    with pytest.raises(EdlCkptError):
        prune([tagged.url], Policy((), 0), guards=Guards(everything=True))
    assert {key for key in tagged.objects() if "lock" not in key} >= {key for key in before if "version" in key}
    tagged.proxy.heal()
    tagged.proxy.fail(Fault(status(number, code), operation="list", times=None))
    with pytest.raises(UnavailableError):
        list_versions(tagged.url)
    tagged.proxy.heal()
    assert at(tagged.url, 1).tags == ("prod",)


def test_forgetting_needs_a_listing(tagged: Bucket) -> None:
    """Metadata goes when a whole listing lacks its version; an error in listing or removing is returned."""
    tagged.proxy.fail(Fault(status(403, "AccessDenied"), operation="list", times=None))
    assert [type(e) for e in forget_gone(open_store(tagged.url), (2, 3))] == [AuthError]
    tagged.proxy.heal()
    assert f"run/{META}" in tagged.objects()
    assert forget_gone(open_store(tagged.url), (2, 3)) == []
    assert f"run/{META}" not in tagged.objects()


def test_missing_bucket(s3: Bucket) -> None:
    """A missing object is None, in a missing bucket it is an error: nobody knows what was in it."""
    assert open_store(s3.url).read_small("none.json") is None
    with pytest.raises(NotFoundError, match="no such bucket"):
        open_store(f"s3://{s3.name}-gone/run").read_small("none.json")
    with pytest.raises(NotFoundError):
        list_versions(f"s3://{s3.name}-gone/run")
