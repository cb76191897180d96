"""A cluster and a bucket: workers read with the credentials of their own environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from checkpoints import save_small
from edl_ckpt.core import list_versions, verify_version
from edl_ckpt.core.base.progress import Progress
from edl_ckpt.core.cluster.executor import ClusterExecutor
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
