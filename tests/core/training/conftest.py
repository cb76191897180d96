from __future__ import annotations

from pathlib import Path

import pytest

from s3_fixtures import Bucket


@pytest.fixture(params=["disk", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return an empty location on a disk, and on S3."""
    if request.param == "s3":
        bucket: Bucket = request.getfixturevalue("s3")
        return bucket.url
    return str(tmp_path / "run")
