"""The index of metadata: it saves requests, and whatever it says, nobody is shown or deletes what is not so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edl_ckpt.core import Listing, list_versions, recover
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.catalog.listing import resolve
from edl_ckpt.core.commit.journal import Journal, deletions_bytes
from edl_ckpt.core.model.seals import Chunk, Seal, SealedShard
from edl_ckpt.core.operations.annotate import set_metrics
from edl_ckpt.core.operations.prune.execute import prune
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.state import index
from edl_ckpt.core.state.index import Known, content_digest, index_bytes, parse_index
from edl_ckpt.core.state.seal import seal_bytes
from edl_ckpt.core.storage.s3.store import S3Store
from s3_fixtures import Bucket

_META = "run/.edl-ckpt-0/meta-0"
_INDEX = f"{_META}/index.json"
_COUNT = 20


def _shard(number: int) -> bytes:
    return bytes([8, number])  # a model of this version, and nothing else


def _fill(s3: Bucket, count: int = _COUNT, prefix: str = "run") -> None:
    """Write versions of one shard, with metadata and seals."""
    for number in range(1, count + 1):
        _describe(s3, number, {"metrics": {"auc": number / 100}}, prefix)
        data = _shard(number % 100)
        shard = SealedShard("variables-0-of-1.ckpt", len(data), (Chunk("", "", 0, 0, len(data), "0" * 32),))
        seal = Seal(number, f"edl1:{number}", (shard,), "2026-11-22T00:00:00+00:00")
        s3.put(f"{prefix}/.edl-ckpt-0/meta-0/{number}.seal.json", seal_bytes(seal))
        s3.put(f"{prefix}/version-{number}/variables-0-of-1.ckpt", data)


def _describe(s3: Bucket, number: int, more: dict[str, Any], prefix: str = "run") -> None:
    document = {"schema": "edl-ckpt/meta/1", "version": number, **more}
    s3.put(f"{prefix}/.edl-ckpt-0/meta-0/{number}.json", json.dumps(document).encode())


@pytest.fixture
def indexed(s3: Bucket) -> Bucket:
    """Return a bucket with twenty versions and their index."""
    _fill(s3)
    recover(s3.url)
    assert _INDEX in s3.objects()
    s3.proxy.reset()
    return s3


def _without_index(s3: Bucket) -> Listing:
    data = s3.get(_INDEX)
    s3.delete(_INDEX)
    listing = list_versions(s3.url)
    s3.put(_INDEX, data)
    s3.proxy.reset()
    return listing


def test_a_listing_reads_the_index_alone(indexed: Bucket) -> None:
    """One LIST and one GET list twenty versions with metadata and seals, and show what their own files show."""
    listing = list_versions(indexed.url)
    assert (indexed.proxy.count("list"), indexed.proxy.count("get")) == (1, 1)
    assert listing == _without_index(indexed)
    assert [v.fingerprint for v in listing.versions] == [f"edl1:{n}" for n in range(1, _COUNT + 1)]


def test_a_stale_entry_costs_a_request_and_never_lies(indexed: Bucket) -> None:
    """Metadata that was edited by hand, deleted or added since, and shards of another size, are shown as they are."""
    _describe(indexed, 3, {"tags": ["by-hand"]})
    _describe(indexed, 4, {"metrics": {"auc": 0.05}})  # of the same size as before
    indexed.delete(f"{_META}/5.json")
    indexed.put("run/version-6/variables-0-of-1.ckpt", _shard(6) + b"\x00")
    listing = list_versions(indexed.url)
    assert indexed.proxy.count("get") == 1 + 2 + 2  # a seal that does not fit is read again before that is said
    shown = {v.version: v for v in listing.versions}
    assert (shown[3].tags, shown[3].metrics, shown[4].metrics, shown[5].metrics) == (
        ("by-hand",), {}, {"auc": 0.05}, {},
    )  # fmt: skip
    assert "it had 2 when it was sealed" in shown[6].seal_fault
    assert listing == _without_index(indexed)


def test_who_writes_brings_it_up_to_date(indexed: Bucket) -> None:
    """A change of metadata is in the index afterwards; without an index, or with a damaged one, it is made again."""
    flipped = indexed.get(_INDEX).replace(b"edl1:9", b"edl1:8")
    for damage in (None, b"junk", flipped):
        indexed.delete(_INDEX) if damage is None else indexed.put(_INDEX, damage)
        honest = list_versions(indexed.url)
        assert honest.versions[8].fingerprint == "edl1:9"
        metrics = {"auc": len(damage or b"") / 7}
        set_metrics(honest.versions[6], metrics)
        indexed.proxy.reset()
        listing = list_versions(indexed.url)
        assert indexed.proxy.count("get") == 1
        assert listing.versions[6].metrics == metrics
        assert listing == _without_index(indexed)


def test_an_index_of_another_location_says_nothing(indexed: Bucket) -> None:
    """An index that was copied here counts only for files with the same marks; its other versions are not there."""
    _fill(indexed, 30, "other")
    for number in range(1, 31):
        _describe(indexed, number, {"tags": [f"other-{number}"]}, "other")
    recover(f"s3://{indexed.name}/other")
    honest = _without_index(indexed)
    indexed.put(_INDEX, indexed.get("other/.edl-ckpt-0/meta-0/index.json"))
    assert list_versions(indexed.url) == honest


def test_a_huge_index_is_not_read(indexed: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing shows its size: nothing of an index beyond the bound is read, and the next writer replaces it."""
    monkeypatch.setattr(index, "MAX_INDEX_BYTES", 1 << 16)
    honest = _without_index(indexed)
    indexed.put(_INDEX, b"{" * (1 << 17))
    assert list_versions(indexed.url) == honest
    assert indexed.proxy.count("get", key="index") == 0
    recover(indexed.url)
    indexed.proxy.reset()
    assert list_versions(indexed.url) == honest
    assert indexed.proxy.count("get") == 1


