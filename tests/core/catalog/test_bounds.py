"""How far a look at object storage goes: requests counted, and never a fact out of what was not looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from edl_ckpt.core import list_versions, resolve
from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.catalog.bounds import MOST_REQUESTS
from edl_ckpt.core.catalog.experiment import glance_below
from edl_ckpt.core.storage.s3.store import S3Store
from program import edl, inside
from s3_fixtures import ENVIRONMENT, Bucket

_PAGE = 100
"""How many names a request lists here: a tenth of what S3 lists, so that moto keeps a tenth of the objects."""
_MANY = _PAGE * MOST_REQUESTS + 10
"""More names than the requests of one level return."""


@pytest.fixture
def root(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """A bucket with many objects at its root, and more below a directory."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", str(_PAGE))
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return s3


def _fill(bucket: Bucket, names: Iterable[str]) -> None:
    for name in names:
        bucket.backend.put_object(bucket.name, name, b"x")
    bucket.proxy.reset()


def _events(count: int) -> list[str]:
    return [f"events-{number:05d}.log" for number in range(count)]


def test_a_flood_of_names_is_not_listed_to_its_end(root: Bucket) -> None:
    """Five requests look at a root of thousands of objects, and the error says how far they went, and what to do."""
    _fill(root, _events(_MANY))
    place = f"s3://{root.name}"
    listing = list_versions(place)
    assert (listing.versions, listing.bound) == ((), _PAGE * MOST_REQUESTS)
    assert root.proxy.count() == MOST_REQUESTS
    root.proxy.reset()
    with pytest.raises(NotFoundError, match="among the first 500 names here; there are more") as found:
        resolve(f"{place}@latest")
    assert found.value.hint == f"name the directory in which the versions are, such as {place}/NAME"
    assert root.proxy.count() <= MOST_REQUESTS + 2


