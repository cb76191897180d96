"""S3 in a test: one moto server for the session, and for each test a fresh bucket behind a fault proxy of its own.

What a test looks at goes to moto directly, so that the proxy records what the code under test did, and nothing else.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from s3_proxy import FaultProxy

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/dev/null",
    "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
    "AWS_EC2_METADATA_DISABLED": "true",
    "no_proxy": "127.0.0.1",
}
UNWANTED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class Moto:
    """A running moto server and a boto3 client of it."""

    host: str
    port: int
    client: Any


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket: its `url` is for the code under test, through the proxy; all else here goes past the proxy."""

    name: str
    proxy: FaultProxy
    client: Any  # boto3, for what the methods here do not do

    @property
    def url(self) -> str:
        """A location inside the bucket, empty at first."""
        return f"s3://{self.name}/run"

    def objects(self) -> dict[str, int]:
        """The size of each object by its key."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", ())}

    def open_uploads(self) -> list[tuple[str, str]]:
        """The key and the id of each multipart upload neither completed nor aborted."""
        pages = self.client.get_paginator("list_multipart_uploads").paginate(Bucket=self.name)
        return [(item["Key"], item["UploadId"]) for page in pages for item in page.get("Uploads", ())]

    def put(self, key: str, data: bytes) -> None:
        """Write an object whole."""
        self.client.put_object(Bucket=self.name, Key=key, Body=data)

    def upload(self, source: Path, prefix: str = "run") -> None:
        """Write every file of a directory as an object."""
        for path in source.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(source)}", path.read_bytes())

    def keys(self, prefix: str = "run/") -> list[str]:
        """The keys below a prefix without those of metadata."""
        return [key for key in self.objects() if key.startswith(prefix) and "/meta-0/" not in key]

    def get(self, key: str) -> bytes:
        """Read an object whole."""
        with self.client.get_object(Bucket=self.name, Key=key)["Body"] as body:
            data: bytes = body.read()
        return data

    def delete(self, *keys: str) -> None:
        """Delete these objects."""
        for start in range(0, len(keys), 1000):
            named = [{"Key": key} for key in keys[start : start + 1000]]
            self.client.delete_objects(Bucket=self.name, Delete={"Objects": named, "Quiet": True})


def set_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Point every client of S3 here, subprocesses included, to this endpoint, and to nothing of the machine's owner."""
    for name in UNWANTED:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)


@contextmanager
def running_moto() -> Iterator[Moto]:
    """Run moto in this process."""
    import boto3
    from botocore.config import Config
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # or there is a line on stderr for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with pytest.MonkeyPatch.context() as monkeypatch:
            set_environment(monkeypatch, f"http://{host}:{port}")
            client = boto3.session.Session().client("s3", config=Config(s3={"addressing_style": "path"}))
        yield Moto(host, port, client)
        client.close()
    finally:
        server.stop()


@contextmanager
def fresh_bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Make a bucket and the proxy before it, set the environment for them, and remove them at the end."""
    import s3fs

    name = f"test-{uuid.uuid4().hex}"
    proxy = FaultProxy(moto.host, moto.port)
    bucket = Bucket(name, proxy, moto.client)
    moto.client.create_bucket(Bucket=name)
    try:
        with proxy:
            set_environment(monkeypatch, proxy.endpoint)
            yield bucket
            s3fs.S3FileSystem.clear_instance_cache()  # an instance kept would know this proxy only
    finally:
        for key, upload in bucket.open_uploads():
            moto.client.abort_multipart_upload(Bucket=name, Key=key, UploadId=upload)
        bucket.delete(*bucket.objects())
        moto.client.delete_bucket(Bucket=name)
