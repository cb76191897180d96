"""The client of an S3 service: single requests, retried and checked, by botocore's public client (`session`).

The rules of the requests are our own. Every request has five attempts with growing pauses, and each retry is logged
(`-v` shows it). The checksum that S3 reports for an upload must be that of the data: CRC-32C for parts, where the
service reports it, else MD5.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import logging
import os
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from edl_ckpt.core.base.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
)
from edl_ckpt.core.base.parallel import pause
from edl_ckpt.core.base.words import extra_hint
from edl_ckpt.core.storage.interface import OpenUpload
from edl_ckpt.core.storage.s3.session import Service, settings
from edl_ckpt.core.storage.s3.transport import Transport
from edl_ckpt.core.storage.s3.wire import DamagedError


class NoBucketError(NotFoundError):
    """The whole bucket is missing, which says nothing of an object that should be in it."""


LOG: Final = logging.getLogger("edl_ckpt")
ATTEMPTS: Final = 5
"""Attempts for each request before it fails."""
_AUTH: Final = {
    "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch",
    "RequestTimeTooSkewed", "403", "401", "NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError",
    "UnauthorizedSSOTokenError", "ProfileNotFound", "CredentialRetrievalError",
}  # fmt: skip
_AGAIN: Final = {
    "SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "Throttling", "ThrottlingException",
    "BadDigest", "RequestLimitExceeded", "503", "500", "502", "504", "XAmzContentSHA256Mismatch", "OperationAborted",
    "ConditionalRequestConflict", "408", "429",
}  # fmt: skip
_FULL: Final = {"EntityTooLarge", "QuotaExceeded", "XMinioStorageFull", "InsufficientCapacity", "ServiceQuotaExceeded"}
_NOT_OFFERED: Final = {"NotImplemented", "501", "MethodNotAllowed", "405"}
_AUTH_HINT: Final = "check the credentials, the profile and the region"
_MEANINGS: Final[Mapping[str, tuple[type[EdlCkptError], str]]] = {
    **dict.fromkeys(_AUTH, (AuthError, "")),
    **dict.fromkeys(_FULL, (NoSpaceError, "")),
    **dict.fromkeys(("PreconditionFailed", "412"), (LockedError, "another process changed it meanwhile")),
    **dict.fromkeys(("NoSuchKey", "404", "NotFound"), (NotFoundError, "no such file or directory")),
    **dict.fromkeys(_NOT_OFFERED, (UnsupportedError, "this S3 service does not support the request")),
    "NoSuchBucket": (NoBucketError, "no such bucket"),
    "NoSuchUpload": (LockedError, "the upload is gone: another process completed or aborted it"),
}


class Connection:
    """A client of one S3 service. All locations with the same options share it; it is safe in several threads."""

    def __init__(self, options: Mapping[str, str], shown: str) -> None:
        try:
            import botocore.session  # noqa: F401 - to say at once that it is missing
        except ImportError as error:
            raise UnsupportedError(str(error), path=shown, hint=extra_hint("s3")) from error
        self.transport = Transport(functools.partial(Service, *settings(options, shown)))
        self.takes_quoted_etags = True
        """False once this service answered 412 to If-Match with the right ETag in quotes (Ceph's gateway)."""
        self.reports_md5: bool | None = None
        """Whether this service's ETags are MD5 sums; None until the first upload."""
        self.reports_crc32c: bool | None = None
        """Whether this service reports the CRC-32C of parts; None until it had one."""


@dataclass(frozen=True, slots=True)
class S3Target:
    """An object, or the beginning of the names of several, in a bucket of a service; `path` is its URL, for errors."""

    connection: Connection
    bucket: str
    key: str
    path: str

    @property
    def _names(self) -> dict[str, Any]:
        return {"Bucket": self.bucket, "Key": self.key}

    def request(self, method: str, wanted: memoryview | int | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Make one request about the object and return its answer, with its body.

        The body of a ranged GET must fill the buffer that is `wanted`, or have so many bytes. Raises what `_meaning`
        says of S3's codes; UnavailableError after the last attempt.
        """
        return self.request_many(method, wanted, Key=self.key, **parameters)

    def head(self) -> dict[str, Any] | None:
        """Return what S3 says of the object, None when there is none; NoBucketError without the bucket."""
        try:
            return self.request("head_object")
        except NotFoundError as error:
            if isinstance(error, NoBucketError):
                raise
            return None

    def request_many(self, method: str, wanted: memoryview | int | None = None, /, **parameters: Any) -> dict[str, Any]:
        """Make one request about the bucket and return its answer; errors as `request`."""
        named = {"Bucket": self.bucket, **parameters}
        return self._try(lambda: self.connection.transport.call(method, named, wanted), method)

    def pages(self, method: str, *markers: str, **parameters: Any) -> Iterator[dict[str, Any]]:
        """Yield the answers of a listing about the bucket; `markers` say where the next one goes on."""
        while True:
            answer = self.request_many(method, **parameters)
            yield answer
            if not answer.get("IsTruncated"):
                return
            parameters |= {marker: answer[f"Next{marker}"] for marker in markers}

    def identity(self) -> tuple[str, str, str]:
        """Return the address of the service, its region, and where the credentials come from; '' without any."""
        try:
            return self.connection.transport.service.identity()
        except Exception as error:
            raise _meaning(error, self.path) from error

    def begin_upload(self, on_failure: Callable[[], None], **parameters: Any) -> str:
        """Begin an upload and return its id; errors as `request`.

        `on_failure` is called after each attempt that may have begun one without an answer.
        """

        def begin(**sums: str) -> dict[str, Any]:
            named, method = self._names | parameters | sums, "create_multipart_upload"
            return self._try(lambda: service.transport.call(method, named), method, on_failure)

        service = self.connection
        if service.reports_crc32c is False or _crc32c_function() is None:
            return str(begin()["UploadId"])
        try:
            answer = begin(ChecksumAlgorithm="CRC32C")
        except (LockedError, NoSpaceError, NotFoundError, UnavailableError):
            raise
        except EdlCkptError:  # a service may refuse what it does not know, also by a 403
            answer = begin()
            service.reports_crc32c = False
        else:
            service.reports_crc32c = answer.get("ChecksumAlgorithm") == "CRC32C" or service.reports_crc32c
        return str(answer["UploadId"])

    def abort_upload(self, upload_id: str) -> bool:
        """Abort an upload and discard its parts; a missing one is no error. False where the service aborts none."""
        try:
            self.request("abort_multipart_upload", UploadId=upload_id)
        except UnsupportedError:
            return False
        except (LockedError, NotFoundError):
            pass
        return True

    def uploads(self) -> Iterator[OpenUpload]:
        """Yield the uploads whose keys begin so and that are neither completed nor aborted, by their keys.

        UnsupportedError where the service does not list them.
        """
        for answer in self.pages("list_multipart_uploads", "KeyMarker", "UploadIdMarker", Prefix=self.key):
            now = served_at(answer)
            for item in answer.get("Uploads", ()):
                yield OpenUpload(item["Key"], item["UploadId"], (now - item["Initiated"]).total_seconds())

    def upload(self, method: str, data: bytes | bytearray, **parameters: Any) -> dict[str, Any]:
        """PUT data and compare the checksum that S3 reports with that of the data.

        A part has a CRC-32C where the service reports it, both that and an MD5 until this is known, and else an MD5.
        Some services report an ETag that is no MD5. That is found out at the first small object, which is read back.
        Then `verified` is False, and whoever needs a proof reads back.
        """
        service, is_part = self.connection, method == "upload_part"
        crc = _crc32c(data) if is_part and service.reports_crc32c is not False else ""

        def write() -> dict[str, Any]:
            reports, digest = bool(crc) and service.reports_crc32c, b""
            sums = {} if reports is False else {"ChecksumAlgorithm": "CRC32C", "ChecksumCRC32C": crc}
            if not reports:
                digest = hashlib.md5(data, usedforsecurity=False).digest()
                sums["ContentMD5"] = base64.b64encode(digest).decode()
            answer = self._send(method, {**self._names, **parameters, **sums, "Body": data})
            reported = answer.get("ChecksumCRC32C") if crc else None
            if reported not in {None, crc}:
                raise DamagedError("S3 received other bytes than were sent")
            if crc and not service.reports_crc32c:
                service.reports_crc32c = reported is not None
            is_right = reported is not None or bool(digest and self._has_md5(answer, digest, data, is_part=is_part))
            return {**answer, "verified": is_right}

        return self._try(write, method)

    def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """Send data; a part once more, signed whole and with an MD5 alone, to a service that refuses it otherwise."""
        transport = self.connection.transport
        try:
            return transport.call(method, parameters)
        except Exception as error:
            again = UnavailableError, LockedError, NotFoundError, NoSpaceError
            if method != "upload_part" or isinstance(_meaning(error, self.path), again):
                raise
        transport.hashes_parts = True
        if "ContentMD5" in parameters:
            parameters = {name: value for name, value in parameters.items() if not name.startswith("Checksum")}
        return transport.call(method, parameters)

    def _has_md5(self, answer: Mapping[str, Any], digest: bytes, data: bytes | bytearray, *, is_part: bool) -> bool:
        """Say whether an answer to an upload has the MD5 of the data; False also where the service reports none."""
        etag, service = answer["ETag"].strip('"'), self.connection
        encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or answer.get("SSECustomerAlgorithm")
        if encrypted or not is_md5(etag) or service.reports_md5 is False:
            return False
        if etag == digest.hex():
            service.reports_md5 = True
            return True
        # A part cannot be read back alone.
        if service.reports_md5 or not (is_part or service.transport.call("get_object", self._names)["Body"] == data):
            raise DamagedError("S3 received other bytes than were sent")
        service.reports_md5 = None if is_part else False
        return False

    def _try(
        self, make: Callable[[], dict[str, Any]], method: str, on_failure: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return make()
            except EdlCkptError:
                on_failure()
                raise
            except Exception as error:
                meaning = _meaning(error, self.path)
                if isinstance(meaning, UnavailableError):
                    on_failure()
                if attempt == ATTEMPTS or not isinstance(meaning, UnavailableError):
                    raise meaning from error
                LOG.info("retry %d of %d: %s of %s: %s", attempt, ATTEMPTS - 1, method, self.path, meaning.message)
                pause(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries, hides nothing
        raise AssertionError  # the loop always returns or raises


@functools.lru_cache(maxsize=8)
def _connection(options: tuple[tuple[str, str], ...], _environment: tuple[tuple[str, str], ...]) -> Connection:
    return Connection(dict(options), "s3://")


def connect(options: Mapping[str, str]) -> Connection:
    """Return the client for these options and this environment; making a new one takes a tenth of a second."""
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    return _connection(tuple(sorted(options.items())), environment)


@functools.cache
def _crc32c_function() -> Callable[[Any], int] | None:
    """Return what computes a CRC-32C by the processor's own instructions; None where that is not installed."""
    with suppress(ImportError):
        import google_crc32c

        return google_crc32c.value if google_crc32c.implementation == "c" else None
    return None


def _crc32c(data: bytes | bytearray) -> str:
    """Return the CRC-32C of data as S3 writes it; '' where nothing computes it fast."""
    import numpy as np

    function = _crc32c_function()  # takes no bytearray, but an array of numpy over it
    return base64.b64encode(function(np.frombuffer(data, np.uint8)).to_bytes(4, "big")).decode() if function else ""


def is_md5(etag: str) -> bool:
    """Say whether an ETag, without its quotes, can be the MD5 of an object.

    >>> is_md5("d41d8cd98f00b204e9800998ecf8427e"), is_md5("d41d8cd98f00b204e9800998ecf8427e-1"), is_md5("3f2b")
    (True, False, False)
    """
    return len(etag) == 32 and set(etag.lower()) <= set("0123456789abcdef")


def _meaning(error: Exception, path: str) -> EdlCkptError:
    """Translate an error of botocore or the system; UnavailableError means that a retry may succeed."""
    if isinstance(error, DamagedError):
        return UnavailableError(f"S3's answer is damaged: {error}", path=path)
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        code = type(error).__name__
        if code in _AUTH:
            return AuthError(f"S3 refused the request: {code}", path=path, hint=_AUTH_HINT)
        if isinstance(error, ValueError | TypeError):
            # Its own message would repeat the endpoint, which may contain a password.
            return EdlCkptError(f"S3 request failed ({code}): check the endpoint and the options", path=path)
        return UnavailableError(f"S3 does not answer ({code})", path=path)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(response.get("Error", {}).get("Code") or status)
    kind, message = _MEANINGS.get(code, (None, ""))
    if kind is not None:
        hint = _AUTH_HINT if kind is AuthError else None
        return kind(message or f"S3 refused the request: {code}", path=path, hint=hint)
    if code in _AGAIN or (isinstance(status, int) and status >= 500):
        return UnavailableError(f"S3 answers {code}", path=path)
    return EdlCkptError(f"S3 answers {code}", path=path)


def served_at(answer: Mapping[str, Any]) -> datetime:
    """Return the service's own time, so that ages do not depend on our clock; ours where it does not tell it."""
    return told_time(answer) or datetime.now(UTC)


def told_time(answer: Mapping[str, Any]) -> datetime | None:
    """Return the time that a service tells in an answer, None where it tells none."""
    from email.utils import parsedate_to_datetime

    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    with suppress(KeyError, ValueError, TypeError):
        return parsedate_to_datetime(headers["date"])
    return None
