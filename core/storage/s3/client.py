"""The client of an S3 service: single requests, retried and checked, over the client of botocore (`transport`).

botocore, which s3fs brings along, provides credentials, endpoint and region, from the usual environment of AWS or from
`--storage-option`. The rules of the requests are our own. s3fs 2026.9 reads ahead, caches listings for ever, retries
without a word, and can join ranges of two generations of an object. Every request has five attempts with growing
pauses, and each retry is logged (`-v` shows it). The MD5 that S3 reports for an upload must be that of the data.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
import logging
import os
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from edl_ckpt.core.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.parallel import pause
from edl_ckpt.core.storage.s3.direct import moment
from edl_ckpt.core.storage.s3.transport import CONNECTIONS, Transport
from edl_ckpt.core.storage.s3.wire import DamagedError
from edl_ckpt.core.words import extra_hint, meant


class NoBucketError(NotFoundError):
    """The whole bucket is missing, which says nothing of an object that should be in it."""


LOG: Final = logging.getLogger("edl_ckpt")
ATTEMPTS: Final = 5
"""Attempts for each request before it fails."""
_TEXT_OPTIONS: Final = {
    "endpoint_url": "endpoint_url",
    "region": "region_name",
    "key": "aws_access_key_id",
    "secret": "aws_secret_access_key",
    "token": "aws_session_token",
}
"""The arguments of botocore's client by our names of them."""
_SECONDS_OPTIONS: Final = {"connect_timeout": 10.0, "read_timeout": 60.0}
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
        self._transport = Transport(functools.partial(_make_client, *_settings(options, shown)))
        self.takes_quoted_etags = True
        """False once this service answered 412 to If-Match with the right ETag in quotes (Ceph's gateway)."""
        self._reports_md5: bool | None = None
        """Whether this service's ETags are MD5 sums; None until the first upload."""

    def request(self, method: str, path: str, **parameters: Any) -> dict[str, Any]:
        """Make one request of S3's interface and return its answer, with its body; `path` is for errors.

        Raises what `_meaning` says of S3's codes; UnavailableError after the last attempt.
        """
        return self._try(lambda: self._transport.call(method, parameters), f"{method} of {path}", path)

    def begin_upload(self, path: str, on_failure: Callable[[], None], **parameters: Any) -> str:
        """Begin an upload and return its id; errors as `request`.

        `on_failure` is called after each attempt that may have begun one without an answer.
        """
        make = functools.partial(self._transport.call, "create_multipart_upload", parameters)
        return str(self._try(make, f"create_multipart_upload of {path}", path, on_failure)["UploadId"])

    def read(self, path: str, size: int, **parameters: Any) -> dict[str, Any]:
        """Make a ranged GET that must return `size` bytes."""
        return self._get(path, functools.partial(self._transport.call, "get_object", parameters, size=size))

    def read_into(self, path: str, buffer: memoryview, **parameters: Any) -> dict[str, Any]:
        """Make a ranged GET that must fill a buffer of bytes."""
        return self._get(path, functools.partial(self._transport.call, "get_object", parameters, buffer))

    def _get(self, path: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        return self._try(make, f"get_object of {path}", path)

    def identity(self, path: str) -> tuple[str, str, str]:
        """Return the address of the service, its region, and where the credentials come from; '' without any."""
        try:
            return self._transport.identity()
        except Exception as error:
            raise _meaning(error, path) from error

    def upload(self, method: str, path: str, data: bytes | bytearray, **parameters: Any) -> dict[str, Any]:
        """PUT data and compare the MD5 that S3 reports with that of the data.

        Some services report an ETag that is no MD5. That is found out at the first small object, which is read back.
        Then `verified` is False, and whoever needs a proof reads back.
        """
        digest = hashlib.md5(data, usedforsecurity=False)
        sums = {"ContentMD5": base64.b64encode(digest.digest()).decode()}

        def write() -> dict[str, Any]:
            answer = self._transport.call(method, {**parameters, **sums, "Body": data})
            etag = answer["ETag"].strip('"')
            encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or answer.get("SSECustomerAlgorithm")
            if encrypted or not is_md5(etag) or self._reports_md5 is False:
                return {**answer, "verified": False}
            if etag != digest.hexdigest():
                is_part = method == "upload_part"  # which cannot be read back alone
                if self._reports_md5 or not (is_part or self._rereads(parameters, data)):
                    raise DamagedError("S3 received other bytes than were sent")
                self._reports_md5 = None if is_part else False
                return {**answer, "verified": False}
            self._reports_md5 = True
            return {**answer, "verified": True}

        return self._try(write, f"{method} of {path}", path)

    def _rereads(self, parameters: Mapping[str, Any], data: bytes | bytearray) -> bool:
        """Say whether an object that was just written has the bytes that were sent."""
        answer = self._transport.call("get_object", {name: parameters[name] for name in ("Bucket", "Key")})
        return bool(answer["Body"] == bytes(data))

    def _try(
        self,
        make: Callable[[], dict[str, Any]],
        what: str,
        path: str,
        on_failure: Callable[[], None] | None = None,
    ) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return make()
            except EdlCkptError:
                if on_failure is not None:
                    on_failure()
                raise
            except Exception as error:
                meaning = _meaning(error, path)
                if on_failure is not None and isinstance(meaning, UnavailableError):
                    on_failure()
                if attempt == ATTEMPTS or not isinstance(meaning, UnavailableError):
                    raise meaning from error
                LOG.info("retry %d of %d: %s: %s", attempt, ATTEMPTS - 1, what, meaning.message)
                pause(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries, hides nothing
        raise AssertionError  # the loop always returns or raises


def _settings(options: Mapping[str, str], shown: str) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return the profile, the arguments of botocore's client and its configuration, from `--storage-option`s.

    The UsageError for an unknown option hides its value.
    """
    known = {*_TEXT_OPTIONS, *_SECONDS_OPTIONS, "profile", "anon"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"unknown storage option {unknown[0]!r} for S3",
            path=shown,
            hint=meant(unknown[0], known) or f"known options: {', '.join(sorted(known))}",
        )
    try:
        seconds = {name: float(options.get(name, default)) for name, default in _SECONDS_OPTIONS.items()}
    except ValueError:
        raise UsageError("connect_timeout and read_timeout must be numbers of seconds", path=shown) from None
    # Our own retries, which are logged; and MD5, because not every S3 service knows the newer checksums.
    config = {
        **seconds,
        "retries": {"max_attempts": 0},
        "max_pool_connections": CONNECTIONS,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    if options.get("anon", "").lower() in {"1", "true", "yes"}:
        from botocore import UNSIGNED

        config["signature_version"] = UNSIGNED
    arguments = {_TEXT_OPTIONS[name]: value for name, value in options.items() if name in _TEXT_OPTIONS}
    return options.get("profile"), arguments, config


def _make_client(profile: str | None, arguments: Mapping[str, Any], config: Mapping[str, Any]) -> Any:
    """Return botocore's client; it may have to ask for credentials over the network."""
    from botocore.config import Config
    from botocore.session import Session

    session = Session(profile=profile)
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    # dateutil, which botocore uses otherwise, takes four fifths of the time of a listing.
    session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=moment)
    return session.create_client("s3", **arguments, config=Config(**config))


def _loader(paths: str | None) -> Any:
    """Return botocore's loader of models, which does not look into the folders of 400 services for that of S3.

    Its dictionaries are plain ones, which keep their order too: half of the time of making a client went into others.
    `paths` are those that the user has added.
    """
    from botocore.loaders import JSONFileLoader, Loader

    class Plain(JSONFileLoader):  # type: ignore[misc]
        def load_file(self, file_path: str) -> Any:
            for ending, opened in ((".json", open), (".json.gz", gzip.open)):
                with suppress(FileNotFoundError), opened(file_path + ending, "rb") as file:
                    return json.loads(file.read())
            return super().load_file(file_path)

    class Near(Loader):  # type: ignore[misc]
        FILE_LOADER_CLASS = Plain

        def list_available_services(self, type_name: str) -> list[str]:  # noqa: ARG002 - each has a folder
            found = [name for path in filter(os.path.isdir, self.search_paths) for name in os.listdir(path)]
            return sorted(set(found))

    return Near(
        extra_search_paths=[
            os.path.expanduser(os.path.expandvars(path)) for path in (paths or "").split(os.pathsep) if path
        ]
    )


@functools.lru_cache(maxsize=8)
def _connection(options: tuple[tuple[str, str], ...], _environment: tuple[tuple[str, str], ...]) -> Connection:
    return Connection(dict(options), "s3://")


def connect(options: Mapping[str, str]) -> Connection:
    """Return the client for these options and this environment; making a new one takes a tenth of a second."""
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    return _connection(tuple(sorted(options.items())), environment)


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
    """Return the service's own time, so that ages do not depend on our clock."""
    from email.utils import parsedate_to_datetime

    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return datetime.now(UTC)
