"""Determined's `checkpoint_storage`, read as its own program reads it."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl_ckpt.core import CheckpointStorage, Location
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.sources.determined.storages import Storages


def of(**config: Any) -> CheckpointStorage:
    """Return the storage of a section with these keys."""
    return CheckpointStorage.from_config(config)


@pytest.mark.parametrize(
    ("config", "url"),
    [
        ({"type": "shared_fs", "host_path": "/mnt/nas"}, "/mnt/nas"),
        ({"type": "shared_fs", "host_path": "/mnt/nas/", "storage_path": "ctr"}, "/mnt/nas/ctr"),
        ({"type": "shared_fs", "host_path": "/mnt/nas", "storage_path": "/mnt/nas/a/../b"}, "/mnt/nas/b"),
        ({"type": "shared_fs", "host_path": "/", "storage_path": "a"}, "/a"),
        ({"type": "shared_fs", "host_path": "/a", "container_path": "/b", "propagation": "rprivate"}, "/a"),
        ({"type": "directory", "container_path": "/data"}, "/data"),
        ({"type": "s3", "bucket": "b"}, "s3://b"),
        ({"type": "s3", "bucket": "b", "prefix": "/pre/.//fix/"}, "s3://b/pre/fix"),
        ({"type": "gcs", "bucket": "b", "prefix": "."}, "gs://b"),
    ],
)
def test_places(config: dict[str, Any], url: str) -> None:
    """Each type is a path or a URL; paths and prefixes are normalized as Determined's reference says."""
    assert of(**config) == CheckpointStorage(Location(url), 0, 1, 1)


def determined_path(host_path: str, storage_path: str) -> str | None:
    """Return the path that Determined's `_full_storage_path` returns, None where it refuses; its words, re-stated.

    It compares the beginnings of the two texts, so it takes /mnt/nas2 for a directory in /mnt/nas. Not here.
    """
    whole = os.path.normpath(os.path.join(host_path, storage_path))
    if not os.path.isabs(host_path) or not f"{whole}/".startswith(host_path.rstrip("/") + "/"):
        return None
    return os.path.normpath(os.path.join(host_path, os.path.relpath(whole, host_path)))


_PARTS = st.lists(st.sampled_from(["..", ".", "a", "nas", "nas2", "b c"]), max_size=5).map("/".join)


@example(host="/mnt/nas", storage="../nas2", absolute=False)
@given(host=_PARTS.map("/mnt/{}".format), storage=_PARTS, absolute=st.booleans())
def test_escapes(host: str, storage: str, absolute: bool) -> None:
    """A storage_path that leads out of host_path is refused, however it is spelled; no other is."""
    host = os.path.normpath(host)
    storage = f"/mnt/{storage}" if absolute else storage
    expected = determined_path(host, storage)
    try:
        found: str | None = of(type="shared_fs", host_path=host, storage_path=storage).location.url
        message = ""
    except UsageError as error:
        found, message = None, error.message
    assert found == expected
    assert found or message.startswith("checkpoint_storage: storage_path must be inside host_path")


def test_container() -> None:
    """Inside a trial's container the storage is where Determined mounts host_path."""
    config = {"type": "shared_fs", "host_path": "/mnt/nas", "storage_path": "ctr"}
    inside = CheckpointStorage.from_config(config, container_path="/determined_shared_fs")
    assert inside.location.url == "/determined_shared_fs/ctr"


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no type": ({"bucket": "b"}, "type is missing (shared_fs, directory, s3 or gcs)"),
    "type": ({"type": "azure", "container": "c"}, "type azure is not supported here"),
    "type only": ({"type": "hdfs"}, "type must be shared_fs, directory, s3 or gcs, got 'hdfs'"),
    "relative": ({"type": "shared_fs", "host_path": "nas"}, "host_path must be an absolute path"),
    "no host": ({"type": "shared_fs"}, "host_path is missing"),
    "no bucket": ({"type": "s3", "prefix": "x"}, "bucket is missing"),
    "bucket": ({"type": "s3", "bucket": "b/p"}, "bucket must not have a '/'"),
    "up": ({"type": "s3", "bucket": "b", "prefix": "a/.."}, "prefix must not contain '..'"),
    "other's key": ({"type": "s3", "bucket": "b", "host_path": "/x"}, "no key 'host_path'"),
    "negative": ({"type": "s3", "bucket": "b", "save_trial_best": -1}, "save_trial_best must be a whole number"),
    "true": ({"type": "s3", "bucket": "b", "save_trial_best": True}, "save_trial_best must be a whole number"),
    "number": ({"type": "s3", "bucket": 7}, "bucket must be a text, got 7"),
    "control": ({"type": "directory", "container_path": "/a\0b"}, "container_path must be a text"),
    "half": ({"type": "s3", "bucket": "b", "access_key": "AKIDTESTKEY"}, "secret_key is missing"),
    "secret": ({"type": "s3", "bucket": "b", "secret_key": ["hush-hush"]}, "secret_key must be a text"),
}


