"""Parts have the checksum that the service reports, and a body is hashed once: CRC-32C, else MD5, never SHA-256."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl_ckpt.core.base.errors import AuthError, UnavailableError
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.interface import has_parts
from edl_ckpt.core.storage.parts import PartMemory
from edl_ckpt.core.storage.s3 import client
from edl_ckpt.core.storage.s3.store import S3Store
from s3_fixtures import Bucket
from s3_proxy import Call, Fault, Forward, Kind, Reply, corrupt_request, know_no_crc32c, refuse_crc32c, status

_MIB = 1 << 20


class _Seen:
    """The headers of the parts that reached the service."""

    def __init__(self, s3: Bucket, kind: Kind | None = None) -> None:
        self.parts: list[dict[str, str]] = []
        self._kind = kind
        s3.proxy.fail(Fault(self, operation="upload_part", times=None))

    def __call__(self, call: Call, forward: Forward) -> Reply | None:
        self.parts.append({name.lower(): value for name, value in call.headers})
        return forward(call) if self._kind is None else self._kind(call, forward)

    @property
    def sums(self) -> list[str]:
        """Return which checksums each part had."""
        names = {"content-md5": "md5", "x-amz-checksum-crc32c": "crc32c"}
        return [" ".join(short for name, short in names.items() if name in part) for part in self.parts]


def _store(s3: Bucket) -> S3Store:
    client._connection.cache_clear()
    store = open_store(s3.url)
    assert isinstance(store, S3Store)
    return store


def _write(store: S3Store, name: str, parts: int = 1) -> bool:
    """Write an object of some parts, one after the other, and return whether the service reported each checksum."""
    upload = store.new_object(name, (parts - 1) * 5 * _MIB + 10)
    upload.begin()
    upload.write(0, bytes(upload.size_bytes))
    upload.finish()
    upload.complete()
    return upload.verified


def test_parts_have_a_crc32c_where_it_is_reported(s3: Bucket) -> None:
    """The service says so when an upload begins; then no MD5 is computed, and the end names the checksums."""
    seen, store = _Seen(s3), _store(s3)
    assert _write(store, "x", 3)
    assert seen.sums == ["crc32c"] * 3
    assert s3.get("run/x") == bytes(10 * _MIB + 10)


def test_parts_have_an_md5_where_no_crc32c_is_known(s3: Bucket) -> None:
    """The first part has both, as long as this is not known; the following ones have an MD5."""
    for operation in ("create_upload", "complete"):
        s3.proxy.fail(Fault(know_no_crc32c, operation=operation, times=None))
    seen, store = _Seen(s3, know_no_crc32c), _store(s3)
    assert [_write(store, name) for name in "xyz"] == [True] * 3
    assert seen.sums == ["md5 crc32c", "md5", "md5"]


def test_a_service_that_refuses_checksums_gets_none(s3: Bucket) -> None:
    """An upload begins without them then, and its parts have an MD5."""
    refused = s3.proxy.fail(Fault(refuse_crc32c, times=None))
    seen, store = _Seen(s3), _store(s3)
    assert [_write(store, name) for name in "xy"] == [True] * 2
    assert (seen.sums, refused.hits > 0) == (["md5"] * 2, True)


def test_another_process_learns_it_from_its_first_part(s3: Bucket) -> None:
    """A process that sends parts of an upload that it did not begin has both checksums in the first, then one."""
    store, seen = _store(s3), _Seen(s3)
    upload = store.new_object("x", 20)
    upload_id = upload.begin()
    other = _store(s3)
    assert has_parts(other)
    for number in range(2):
        parts = other.parts_of("x", upload_id, edges=(number * 10, number * 10 + 10), first=number, memory=PartMemory())
        parts.write(number * 10, bytes(10))
        upload.take(parts.sent())
    assert (seen.sums, upload.verified) == (["md5 crc32c", "crc32c"], True)


def test_a_process_that_finds_it_refused_sends_an_md5(s3: Bucket) -> None:
    """Parts of an upload of another process go without a CRC-32C where the service refuses it."""
    s3.proxy.fail(Fault(refuse_crc32c, times=None))
    upload = _store(s3).new_object("x", 10)
    upload_id = upload.begin()
    seen, other = _Seen(s3), _store(s3)
    parts = other.parts_of("x", upload_id, edges=(0, 10), first=0, memory=PartMemory())
    parts.write(0, bytes(10))
    assert [part.verified for part in parts.sent()] == [True]
    assert seen.sums[-1] == "md5"


@pytest.mark.parametrize("kind", [know_no_crc32c, None])
def test_a_damaged_part_is_sent_again(s3: Bucket, monkeypatch: pytest.MonkeyPatch, kind: Kind | None) -> None:
    """Whichever checksum shows it; five times damaged is an error."""
    monkeypatch.setattr(client, "pause", lambda _seconds: None)
    if kind is not None:
        s3.proxy.fail(Fault(kind, times=None))
    store = _store(s3)
    store.write_small("small", b"x")  # shows whether ETags are MD5 sums
    armed = s3.proxy.fail(Fault(corrupt_request, operation="upload_part"))
    assert _write(store, "x")
    assert (armed.hits, s3.get("run/x")) == (1, bytes(10))
    s3.proxy.fail(Fault(corrupt_request, operation="upload_part", times=None))
    with pytest.raises(UnavailableError):
        _write(store, "y")


def test_a_part_is_hashed_once_unless_that_is_refused(s3: Bucket) -> None:
    """The checksum of a part is signed, and it has no SHA-256; after a refusal botocore signs the body too."""
    refusal = status(403, "SignatureDoesNotMatch")

    def refuse(call: Call, forward: Forward) -> Reply | None:
        unsigned = ("x-amz-content-sha256", "UNSIGNED-PAYLOAD") in {(n.lower(), v) for n, v in call.headers}
        return (refusal if unsigned and len(seen.parts) > 1 else (lambda c, f: f(c)))(call, forward)

    seen, store = _Seen(s3, refuse), _store(s3)
    assert [_write(store, name) for name in "xyz"] == [True] * 3
    assert [part["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" for part in seen.parts] == [True, True, False, False]
    for part in seen.parts:
        signed = part["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert "x-amz-checksum-crc32c" in signed


def test_refused_credentials_are_an_error(s3: Bucket) -> None:
    """A part that is refused whatever its form is refused."""
    s3.proxy.fail(Fault(status(403, "AccessDenied"), operation="upload_part", times=None))
    with pytest.raises(AuthError):
        _write(_store(s3), "x")


@pytest.mark.parametrize("wanted", [True, False])
def test_signing_of_bodies_can_be_configured(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    """`payload_signing_enabled` in the configuration of AWS decides, as it does for botocore."""
    (tmp_path / "config").write_text(f"[default]\ns3 =\n  payload_signing_enabled = {str(wanted).lower()}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    seen = _Seen(s3)
    assert _write(_store(s3), "x")
    assert (seen.parts[0]["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD") != wanted
