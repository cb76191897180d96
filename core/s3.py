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
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from edl_ckpt.core.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.owner import new_id
from edl_ckpt.core.parallel import on_stop
from edl_ckpt.core.store import SMALL_BYTES, ObjectStat, OpenUpload, RangeReader, RemoteReader, Scan, scan_of

LOG: Final = logging.getLogger("edl_ckpt")
ATTEMPTS: Final = 5
"""How often a request is tried before it fails."""
MIN_PART_BYTES: Final = 5 << 20
"""What S3 asks of every part of an upload but the last."""
MAX_PARTS: Final = 10_000
CONNECTIONS: Final = 16
_FIRST_READ_BYTES: Final = 64 << 10
_SMALL_READ_BYTES: Final = 32 << 10
_DELETE_AT_ONCE: Final = 1000
_WRITE_ID: Final = "edl-ckpt-write-id"
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

    def __init__(self, options: Mapping[str, str], location: str) -> None:
        try:
            import s3fs
        except ImportError as error:
            raise UnsupportedError(
                str(error), path=location, hint="for s3:// install the extra: pip install 'edl-ckpt[s3]'"
            ) from error
        settings = _settings(options, location)
        self._fs = s3fs.S3FileSystem(use_listings_cache=False, skip_instance_cache=True, **settings)
        self._loop: asyncio.AbstractEventLoop = self._fs.loop
        self._pending: set[concurrent.futures.Future[Any]] = set()
        self._stopped = False
        on_stop(self.stop)

    def stop(self, stopped: bool) -> None:  # noqa: FBT001 - a switch
        """Give up what is under way, and refuse new requests until told that they may go on."""
        self._stopped = stopped
        if stopped:
            for future in list(self._pending):
                future.cancel()

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
                time.sleep(0.1 * 2**attempt * (0.5 + random.random()))  # noqa: S311 - spreads retries, hides nothing
        raise AssertionError  # the loop always ends by a return or a raise

    def _wait(self, work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
        if self._stopped:
            work.close()
            raise LockedError("stopped")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._pending.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise LockedError("stopped") from None
        except BaseException:
            future.cancel()
            raise
        finally:
            self._pending.discard(future)


def _settings(options: Mapping[str, str], location: str) -> dict[str, Any]:
    """Return what s3fs takes of `--storage-option`s; UsageError for another, whose value is not shown."""
    known = {*_TEXT_OPTIONS, *_SECONDS_OPTIONS, "profile", "region", "anon"}
    unknown = sorted(set(options) - known)
    if unknown:
        raise UsageError(
            f"no storage option {unknown[0]!r} for S3", path=location, hint=f"there are: {', '.join(sorted(known))}"
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
        raise UsageError("connect_timeout and read_timeout are seconds", path=location) from None
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


class S3Reader(RemoteReader):
    """An object, read by ranges of the one generation that was there when it was opened."""

    def __init__(self, connection: Connection, bucket: str, key: str, shown: str) -> None:
        self.path = shown
        self.bytes_read = 0
        self._connection = connection
        self._target = {"Bucket": bucket, "Key": key}
        head = b""
        try:
            span = f"bytes=0-{_FIRST_READ_BYTES - 1}"
            answer = connection.request("get_object", shown, **self._target, Range=span)
            head = answer["Body"]
            self.size_bytes = int(answer.get("ContentRange", f"/{len(head)}").rpartition("/")[2])
        except EdlCkptError as error:
            if "InvalidRange" not in error.message and "416" not in error.message:
                raise
            answer = connection.request("head_object", shown, **self._target)  # an object of no bytes has no range
            self.size_bytes = int(answer["ContentLength"])
        self._head = 0, head if len(head) == min(self.size_bytes, _FIRST_READ_BYTES) else b""
        self._window = self._head
        self.etag: str = answer["ETag"]

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        if size == 0:
            return b""
        if offset + size > self.size_bytes:
            raise LockedError(
                f"the file became shorter while it was read ({self.size_bytes} bytes before)",
                path=self.path,
                offset=self.size_bytes,
            )
        self.bytes_read += size
        for start, held in (self._head, self._window):
            if start <= offset and offset + size <= start + len(held):
                return held[offset - start : offset - start + size]
        if size >= _SMALL_READ_BYTES:
            return self._get(offset, size)
        # Tags and lengths are read in small steps that follow each other: one request brings what comes next too.
        held = self._get(offset, min(_SMALL_READ_BYTES, self.size_bytes - offset))
        self._window = offset, held
        return held[:size]

    def _get(self, offset: int, size: int) -> bytes:
        span = f"bytes={offset}-{offset + size - 1}"
        try:
            answer = self._connection.read(self.path, size, **self._target, Range=span, IfMatch=self.etag)
        except LockedError:
            raise self._changed() from None
        if answer["ETag"] != self.etag:  # a store that knows no conditions
            raise self._changed()
        data: bytes = answer["Body"]
        return data

    def _changed(self) -> LockedError:
        return LockedError(
            "the object was overwritten while it was read",
            path=self.path,
            hint="try again when the job has finished saving",
        )

    def check_unchanged(self) -> None:
        """Raise LockedError when the object is another one by now."""
        answer = self._connection.request("head_object", self.path, **self._target)
        if answer["ETag"] != self.etag:
            raise self._changed()


class S3Store:
    """A location on S3: `s3://bucket/prefix`."""

    is_remote = True
    part_bytes = MIN_PART_BYTES

    def __init__(self, location: str, storage_options: Mapping[str, str]) -> None:
        self.location = location.rstrip("/")
        self.root = location.partition("://")[2].strip("/")
        self._bucket, _, prefix = self.root.partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        if not self._bucket:
            raise UsageError("names no bucket", path=location)
        self._connection = connect(storage_options)

    def _key(self, relative: str) -> str:
        return self._prefix + relative

    def _shown(self, relative: str) -> str:
        return f"{self.location}/{relative}"

    def _list(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield every object below a prefix, a thousand a request."""
        for answer in self._pages(Prefix=prefix):
            yield from answer.get("Contents", ())

    def _list_directory(self, prefix: str) -> Iterator[str]:
        """Yield the keys right below a prefix, those of directories with a '/' at the end."""
        for answer in self._pages(Prefix=prefix, Delimiter="/"):
            yield from (item["Key"] for item in answer.get("Contents", ()))
            yield from (item["Prefix"] for item in answer.get("CommonPrefixes", ()))

    def _pages(self, **parameters: str) -> Iterator[dict[str, Any]]:
        while True:
            answer = self._connection.request("list_objects_v2", self.location, Bucket=self._bucket, **parameters)
            yield answer
            if not answer.get("IsTruncated"):
                return
            parameters["ContinuationToken"] = answer["NextContinuationToken"]

    def scan(self, path: str) -> Scan:
        """Return what is in the location, with one request per thousand objects."""
        prefix = path.partition("/")[2]
        prefix = f"{prefix}/" if prefix else ""
        found = {item["Key"].removeprefix(prefix): item for item in self._list(prefix)}
        found.pop("", None)
        if not found and prefix:
            raise NotFoundError("no such location", path=self.location)
        return scan_of(
            self.location,
            ((name, int(item["Size"]), item["LastModified"].timestamp(), False) for name, item in found.items()),
        )

    def names(self, relative: str) -> dict[str, str]:
        """Return what is in a directory below the location ('' is the location), its paths by its names."""
        inside = f"{relative}/" if relative else ""
        prefix = self._key(inside)
        names = (found.removeprefix(prefix).rstrip("/") for found in self._list_directory(prefix))
        return {name: self._shown(inside + name) for name in names if name}

    def tree(self, relative: str) -> list[str]:
        """Return all objects below a directory, as paths below the location."""
        return [item["Key"].removeprefix(self._prefix) for item in self._list(self._key(relative) + "/")]

    def open(self, path: str) -> RangeReader:
        """Open an object for ranged reads."""
        return S3Reader(self._connection, self._bucket, self._key(self._relative(path)), path)

    def _relative(self, path: str) -> str:
        return path.removeprefix(self.location + "/")

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small object below the location, None when there is none."""
        try:
            answer = self._connection.request(
                "get_object", self._shown(relative), Bucket=self._bucket, Key=self._key(relative)
            )
        except NotFoundError:
            return None
        data: bytes = answer["Body"]
        return data[:SMALL_BYTES]

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small object: its old content or the new is seen, never a mixture."""
        self._connection.upload("put_object", self._shown(relative), data, Bucket=self._bucket, Key=self._key(relative))

    def remove(self, relative: str) -> None:
        """Remove an object; one that is gone already is no error."""
        with suppress(NotFoundError):
            self._connection.request(
                "delete_object", self._shown(relative), Bucket=self._bucket, Key=self._key(relative)
            )

    def remove_many(self, relatives: Sequence[str]) -> None:
        """Remove objects, a thousand a request; EdlCkptError names the first that stays."""
        for start in range(0, len(relatives), _DELETE_AT_ONCE):
            keys = [{"Key": self._key(r)} for r in relatives[start : start + _DELETE_AT_ONCE]]
            body = {"Objects": keys, "Quiet": True}
            answer = self._connection.request("delete_objects", self.location, Bucket=self._bucket, Delete=body)
            for failed in answer.get("Errors", ()):
                shown = self._shown(failed["Key"].removeprefix(self._prefix))
                kind = AuthError if failed.get("Code") == "AccessDenied" else EdlCkptError
                raise kind(f"cannot be removed: S3 answers {failed.get('Code')}", path=shown)

    def remove_directory(self, relative: str) -> None:
        """Do nothing: a prefix without objects is not there."""

    def stat(self, relative: str) -> ObjectStat | None:
        """Return an object's size, ETag and age, None when there is none."""
        try:
            answer = self._connection.request(
                "head_object", self._shown(relative), Bucket=self._bucket, Key=self._key(relative)
            )
        except NotFoundError:
            return None
        age = (_served_at(answer) - answer["LastModified"]).total_seconds()
        return ObjectStat(int(answer["ContentLength"]), answer["ETag"], age, answer.get("Metadata", {}).get(_WRITE_ID))

    def write_if(self, relative: str, data: bytes, *, etag: str) -> str:
        """Write an object only where it has this ETag, '' for none; return the new ETag, '' when it has another.

        UnsupportedError where the storage has no such condition. A reply that was lost is no doubt: what is there tells
        by its write id whose it is.
        """
        mine = new_id()
        condition = {"IfMatch": etag} if etag else {"IfNoneMatch": "*"}
        try:
            answer = self._connection.upload(
                "put_object",
                self._shown(relative),
                data,
                Bucket=self._bucket,
                Key=self._key(relative),
                Metadata={_WRITE_ID: mine},
                **condition,
            )
        except (LockedError, NotFoundError):
            found = self.stat(relative)
            return found.etag if found is not None and found.write_id == mine else ""
        written: str = answer["ETag"]
        return written

    def new_object(self, relative: str, size_bytes: int) -> Upload:
        """Begin an object of a known size; nothing is visible until it is completed."""
        return Upload(self._connection, self._bucket, self._key(relative), self._shown(relative), size_bytes)

    def open_uploads(self) -> Iterator[OpenUpload]:
        """Yield the uploads below the location that were begun and neither completed nor aborted."""
        more: dict[str, str] = {}
        while True:
            answer = self._connection.request(
                "list_multipart_uploads", self.location, Bucket=self._bucket, Prefix=self._prefix, **more
            )
            now = _served_at(answer)
            for item in answer.get("Uploads", ()):
                age = (now - item["Initiated"]).total_seconds()
                yield OpenUpload(item["Key"].removeprefix(self._prefix), item["UploadId"], age)
            if not answer.get("IsTruncated"):
                return
            more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer["NextUploadIdMarker"]}

    def abort_upload(self, relative: str, upload_id: str) -> None:
        """Drop an upload and its parts; one that is gone already is no error."""
        _abort(self._connection, self._bucket, self._key(relative), self._shown(relative), upload_id)

    def resume_object(self, relative: str, size_bytes: int, record: Mapping[str, Any]) -> Upload | None:
        """Return an upload that was begun before and has all its parts, None when it is gone or lacks some.

        `record` tells its upload_id and its write_id.
        """
        upload = self.new_object(relative, size_bytes)
        return upload if upload.adopt(str(record["upload_id"]), str(record["write_id"])) else None


def _served_at(answer: Mapping[str, Any]) -> datetime:
    """Return the service's own time: its ages do not depend on our clock."""
    from email.utils import parsedate_to_datetime

    headers = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    try:
        return parsedate_to_datetime(headers["date"])
    except (KeyError, ValueError, TypeError):
        return datetime.now(UTC)


def _abort(connection: Connection, bucket: str, key: str, shown: str, upload_id: str) -> None:
    with suppress(LockedError, NotFoundError):
        connection.request("abort_multipart_upload", shown, Bucket=bucket, Key=key, UploadId=upload_id)


@dataclass(slots=True)
class _Part:
    """A part that is being filled: its bytes, and how many of them have come."""

    data: bytearray
    filled: int = 0


class Upload:
    """An object of known size that is written at any offset, from several threads, and appears when it is completed.

    Every byte is to be written once. Bytes are gathered in parts, each uploaded, and its memory freed, when it is full;
    `memory_bytes` is what is held now, `peak_bytes` the most it was. An object of one part is one PUT when completed.
    """

    def __init__(self, connection: Connection, bucket: str, key: str, shown: str, size_bytes: int) -> None:
        self.path = shown
        self.size_bytes = size_bytes
        self.part_bytes = part_bytes(size_bytes)
        self.bytes_written = 0
        self.memory_bytes = 0
        self.peak_bytes = 0
        self.verified = True
        """False once something was uploaded that S3 did not tell the MD5 of: then it must be read back."""
        self.upload_id = ""
        self._connection = connection
        self._target = {"Bucket": bucket, "Key": key}
        self.write_id = new_id()
        self._parts: dict[int, _Part] = {}
        self._etags: dict[int, str] = {}
        self._single: bytearray | None = None
        self.completed = False
        self._lock = threading.Lock()
        self._count = max(-(-size_bytes // self.part_bytes), 1)

    def begin(self) -> str:
        """Open the upload on the service and return its id, '' for an object of one part."""
        if self._count > 1 and not self.upload_id:
            answer = self._connection.request(
                "create_multipart_upload", self.path, **self._target, Metadata={_WRITE_ID: self.write_id}
            )
            self.upload_id = answer["UploadId"]
        return self.upload_id

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Take all of `data` at `offset`; uploads what is full."""
        view = memoryview(data).cast("B")
        if offset < 0 or offset + len(view) > self.size_bytes:
            raise EdlCkptError("a write past the end of the object", path=self.path, offset=offset)
        done = 0
        while done < len(view):
            number, at = divmod(offset + done, self.part_bytes)
            size = min(self._size_of(number) - at, len(view) - done)
            self._fill(number, at, view[done : done + size])
            done += size
        with self._lock:
            self.bytes_written += len(view)

    def _size_of(self, number: int) -> int:
        return min(self.part_bytes, self.size_bytes - number * self.part_bytes)

    def _fill(self, number: int, at: int, data: memoryview) -> None:
        with self._lock:
            part = self._parts.get(number)
            if part is None:
                part = self._parts[number] = _Part(bytearray(self._size_of(number)))
                self.memory_bytes += len(part.data)
                self.peak_bytes = max(self.peak_bytes, self.memory_bytes)
        part.data[at : at + len(data)] = data
        with self._lock:
            part.filled += len(data)
            full = part.filled >= len(part.data)
            if full:
                del self._parts[number]
        if full:
            self._upload(number, part.data)

    def _upload(self, number: int, data: bytearray) -> None:
        if self._count == 1:
            self._single = data
            return
        try:
            answer = self._connection.upload(
                "upload_part", self.path, data, **self._target, UploadId=self.upload_id, PartNumber=number + 1
            )
        finally:
            with self._lock:
                self.memory_bytes -= len(data)
        with self._lock:
            self._etags[number] = answer["ETag"]
            self.verified = self.verified and answer["verified"]

    def finish(self) -> None:
        """Make sure that every byte was written; EdlCkptError when one was not."""
        whole = self._single is not None if self._count == 1 else len(self._etags) == self._count
        if self._parts or not (whole or self.size_bytes == 0):
            raise EdlCkptError("not every byte of the object was written", path=self.path)

    def adopt(self, upload_id: str, write_id: str) -> bool:
        """Take over an upload that was begun before; True when all its parts are there."""
        self.write_id = write_id
        self.verified = False  # its parts were compared by another process
        etags: dict[int, str] = {}
        more: dict[str, Any] = {}
        while True:
            try:
                answer = self._connection.request("list_parts", self.path, **self._target, UploadId=upload_id, **more)
            except (LockedError, NotFoundError):
                return False
            for part in answer.get("Parts", ()):
                number = part["PartNumber"] - 1
                if 0 <= number < self._count and part["Size"] == self._size_of(number):
                    etags[number] = part["ETag"]
            if not answer.get("IsTruncated"):
                break
            more = {"PartNumberMarker": answer["NextPartNumberMarker"]}
        if len(etags) != self._count:
            return False
        self.upload_id, self._etags, self.bytes_written = upload_id, etags, self.size_bytes
        return True

    def complete(self, *, replace: bool = False) -> None:
        """Make the object visible, whole; RefusedError when the name is taken, unless it is to be replaced.

        A reply that was lost is no doubt: what is there tells by its write id, or its parts, whose it is.
        """
        try:
            self._complete(**({} if replace else {"IfNoneMatch": "*"}))
        except UnsupportedError:
            if self._found() is not None:
                raise RefusedError("exists already; nothing was changed", path=self.path) from None
            self._complete()
        except (LockedError, NotFoundError):
            found = self._found()
            if found is None or not self._is_ours(found):
                if found is None:
                    raise
                raise RefusedError("exists already; nothing was changed", path=self.path) from None
        self.completed = True
        self._single = None
        self.memory_bytes = 0

    def _complete(self, **condition: str) -> None:
        if self._count == 1:
            data = self._single or bytearray()
            ours = {_WRITE_ID: self.write_id}
            answer = self._connection.upload("put_object", self.path, data, **self._target, **condition, Metadata=ours)
            self.verified = answer["verified"]
            return
        parts = [{"PartNumber": number + 1, "ETag": etag} for number, etag in sorted(self._etags.items())]
        self._connection.request(
            "complete_multipart_upload",
            self.path,
            **self._target,
            UploadId=self.upload_id,
            MultipartUpload={"Parts": parts},
            **condition,
        )

    def _found(self) -> dict[str, Any] | None:
        try:
            return self._connection.request("head_object", self.path, **self._target)
        except NotFoundError:
            return None

    def _is_ours(self, found: Mapping[str, Any]) -> bool:
        """Say whether what is there is what we completed: by our write id, or by the sum of an upload taken over."""
        if found.get("Metadata", {}).get(_WRITE_ID) == self.write_id:
            return True
        sums = b"".join(bytes.fromhex(e.strip('"')) for _, e in sorted(self._etags.items()) if len(e.strip('"')) == 32)
        whole = hashlib.md5(sums, usedforsecurity=False).hexdigest()
        return self._count > 1 and str(found["ETag"]).strip('"') == f"{whole}-{self._count}"

    def abort(self) -> None:
        """Drop what was uploaded; what was completed stays."""
        self._parts.clear()
        self._single = None
        if self.upload_id and not self.completed:
            _abort(self._connection, self._target["Bucket"], self._target["Key"], self.path, self.upload_id)


def part_bytes(size_bytes: int) -> int:
    """Return how large the parts of an object are: as small as S3 allows, since open parts are held in memory.

    >>> part_bytes(1 << 20), part_bytes(1 << 40)
    (5242880, 110100480)
    """
    least = max(MIN_PART_BYTES, -(-size_bytes // MAX_PARTS))
    return -(-least // (1 << 20)) * (1 << 20)