@pytest.mark.parametrize("case", sorted(WRONG))
def test_wrong(case: str) -> None:
    """A wrong section names the key and its fault, and shows no secret."""
    config, fault = WRONG[case]
    with pytest.raises(UsageError) as caught:
        of(**config)
    assert caught.value.message.startswith(f"checkpoint_storage: {fault}")
    assert not any(word in f"{caught.value} {caught.value.hint}" for word in ("AKIDTESTKEY", "hush-hush"))


def test_close_key() -> None:
    """A key with a slip names the right one."""
    with pytest.raises(UsageError) as caught:
        of(type="s3", bucket="b", save_trail_best=1)
    assert (caught.value.message, caught.value.hint) == (
        "checkpoint_storage: no key 'save_trail_best'",
        "did you mean save_trial_best?",
    )


SECTION = {
    "type": "s3",
    "bucket": "models",
    "prefix": "ctr",
    "endpoint_url": "https://minio.example",
    "access_key": "AKIDTESTKEY",
    "secret_key": "hush-hush",
    "save_trial_best": 3,
    "archive": {"bucket": "models-archive", "save_trial_latest": 9},
    "elsewhere": {"endpoint_url": "https://other.example", "bucket": "theirs"},
    "nas": {"type": "shared_fs", "host_path": "/mnt/nas"},
    "/data/runs": {"save_experiment_best": 5},
    "s3://models/ctr/hot": {"endpoint_url": "https://fast.example"},
}
KEYS = {"endpoint_url": "https://minio.example", "key": "AKIDTESTKEY", "secret": "hush-hush"}


def test_overrides() -> None:
    """A named storage has the default's keys where it has none, but no credentials for another endpoint."""
    storages = Storages.from_config(SECTION)
    assert storages.default == CheckpointStorage(Location("s3://models/ctr", KEYS), 0, 3, 1)
    assert storages.named == {
        "archive": CheckpointStorage(Location("s3://models-archive/ctr", KEYS), 0, 3, 9),
        "elsewhere": CheckpointStorage(Location("s3://theirs/ctr", {"endpoint_url": "https://other.example"}), 0, 3, 1),
        "nas": CheckpointStorage(Location("/mnt/nas"), 0, 3, 1),
    }
    assert "hush" not in repr(storages)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("archive", Location("s3://models-archive/ctr", KEYS)),
        ("archive/trial-1@100", Location("s3://models-archive/ctr/trial-1@100", KEYS)),
        ("archive@latest", Location("s3://models-archive/ctr@latest", KEYS)),
        ("nas/a", Location("/mnt/nas/a")),
        ("./archive", Location("./archive")),
        ("archives", Location("archives")),
        ("s3://models/ctr", Location("s3://models/ctr", KEYS)),
        ("s3://models/ctr/trial-1@7", Location("s3://models/ctr/trial-1@7", KEYS)),
        ("s3://models/ctr@7", Location("s3://models/ctr@7", KEYS)),
        ("s3://models/ctr2", Location("s3://models/ctr2")),
        ("s3://models", Location("s3://models")),
        ("s3://models/ctr/hot/x", Location("s3://models/ctr/hot/x", {"endpoint_url": "https://fast.example"})),
        ("/data/runs/../runs/a", Location("/data/runs/../runs/a")),
    ],
)
def test_locate(text: str, place: Location) -> None:
    """A name, a path below it, and a path or URL lead to their storage; credentials go to no other place."""
    found = Storages.from_config(SECTION).locate(text)
    assert (found, found.options) == (place, place.options)


def test_numbers() -> None:
    """The numbers of the nearest override count, and those of the section where there is none."""
    storages = Storages.from_config(SECTION)
    assert [
        tuple(storages.saves(Location(url)).values()) for url in ("/data/runs/a", "/elsewhere", "s3://models/ctr")
    ] == [
        (5, 3, 1),
        (0, 3, 1),
        (0, 3, 1),
    ]
    assert storages.saves(Location("s3://models-archive/ctr/x"))["save_trial_latest"] == 9


@pytest.mark.parametrize("name", ["a@b", "", "..", "runs/a", "s3://u:password@b/x", "a:b"])
def test_wrong_names(name: str) -> None:
    """A name that a reference could not be told from, a relative path and a URL with a password are refused."""
    with pytest.raises(UsageError) as caught:
        Storages.from_config({name: {"type": "directory", "container_path": "/x"} if "/" not in name else {}})
    assert "password@" not in str(caught.value)