def _forge(s3: Bucket, number: int, **content: Any) -> None:
    """Change the entry of a version in the index, with the right marks and digest."""
    known = parse_index(s3.get(_INDEX))
    marks = {name: known._found[name][0] for name in known.names()}
    name = f"{number}.json"
    known.keep(name, marks[name], {"schema": "edl-ckpt/meta/1", "version": number, **content})
    s3.put(_INDEX, index_bytes(known, marks))


def test_a_prune_reads_the_metadata_itself_once(indexed: Bucket) -> None:
    """An index that hides a tag protects nothing from its owner: the tag is read from its file, once for each file."""
    _describe(indexed, 2, {"tags": ["keep"]})
    recover(indexed.url)
    _forge(indexed, 2)
    assert list_versions(indexed.url).versions[1].tags == ()  # as hostile as can be
    indexed.proxy.reset()
    result = prune([indexed.url], Policy((Latest(3),)), now=1e10)
    assert (len(result.deleted), result.errors) == (_COUNT - 4, ())
    kept = list_versions(indexed.url)
    assert [(v.version, v.tags) for v in kept.versions] == [(2, ("keep",)), (18, ()), (19, ()), (20, ())]
    for number in range(1, _COUNT + 1):
        assert indexed.proxy.count("get", key=rf"meta-0/{number}\.json") <= 1 + (number in {2, 18, 19, 20})
    assert indexed.proxy.count("put", key="journal") == 1
    assert _INDEX not in indexed.objects()  # of so few files


