"""S3 in a test: moto in this process, and for each test a fresh bucket behind a fault proxy of its own.

The proxy is the HTTP server, and calls moto's application. What a test puts there or looks at goes to moto's backend:
the proxy records what the code under test did, and nothing else, and no client of the test takes half of its time.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from s3_listing import write_listings_quickly
from s3_proxy import ONE_AT_A_TIME, Call, FaultProxy, Forward, Kind, Reply, Store
from s3_stores import in_process

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


P = ParamSpec("P")
R = TypeVar("R")

_META = "x-amz-meta-"
ACCOUNT = "123456789012"
"""The account of all requests in moto."""


def alone(method: Callable[P, R]) -> Callable[P, R]:
    """Let a method of a bucket wait until no request is answered, and none be answered while it is at work."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ONE_AT_A_TIME:
            return method(*args, **kwargs)

    return call


@dataclass(frozen=True, slots=True)
class Moto:
    """Moto's S3: the application that answers requests, and the backend that it works on."""

    store: Store
    backend: Any


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket: its `url` is for the code under test, through the proxy; all else here goes past the proxy."""

    name: str
    proxy: FaultProxy
    backend: Any  # moto's, for what the methods here do not do

    @property
    def url(self) -> str:
        """A location inside the bucket, empty at first."""
        return f"s3://{self.name}/run"

    @alone
    def objects(self) -> dict[str, int]:
        """The size of each object by its key, in the order of a listing."""
        keys = self.backend.get_bucket(self.name).keys
        return {name: found.size for name in sorted(keys) if (found := keys.get(name)) is not None}

    @alone
    def open_uploads(self) -> list[tuple[str, str]]:
        """The key and the id of each multipart upload neither completed nor aborted."""
        return [(upload.key_name, upload.id) for upload in self.backend.list_multipart_uploads(self.name).values()]

    @alone
    def has_parts(self) -> bool:
        """Say whether an open upload has a part."""
        return any(upload.parts for upload in self.backend.list_multipart_uploads(self.name).values())

    @alone
    def abort(self) -> None:
        """Abort every multipart upload."""
        for _, upload in self.open_uploads():
            self.backend.abort_multipart_upload(self.name, upload)

    @alone
    def put(self, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object whole."""
        stored = self.backend.put_object(self.name, key, data)
        stored.set_metadata({f"{_META}{name}": value for name, value in (metadata or {}).items()})

    @alone
    def metadata(self, key: str) -> dict[str, str]:
        """The metadata that a client gave an object."""
        found = self.backend.get_object(self.name, key).metadata
        return {name.removeprefix(_META): value for name, value in found.items() if name.startswith(_META)}

    def upload(self, source: Path, prefix: str = "run") -> None:
        """Write every file of a directory as an object."""
        for path in source.rglob("*"):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(source)}", path.read_bytes())

    def keys(self, prefix: str = "run/") -> list[str]:
        """The keys below a prefix without those of metadata."""
        return [key for key in self.objects() if key.startswith(prefix) and "/meta-0/" not in key]

    def state(self) -> list[str]:
        """The keys of our state but for metadata and seals, and for what stays for a day after a lock was lost."""
        state = [key for key in self.objects() if ".edl-ckpt-0/" in key and "/meta-0/" not in key]
        return [key for key in state if not key.endswith(".lost") and "/stage-0/kept-0/" not in key]

    @alone
    def get(self, key: str) -> bytes:
        """Read an object whole."""
        data: bytes = self.backend.get_object(self.name, key).value
        return data

    @alone
    def delete(self, *keys: str) -> None:
        """Delete these objects."""
        for key in keys:
            self.backend.delete_object(self.name, key)


def begun_now(*but: str) -> Kind:
    """Let a listing of uploads say that they were begun just now, but for some ids: moto says in 2010 of all."""

    def kind(call: Call, forward: Forward) -> Reply | None:
        reply = forward(call)
        assert reply is not None
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z").encode()
        uploads = reply.body.split(b"</Upload>")
        dated = [
            part if any(name.encode() in part for name in but) else re.sub(rb"2010-11-10T20:48:33[.0]*Z", now, part)
            for part in uploads
        ]
        return replace(reply, body=b"</Upload>".join(dated))

    return kind


def set_environment(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    """Point every client of S3 here, subprocesses included, to this endpoint, and to nothing of the machine's owner."""
    for name in UNWANTED:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": endpoint}.items():
        monkeypatch.setenv(name, value)


def make_moto() -> Moto:
    """Import moto, and return its S3."""
    from moto.moto_server.werkzeug_app import create_backend_app
    from moto.s3.models import s3_backends
    from moto.s3.responses import S3Response

    write_listings_quickly(S3Response)
    return Moto(in_process(create_backend_app("s3")), s3_backends[ACCOUNT]["aws"])


@contextmanager
def fresh_bucket(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """Make a bucket and the proxy before it, set the environment for them, and remove them at the end."""
    import s3fs

    name = f"test-{uuid.uuid4().hex}"
    proxy = FaultProxy(moto.store)
    bucket = Bucket(name, proxy, moto.backend)
    moto.backend.create_bucket(name, ENVIRONMENT["AWS_DEFAULT_REGION"])
    try:
        with proxy:
            set_environment(monkeypatch, proxy.endpoint)
            yield bucket
            s3fs.S3FileSystem.clear_instance_cache()  # an instance kept would know this proxy only
    finally:
        bucket.abort()
        bucket.delete(*bucket.objects())
        moto.backend.delete_bucket(name)
