"""S3: requests counted in ones, reads pinned to one generation of an object, uploads that appear whole or not at all.

s3fs gives the session (credentials, endpoint, region: the usual environment of AWS, or `--storage-option`); the
requests are ours, because s3fs reads ahead, caches listings for ever, retries in silence, and puts ranges of an object
together that somebody overwrites meanwhile (each seen with 2026.9). Every request is tried five times, with growing
pauses, and each retry is logged (`-v` shows it). What is uploaded is compared with the MD5 that S3 answers.
"""

from __future__ import annotations

import asyncio
import base64
import concurrent.futures
import functools
import hashlib
import logging
import os
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
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
from edl_ckpt.core.parallel import pause, stop_requested

LOG: Final = logging.getLogger("edl_ckpt")
ATTEMPTS: Final = 5
"""How often a request is tried before it fails."""
CONNECTIONS: Final = 16
_LOOK_SECONDS: Final = 0.25
"""How often a waiting request looks whether the command was interrupted."""
_TEXT_OPTIONS: Final = ("endpoint_url", "key", "secret", "token")
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
_AUTH_HINT: Final = "look at the credentials, the profile and the region"
_MEANINGS: Final[Mapping[str, tuple[type[EdlCkptError], str]]] = {
    **dict.fromkeys(_AUTH, (AuthError, "")),
    **dict.fromkeys(_FULL, (NoSpaceError, "")),
    **dict.fromkeys(("PreconditionFailed", "412"), (LockedError, "was changed by somebody else meanwhile")),
    **dict.fromkeys(("NoSuchKey", "404", "NotFound"), (NotFoundError, "no such file or directory")),
    **dict.fromkeys(("NotImplemented", "501"), (UnsupportedError, "this S3 lacks what was asked for")),
    "NoSuchBucket": (NotFoundError, "no such bucket"),
    "NoSuchUpload": (LockedError, "the upload is gone: completed or aborted by somebody"),
}


class _DamagedError(Exception):
    """An answer that is not what was asked for: too short, or not the MD5 that was sent. Worth another try."""


