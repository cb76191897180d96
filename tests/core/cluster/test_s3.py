"""A cluster and a bucket: workers read with the credentials of their own environment."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from checkpoints import only, save_large, save_small, shards_of
from edl_ckpt.core import diff_versions, list_versions, reshard_version, verify_version
from edl_ckpt.core.cluster.executor import ClusterExecutor
from edl_ckpt.core.progress import Progress
from edl_ckpt.core.storage.location import Location
from s3_fixtures import Bucket


def test_credentials_of_the_command_alone(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """Workers get no credentials, so options with any are a warning, once for a location."""
    save_small(tmp_path / "run", 7, 8)
    s3.upload(tmp_path / "run")
    keys = {"key": os.environ["AWS_ACCESS_KEY_ID"], "secret": os.environ["AWS_SECRET_ACCESS_KEY"]}
    progress, executor = Progress(), ClusterExecutor(client)
    for version in list_versions(Location(s3.url, keys)).versions:
        assert verify_version(version, executor=executor, reporter=progress).ok
    told = [text for text in progress.warnings if "is for this process only" in text]
    assert len(told) == 1
    assert told[0].startswith("--storage-option key is for this process only; workers take credentials from their own")


def test_from_a_bucket(s3: Bucket, tmp_path: Path, client: Any) -> None:
    """A version in a bucket is verified, compared and resharded to a disk as by this machine alone."""
    save_large(tmp_path / "run")
    s3.upload(tmp_path / "run")
    (version,) = list_versions(s3.url).versions
    here, there = (verify_version(version, level="deep", executor=executor) for executor in (None, client))
    assert replace(there, bytes_read=0, checks=()) == replace(here, bytes_read=0, checks=())
    assert diff_versions(only(tmp_path / "run"), version, executor=client).equal
    reshard_version(version, 3, output=tmp_path / "there", executor=client)
    reshard_version(only(tmp_path / "run"), 3, output=tmp_path / "here")
    assert shards_of(tmp_path / "there") == shards_of(tmp_path / "here")