def test_every_verb_has_the_same_bound(
    root: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No verb lists a flood of names to its end, nor says of it that there is no checkpoint."""
    monkeypatch.chdir(tmp_path)
    _fill(root, _events(_MANY))
    for words, code in (
        ("list {}", 10),
        ("verify --all {}", 10),
        ("verify --newest {}", 10),
        ("prune --keep 1 --yes {}", 10),
        ("prune --keep 1 --dry-run {}", 10),
        ("report {}", 10),
        ("copy --all {} out", 10),
        ("inspect {}", 10),
        ("wait --timeout 0 {}", 3),
        ("metrics show {}", 10),
    ):
        root.proxy.reset()
        inside(capsys, *words.format(f"s3://{root.name}").split(), code=code)
        assert root.proxy.count() <= 3 * MOST_REQUESTS, words
        assert "PUT" not in {request.method for request in root.proxy.requests}, words


def test_json_says_how_far_a_look_went(root: Bucket) -> None:
    """`bound` is the count of names that were looked at, and 0 where all were."""
    _fill(root, _events(_MANY))
    flooded = json.loads(edl("list", f"s3://{root.name}", "--json").stdout)
    assert flooded["locations"][0]["bound"] == _PAGE * MOST_REQUESTS
    _fill(root, ["few/notes.txt"])
    assert json.loads(edl("list", f"s3://{root.name}/few", "--json").stdout)["locations"][0]["bound"] == 0


def test_a_location_with_versions_is_always_whole(root: Bucket) -> None:
    """What rules and guards see has every version, however many other names there are between them."""
    names = [f"checkpoint-{n}/model.safetensors" for n in (1, 2)]
    _fill(root, [*names, *_events(_MANY), "step_9/model.safetensors"])
    listing = list_versions(f"s3://{root.name}")
    assert listing.bound == 0
    assert [version.name for version in listing.versions] == ["checkpoint-1", "checkpoint-2", "step_9"]


def test_state_of_ours_shows_a_location(root: Bucket) -> None:
    """Where metadata of ours are, the listing goes to the end; a lock of whoever came to write shows nothing."""
    _fill(root, [".edl-ckpt-0/lock-0/1", *_events(_MANY)])
    assert list_versions(f"s3://{root.name}").bound
    _fill(root, [".edl-ckpt-0/meta-0/9.json", "step_9/model.safetensors"])
    assert [version.version for version in list_versions(f"s3://{root.name}").versions] == [9]


def test_large_directories_of_others_are_stepped_over(root: Bucket) -> None:
    """A directory with thousands of files of no format takes four requests, whatever is behind it is seen."""
    data = [f"data/part-{number:05d}.parquet" for number in range(_MANY)]
    _fill(root, [*data, "logs/1.txt", "step_9/model.safetensors"])
    listing = list_versions(f"s3://{root.name}")
    assert [version.version for version in listing.versions] == [9]
    assert [entry.name for entry in listing.foreign] == ["data", "logs"]
    assert root.proxy.count() <= MOST_REQUESTS


def test_a_large_version_of_any_name_is_not_stepped_over(root: Bucket) -> None:
    """A version without a number is seen although thousands of other files of it come first."""
    caches = [f"best/cache/{number:05d}.bin" for number in range(3 * _PAGE)]
    _fill(root, [*caches, "best/model.safetensors", "logs/1.txt"])
    assert [v.name for v in list_versions(f"s3://{root.name}").versions] == ["best"]


def test_steps_are_never_stepped_over(root: Bucket) -> None:
    """A step of thousands of files has them all, whatever their names."""
    _fill(root, [*(f"step_1/cache/{number:05d}.bin" for number in range(2500)), "step_1/model.safetensors"])
    (version,) = list_versions(f"s3://{root.name}").versions
    assert len(version.files) == 2501


def test_a_service_that_lists_from_the_top_again(root: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a service takes no name to begin at, everything is listed page by page, and nothing twice."""
    true = S3Store.page
    monkeypatch.setattr(S3Store, "page", lambda store, after="", token="": true(store, "", token))
    data = [f"data/part-{number:05d}.parquet" for number in range(5 * _PAGE // 2)]
    _fill(root, [*data, "step_9/model.safetensors"])
    listing = list_versions(f"s3://{root.name}")
    assert ([v.version for v in listing.versions], listing.bound) == ([9], 0)
    assert root.proxy.count() <= MOST_REQUESTS + 1


def test_a_hint_has_a_bound_for_each_level(root: Bucket) -> None:
    """The look for versions below goes into five directories of a level, and says that there are more."""
    runs = [f"run-{number:02d}/step_1/model.safetensors" for number in range(20)]
    deeper = [f"a-team/job-{number}/step_1/model.safetensors" for number in range(20)]
    _fill(root, [*runs, *deeper])
    listing = list_versions(f"s3://{root.name}")
    root.proxy.reset()
    below = glance_below(listing)
    assert root.proxy.count() <= 2 * MOST_REQUESTS
    assert not below.is_whole
    assert below.locations[0].url == f"s3://{root.name}/a-team/job-0"
    result = edl("list", f"s3://{root.name}")
    assert result.returncode == 10
    assert "(not every directory was looked into)" in result.stderr


def test_nothing_is_said_of_directories_that_were_not_looked_into(root: Bucket) -> None:
    """Where there are more directories than requests for them, no answer is made out of the first ones."""
    _fill(root, [f"team-{number}/notes.txt" for number in range(7)])
    result = edl("list", f"s3://{root.name}")
    assert result.returncode == 10
    assert "not every directory below was looked into" in result.stderr
    assert root.proxy.count() <= 2 * MOST_REQUESTS


def test_a_name_of_a_file_takes_no_request(root: Bucket) -> None:
    """Objects at the root are no directories to look into: each took a request once."""
    _fill(root, [f"notes-{number}.txt" for number in range(_PAGE - 10)])
    assert edl("list", f"s3://{root.name}").returncode == 0
    assert root.proxy.count() <= 2
    root.proxy.reset()
    edl("list", "--experiment", f"s3://{root.name}")
    assert root.proxy.count() <= 4
    root.proxy.reset()
    edl("list", "--recursive", f"s3://{root.name}")
    assert root.proxy.count() <= 4
