"""The store contract on S3, as moto has it."""

from __future__ import annotations

import pytest

from places import GOLDEN
from s3_fixtures import Bucket
from store_contract import RemoteContract


class TestS3(RemoteContract):
    """S3, as moto has it."""

    bucket: Bucket

    @pytest.fixture(autouse=True)
    def _place(self, s3: Bucket) -> None:
        for path in (GOLDEN / "multi").rglob("*.ckpt"):
            s3.put(f"run/{path.relative_to(GOLDEN / 'multi')}", path.read_bytes())
        self.location, self.bucket = s3.url, s3

    def overwrite(self, path: str, data: bytes) -> None:
        """Put other bytes in a file's place."""
        self.bucket.put(path.partition(f"{self.bucket.name}/")[2], data)

    def test_no_upload_stays(self) -> None:
        """An upload that is dropped is gone from the service too."""
        _, item = self.begin(11 << 20)
        item.write(0, bytes(5 << 20))
        assert self.bucket.open_uploads()
        item.abort()
        assert self.bucket.open_uploads() == []