class Connection:
    """A client of one S3 service, shared by all that use the same options; safe in several threads."""

    def __init__(self, options: Mapping[str, str], shown: str) -> None:
        try:
            import s3fs
        except ImportError as error:
            raise UnsupportedError(
                str(error), path=shown, hint="for s3:// install the extra: pip install 'edl-ckpt[s3]'"
            ) from error
        settings = _settings(options, shown)
        self._fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, **settings)
        self._loop: asyncio.AbstractEventLoop = self._fs.loop

    def request(self, method: str, path: str, **parameters: Any) -> dict[str, Any]:
        """Do one operation of S3's interface and return its answer, the body read; `path` is for errors.

        Raises what `_meaning` says of S3's codes; UnavailableError after the last attempt.
        """
        return self._try(lambda: self._once(method, parameters), f"{method} of {path}", path)

    def read(self, path: str, size: int, **parameters: Any) -> dict[str, Any]:
        """Do a ranged GET that must bring `size` bytes."""

        async def read() -> dict[str, Any]:
            answer = await self._once("get_object", parameters)
            if len(answer["Body"]) != size:
                raise _DamagedError(f"{len(answer['Body'])} of {size} bytes came")
            return answer

        return self._try(read, f"get_object of {path}", path)

    def upload(self, method: str, path: str, data: bytes | bytearray, **parameters: Any) -> dict[str, Any]:
        """Do a PUT of data and compare what S3 says it has with what was sent."""
        digest = hashlib.md5(data, usedforsecurity=False)
        sums = {"ContentMD5": base64.b64encode(digest.digest()).decode()}

        async def write() -> dict[str, Any]:
            answer = await self._once(method, {**parameters, **sums, "Body": bytes(data)})
            encrypted = answer.get("ServerSideEncryption", "AES256") != "AES256" or answer.get("SSECustomerAlgorithm")
            if not encrypted and answer["ETag"].strip('"') != digest.hexdigest():
                raise _DamagedError("what arrived is not what was sent")
            return {**answer, "verified": not encrypted}

        return self._try(write, f"{method} of {path}", path)

    async def _once(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        client = await self._fs.set_session()
        answer: dict[str, Any] = await getattr(client, method)(**parameters)
        if "Body" in answer:
            async with answer["Body"] as stream:
                answer["Body"] = await stream.read()
        return answer

    def _try(self, make: Callable[[], Coroutine[Any, Any, dict[str, Any]]], what: str, path: str) -> dict[str, Any]:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._wait(make())
            except EdlCkptError:
                raise
            except Exception as error:
                meaning = _meaning(error, path)
                if attempt == ATTEMPTS or not isinstance(meaning, UnavailableError):
                    raise meaning from error
                LOG.info("retry %d of %d: %s: %s", attempt, ATTEMPTS - 1, what, meaning.message)
                pause(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries, hides nothing
        raise AssertionError  # the loop always ends by a return or a raise

    def _wait(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        """Return the result of a request; give it up when the user interrupts the command that waits for it."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while not stop_requested():
                with suppress(concurrent.futures.TimeoutError):
                    return future.result(_LOOK_SECONDS)
        except BaseException:
            future.cancel()
            raise
        future.cancel()
        raise LockedError("stopped")


def _settings(options: Mapping[str, str], shown: str) -> dict[str, Any]:
    """Return what s3fs takes of `--storage-option`s; UsageError for another, whose value is not shown."""
    known = {*_TEXT_OPTIONS, *_SECONDS_OPTIONS, "profile", "region", "anon"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"no storage option {unknown[0]!r} for S3", path=shown, hint=f"there are: {', '.join(sorted(known))}"
        )
    settings: dict[str, Any] = {name: options[name] for name in _TEXT_OPTIONS if name in options}
    if "profile" in options:
        settings["profile"] = options["profile"]
    if "region" in options:
        settings["client_kwargs"] = {"region_name": options["region"]}
    if options.get("anon", "").lower() in {"1", "true", "yes"}:
        settings["anon"] = True
    try:
        seconds = {name: float(options.get(name, default)) for name, default in _SECONDS_OPTIONS.items()}
    except ValueError:
        raise UsageError("connect_timeout and read_timeout are seconds", path=shown) from None
    # Our retries, not botocore's silent ones; and MD5, which every S3 knows, not the newer trailing checksums.
    settings["config_kwargs"] = {
        **seconds,
        "retries": {"max_attempts": 0},
        "max_pool_connections": CONNECTIONS,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    return settings


@functools.lru_cache(maxsize=8)
def _connection(options: tuple[tuple[str, str], ...], _environment: tuple[tuple[str, str], ...]) -> Connection:
    return Connection(dict(options), "s3://")


def connect(options: Mapping[str, str]) -> Connection:
    """Return the client for these options and this environment: making one takes a third of a second."""
    environment = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    return _connection(tuple(sorted(options.items())), environment)


def _meaning(error: Exception, path: str) -> EdlCkptError:
    """Return what an error of botocore, aiohttp or the system means to us; what can be tried again is Unavailable."""
    if isinstance(error, _DamagedError):
        return UnavailableError(f"S3's answer was damaged: {error}", path=path)
    response = getattr(error, "response", None)
    if not isinstance(response, dict):
        code = type(error).__name__
        if code in _AUTH:
            return AuthError(f"S3 refuses: {code}", path=path, hint=_AUTH_HINT)
        if isinstance(error, ValueError | TypeError):
            # Not its words: they repeat the endpoint, in which there may be a password.
            return EdlCkptError(f"S3 cannot be asked that ({code}): look at the endpoint and the options", path=path)
        return UnavailableError(f"S3 does not answer ({code})", path=path)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    code = str(response.get("Error", {}).get("Code") or status)
    kind, message = _MEANINGS.get(code, (None, ""))
    if kind is not None:
        hint = _AUTH_HINT if kind is AuthError else None
        return kind(message or f"S3 refuses: {code}", path=path, hint=hint)
    if code in _AGAIN or (isinstance(status, int) and status >= 500):
        return UnavailableError(f"S3 answers {code}", path=path)
    return EdlCkptError(f"S3 answers {code}", path=path)