def test_entries_of_a_wrong_shape_are_left_out() -> None:
    """What is no entry is passed over; a document of the deepest nesting that is allowed is not put into an index."""
    known = Known()
    deep: dict[str, Any] = {"schema": "x"}
    for _ in range(30):
        deep = {"metadata": deep}
    known.keep("1.json", "m", deep)
    known.keep("2.json", "m", {"note": "\ud800 ö"})
    written = parse_index(index_bytes(known, {"1.json": "m", "2.json": "m", "3.json": "m"}))
    assert written.names() == {"2.json"}
    assert written.document("2.json", "m") == {"note": "\ud800 ö"}
    assert written.document("2.json", "other") is written.document("2.json", "") is None
    entries: dict[str, Any] = {
        "1.json": 7, "x.json": {"mark": "m", "document": {}}, "2.json": {"mark": 7, "document": {}},
        "3.json": {"mark": "m", "document": []}, "4.seal.json": {"mark": "m", "fingerprint": None, "files": ""},
        "5.seal.json": {"mark": "m", "document": {}},
    }  # fmt: skip
    text = json.dumps({"schema": index.INDEX_SCHEMA, "entries": entries, "digest": index._digest(entries)})
    assert parse_index(text.encode()).names() == set()
    assert parse_index(b'{"entries": []}').names() == set()
    for data in (b"", b"[]", b"[" * 5000, b'{"a":' * 5000):
        with pytest.raises(UsageError, match="damaged"):
            parse_index(data)


def test_one_of_a_thousand_is_found_in_few_requests(indexed: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference into a large location takes few requests, and has the answer of the whole listing, errors too."""
    _describe(indexed, 11, {"tags": ["serving"]})
    recover(indexed.url)
    refs = [f"{indexed.url}@{wanted}" for wanted in ("latest", "serving", "best:auc", "best", "7", "none", "8888")]
    before = [_resolved(ref) for ref in refs]
    with monkeypatch.context() as patch:
        patch.setattr(S3Store, "few", lambda _store, _inside: None)  # as if there were more than a thousand files
        for ref, known in zip(refs[:5], before, strict=False):
            indexed.proxy.reset()
            assert resolve(ref) == known
            assert indexed.proxy.count() <= 5  # of a thousand versions of eight shards: 9, for there are more pages
        assert [_resolved(ref) for ref in refs] == before
    for number in (_COUNT, 11, 7):  # these are not complete any more
        indexed.delete(f"run/version-{number}/variables-0-of-1.ckpt")
        indexed.put(f"run/version-{number}/variables-0-of-2.ckpt", _shard(number))
    now = [_resolved(ref) for ref in refs]
    assert [type(a) for a in now] == [type(b) for b in before]
    assert now[:3] != before[:3]
    monkeypatch.setattr(S3Store, "few", lambda _store, _inside: None)
    assert [_resolved(ref) for ref in refs] == now


def _resolved(ref: str) -> object:
    try:
        return resolve(ref)
    except EdlCkptError as error:
        return type(error), error.message, error.hint


@pytest.mark.parametrize("together", [True, False])
def test_a_deletion_that_was_begun_is_finished(indexed: Bucket, together: bool) -> None:
    """One journal of many versions, or one for each as older programs wrote them: only what is as it was goes."""
    begun = [
        Journal(number, f"version-{number}", deletes=("variables-0-of-1.ckpt",), metadata=content_digest(data))
        for number, data in ((n, indexed.get(f"{_META}/{n}.json")) for n in (1, 2, 3))
    ]
    stage = "run/.edl-ckpt-0/stage-0"
    if together:
        indexed.put(f"{stage}/a/journal.json", deletions_bytes({}, begun))
    else:
        for journal in begun:
            indexed.put(f"{stage}/{journal.version}/journal.json", journal.to_bytes())
    _describe(indexed, 2, {"tags": ["keep"]})
    indexed.delete(f"{_META}/3.json", "run/version-3/variables-0-of-1.ckpt")  # that far the deletion came
    assert set(recover(indexed.url).done) == {
        "finished the deletion of version 1",
        "version 2 stays as it is: it changed after a prune began to delete it",
        "finished the deletion of version 3",
    }
    assert [v.version for v in list_versions(indexed.url).versions] == [2, *range(4, _COUNT + 1)]
    assert not any("journal" in key or "/3." in key or "/1.json" in key for key in indexed.objects())
