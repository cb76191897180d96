"""A location on S3: listings, reads pinned to one generation of an object, uploads that never replace another.

What an S3 service can do: what it says of itself, and what it does with small objects of ours.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from edl_ckpt.core.base.errors import (
    AuthError,
    EdlCkptError,
    LockedError,
    NoSpaceError,
    NotFoundError,
    ReplacedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.parallel import REMOTE_WORKERS, run_parallel
from edl_ckpt.core.base.words import rounded_duration
from edl_ckpt.core.storage.facts import Fact, Verdict, judged, yes
from edl_ckpt.core.storage.interface import (
    SMALL_BYTES,
    Entry,
    Inside,
    Level,
    ListedRow,
    ObjectStat,
    ObjectStore,
    ObjectWriter,
    OpenUpload,
    Page,
    Properties,
    RangeReader,
    RemoteReader,
    flat_listing,
)
from edl_ckpt.core.storage.location import Location
from edl_ckpt.core.storage.parts import PartMemory
from edl_ckpt.core.storage.s3.client import NoBucketError, S3Target, connect, served_at, told_time
from edl_ckpt.core.storage.s3.upload import MIN_PART_BYTES, WRITE_ID, Parts, Upload
from edl_ckpt.core.storage.tree import Tree, object_tree
from edl_ckpt.core.storage.windows import Windows

_FIRST_READ_BYTES: Final = 256 << 10
"""What the request that opens an object brings: of most shards the whole index, with the small values inside."""
_WHOLE_BYTES: Final = 512 << 10
"""An object of at most so many bytes is read whole when it is opened: its end takes less time than a request."""
_SMALL_READ_BYTES: Final = 32 << 10
"""Smaller reads fetch at least so many bytes: the next steps are near."""
_INDEX_READ_BYTES: Final = 256 << 10
"""The largest read of whoever walks through an index; larger ones are of values, and fetch nothing else."""
_NEAR_BYTES: Final = 128 << 10
_LARGEST_WINDOW: Final = 4 << 20
"""Reading through so many bytes takes about as long as another request."""
_DELETE_AT_ONCE: Final = 1000


def _mark(item: Mapping[str, Any]) -> str:
    """Return what tells the content of an object from any other; some services quote an ETag in answers only."""
    etag = item.get("ETag", "").strip('"')
    return f"{etag}/{item['Size']}" if etag else ""


def _is_empty(error: EdlCkptError) -> bool:
    """Say whether an object has no bytes, and so no first range."""
    return "InvalidRange" in error.message or "416" in error.message


def _row(name: str, item: Mapping[str, Any]) -> ListedRow:
    """Return an object of a listing as a row of a flat listing."""
    return name, int(item["Size"]), item["LastModified"].timestamp(), False, _mark(item)


class S3Reader(RemoteReader):
    """An object, read by ranges. All of them come from the generation that was there when it was opened."""

    def __init__(self, target: S3Target, first_bytes: int = 0) -> None:
        self.path = target.path
        first_bytes = max(first_bytes, _FIRST_READ_BYTES)
        self.bytes_read = 0
        self._target = target
        head = b""
        try:
            span = f"bytes=0-{first_bytes - 1}"
            answer = target.request("get_object", Range=span)
            head = answer["Body"]
            self.size_bytes = int(answer.get("ContentRange", f"/{len(head)}").rpartition("/")[2])
        except EdlCkptError as error:
            if not _is_empty(error):
                raise
            answer = target.request("head_object")  # an object of no bytes has no range
            self.size_bytes = int(answer["ContentLength"])
        self._windows = Windows()
        if len(head) == min(self.size_bytes, first_bytes):
            self._windows.keep(0, head)
        self._next_end, self._next_bytes = len(head), max(len(head), 2 * _SMALL_READ_BYTES)
        self.etag: str = answer["ETag"]
        self.generation = self.etag
        self.mark = _mark({**answer, "Size": self.size_bytes})

    def read(self, offset: int, size: int) -> bytes:
        """Return exactly `size` bytes at `offset`."""
        if size == 0:
            return b""
        if (kept := self._kept(offset, size)) is not None:
            return kept
        if size > _INDEX_READ_BYTES:
            return bytes(self._pinned(offset, size, size))
        # Tags and lengths are read in small steps. One request also fetches the bytes of the next steps, and four times
        # as many when those were not enough: between two tags there may be a value of any size.
        start = self._next_end
        if not 0 <= offset - start <= max(self._next_bytes, _NEAR_BYTES):
            start, self._next_bytes = offset, _SMALL_READ_BYTES
        wanted = min(max(offset + size - start, self._next_bytes), self.size_bytes - start)
        data: bytes = self._pinned(start, wanted, wanted)
        self._next_end, self._next_bytes = start + len(data), min(4 * self._next_bytes, _LARGEST_WINDOW)
        self._windows.keep(start, data)
        return data[offset - start : offset - start + size]

    def _kept(self, offset: int, size: int) -> bytes | None:
        """Count bytes as read, and return them if they were read ahead."""
        if offset + size > self.size_bytes:
            raise self.shorter(self.size_bytes)
        self.bytes_read += size
        return self._windows.find(offset, size)

    def read_into(self, offset: int, buffer: memoryview) -> None:
        """Fill the whole buffer from `offset` on, without a copy where it is large."""
        into, size = buffer.cast("B"), buffer.nbytes
        if size < _SMALL_READ_BYTES:
            into[:] = self.read(offset, size)
        elif (kept := self._kept(offset, size)) is not None:
            into[:] = kept
        else:
            self._pinned(offset, size, into)

    def _pinned(self, offset: int, size: int, wanted: memoryview | int) -> Any:
        """Read a range of the generation that was opened, and return the body; LockedError for any other."""
        read = functools.partial(self._target.request, "get_object", wanted)
        connection = self._target.connection
        span = f"bytes={offset}-{offset + size - 1}"
        condition = {"IfMatch": self.etag} if connection.takes_quoted_etags else {}
        try:
            answer = read(Range=span, **condition)
        except NotFoundError:
            raise self._changed() from None
        except LockedError:
            self.check_unchanged()
            # The object is the same: this service refuses an ETag in quotes. The answer's own ETag says as much.
            connection.takes_quoted_etags = False
            answer = read(Range=span)
        if answer["ETag"] != self.etag:
            raise self._changed()
        return answer["Body"]

    def _changed(self) -> LockedError:
        return ReplacedError(
            "the object was overwritten or removed while it was being read",
            path=self.path,
            hint="try again when the job has finished saving",
        )

    def check_unchanged(self) -> None:
        """Raise LockedError when the object has been overwritten."""
        answer = self._target.head()
        if answer is None or answer["ETag"] != self.etag:
            raise self._changed()

    def close(self) -> None:
        """Drop what was read ahead."""
        self._windows.clear()


class S3Store(ObjectStore):
    """A location on S3: `s3://bucket/prefix`."""

    properties = Properties(marks=True, part_bytes=MIN_PART_BYTES)

    def __init__(self, location: Location) -> None:
        self.location = location
        self._url = location.url.rstrip("/")
        self._bucket, _, prefix = location.url.partition("://")[2].strip("/").partition("/")
        self._prefix = f"{prefix}/" if prefix else ""
        if not self._bucket:
            raise UsageError("expected s3://BUCKET/PREFIX, got no bucket", path=location.url)
        self._connection = connect(location.options)
        self._top = S3Target(self._connection, self._bucket, self._prefix, self._url)

    def _target(self, relative: str) -> S3Target:
        return S3Target(self._connection, self._bucket, self._prefix + relative, self.path(relative))

    def _objects(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield every object below a prefix; each request returns a thousand."""
        for answer in self._pages(Prefix=prefix):
            yield from answer.get("Contents", ())

    def _pages(self, **parameters: str) -> Iterator[dict[str, Any]]:
        return self._top.pages("list_objects_v2", "ContinuationToken", **parameters)

    def entries(self, inside: Inside) -> list[Entry]:
        """Return the entries of the location, with one request per thousand objects."""
        return self._location_entries(self._objects(self._prefix), inside)

    def few(self, inside: Inside) -> list[Entry] | None:
        """Return the entries of the location if one request can list them, else None."""
        page = next(self._pages(Prefix=self._prefix))
        return None if page.get("IsTruncated") else self._location_entries(page.get("Contents", ()), inside)

    def below(self, relative: str, inside: Inside) -> list[Entry]:
        """Return the entries below one directory, as `entries` has them; nothing when there is no such directory."""
        return self._entries(self._objects(f"{self._prefix}{relative}/"), inside)

    def _location_entries(self, objects: Iterable[dict[str, Any]], inside: Inside) -> list[Entry]:
        entries = self._entries(objects, inside)
        if not entries and self._prefix:
            raise NotFoundError("no such location", path=self._url)
        return entries

    def _entries(self, objects: Iterable[dict[str, Any]], inside: Inside) -> list[Entry]:
        found = {item["Key"].removeprefix(self._prefix): item for item in objects}
        found.pop("", None)
        return flat_listing(self, (_row(name, item) for name, item in found.items()), inside)

    def page(self, after: str = "", token: str = "") -> Page:
        """Return what one request lists of everything: after a name, or from where another page ended, or from the top.

        Some services take no name, and list from the top.
        """
        start = {}
        if token:
            start["ContinuationToken"] = token
        elif after:
            start["StartAfter"] = self._prefix + after
        answer = self._top.request_many("list_objects_v2", Prefix=self._prefix, **start)
        named = ((item["Key"].removeprefix(self._prefix), item) for item in answer.get("Contents", ()))
        rows = [_row(name, item) for name, item in named if name]
        return Page(rows, answer["NextContinuationToken"] if answer.get("IsTruncated") else "")

    def names(self, relative: str) -> dict[str, str]:
        """Return the paths of a directory's entries by name; '' is the location itself."""
        inside = f"{relative}/" if relative else ""
        return {name: self.path(inside + name) for name in self.level(relative).names}

    def level(self, relative: str, most_requests: int = sys.maxsize) -> Level:
        """Return the names right in a directory; '' is the location itself. Each request returns a thousand."""
        prefix = self._prefix + (f"{relative}/" if relative else "")
        names: dict[str, bool] = {}
        for number, page in enumerate(self._pages(Prefix=prefix, Delimiter="/"), 1):
            for item in (*page.get("Contents", ()), *page.get("CommonPrefixes", ())):
                # The first part of each: there are services that ignore the delimiter, and list everything below.
                name, below, _ = (item.get("Key") or item["Prefix"]).removeprefix(prefix).partition("/")
                if name:
                    names[name] = bool(below) or names.get(name, False)
            if number == most_requests and page.get("IsTruncated"):
                return Level(names, is_whole=False)
        return Level(names)

    def raw_tree(self, relative: str) -> Tree:
        """Return every object below a directory."""
        found = self.below(relative, lambda _: True) if relative else self.entries(lambda _: True)
        return object_tree(relative, found)

    def tree(self, relative: str) -> list[str]:
        """Return the paths, below the location, of all objects in a directory and its subdirectories."""
        return [item["Key"].removeprefix(self._prefix) for item in self._objects(f"{self._prefix}{relative}/")]

    def ages(self, relative: str) -> dict[str, float]:
        """Return the seconds since each object of a directory was written, by its name and by the clock of S3."""
        found: dict[str, float] = {}
        prefix = self._prefix + relative
        for answer in self._pages(Prefix=prefix):
            now = served_at(answer)
            for item in answer.get("Contents", ()):
                name = item["Key"].removeprefix(prefix)
                if not name or name.startswith("/"):
                    found[name.removeprefix("/")] = (now - item["LastModified"]).total_seconds()
        return found

    def open(self, path: str, *, listed_bytes: int = 0) -> RangeReader:
        """Open an object for ranged reads; one that is small in a listing is read whole."""
        first = listed_bytes if listed_bytes <= _WHOLE_BYTES else 0
        return S3Reader(self._target(path.removeprefix(f"{self._url}/")), first)

    def read_small(self, relative: str) -> bytes | None:
        """Return the whole of a small object below the location; None when there is no such object."""
        found = self.read_marked(relative)
        return None if found is None else found[0]

    def read_marked(self, relative: str) -> tuple[bytes, str] | None:
        """Return the whole of a small object and its mark; None when there is no such object."""
        first = f"bytes=0-{SMALL_BYTES - 1}"  # whoever may write here may have put gigabytes there
        try:
            answer = self._target(relative).request("get_object", Range=first)
        except NoBucketError:
            raise
        except NotFoundError:
            return None
        except EdlCkptError as error:
            if not _is_empty(error):
                raise
            return b"", ""
        data: bytes = answer["Body"]
        return data, _mark({**answer, "Size": len(data)})

    def write_small(self, relative: str, data: bytes) -> None:
        """Write a small object. A reader sees the old content or the new, never a mixture."""
        self._target(relative).upload("put_object", data)

    def write_over(self, relative: str, data: bytes, seen: ObjectStat | None) -> None:
        """Write a small object in place of the one that was seen, None for none; LockedError when another one is there.

        A service that refuses the condition although that object is there gets another form of it, then none at all.
        """
        etag = "" if seen is None else seen.etag.strip('"')
        conditions = [{"IfMatch": f'"{etag}"'}, {"IfMatch": etag}] if etag else [{"IfNoneMatch": "*"}]
        for condition in conditions if self._connection.takes_quoted_etags else conditions[-1:]:
            try:
                self._target(relative).upload("put_object", data, **condition)
            except (UnavailableError, AuthError, NoSpaceError):
                raise
            except EdlCkptError as error:
                now = self.stat(relative)
                if (now and now.etag) != (seen and seen.etag):
                    if self.read_small(relative) == data:  # the answer to an attempt was lost
                        return
                    raise LockedError("another process changed it meanwhile", path=self.path(relative)) from error
                self._connection.takes_quoted_etags &= not (etag and isinstance(error, LockedError))
            else:
                return
        self.write_small(relative, data)

    def remove(self, relative: str) -> None:
        """Remove an object; a missing one is no error."""
        with suppress(NotFoundError):
            self._target(relative).request("delete_object")

    def remove_each(self, relatives: Sequence[str]) -> dict[str, EdlCkptError]:
        """Remove as many of these objects as can be removed, a thousand per request; return the others' errors."""
        some = [relatives[start : start + _DELETE_AT_ONCE] for start in range(0, len(relatives), _DELETE_AT_ONCE)]
        results = run_parallel(self._delete, some, min(len(some), REMOTE_WORKERS))
        return {relative: error for errors in results for relative, error in errors.items()}

    def remove_directories(self, relatives: Iterable[str]) -> None:
        """Remove the objects without bytes by which consoles mark directories; an error leaves some behind."""
        self.remove_each([f"{relative}/" for relative in relatives])

    def _delete(self, relatives: Sequence[str]) -> dict[str, EdlCkptError]:
        """Remove up to a thousand objects; return the errors of those that S3 did not remove."""
        body = {"Objects": [{"Key": self._prefix + relative} for relative in relatives], "Quiet": True}
        try:
            answer = self._top.request_many("delete_objects", Delete=body)
        except EdlCkptError as error:
            return dict.fromkeys(relatives, error)
        failed: dict[str, EdlCkptError] = {}
        for item in answer.get("Errors", ()):
            relative = item["Key"].removeprefix(self._prefix)
            kind = AuthError if item.get("Code") == "AccessDenied" else EdlCkptError
            message = f"cannot be removed: S3 answers {item.get('Code')}"
            failed[relative] = kind(message, path=self.path(relative))
        return failed

    def facts(self) -> Iterator[Fact]:
        """Yield what is known without a write: the service, the credentials, the listing, the clock and versioning."""
        address, region, source = self._top.identity()
        yield Fact("service", f"{address}{f', region {region}' if region else ''}")
        origin, why = _SOURCES.get(source, source) or "nowhere", "only a public bucket can be read"
        yield judged("credentials from", origin, why, weak=not source)
        start, before = time.monotonic(), time.time()
        answer = self._top.request_many("list_objects_v2", Prefix=self._top.key, MaxKeys=1)
        seconds = time.monotonic() - start
        shown, why = f"yes, {seconds * 1000:.0f} ms", "every command makes some requests"
        yield judged("listing", shown, why, weak=seconds > _SLOW_SECONDS)
        yield _clock(answer, before + seconds / 2)
        with suppress(EdlCkptError):  # few may ask
            status = self._top.request_many("get_bucket_versioning").get("Status", "off")
            why = "deleted versions stay, and cost, until a lifecycle rule removes them"
            yield judged("bucket versioning", str(status).lower(), why, weak=status == "Enabled")

    def tried(self, relative: str) -> Iterator[Fact]:
        """Yield what it does with an object of ours, which the caller removes: conditions, and large objects."""
        target = self._target(relative)
        yield from _conditions(target)
        try:
            upload_id = target.begin_upload(lambda: None)
            try:
                target.upload("upload_part", b"part", UploadId=upload_id, PartNumber=1)
            finally:
                target.abort_upload(upload_id)
        except EdlCkptError as error:
            yield Fact("multipart uploads", f"no: {error.message}", Verdict.BROKEN, "every shard is one")
        else:
            yield Fact("multipart uploads", "yes")
        able, why = False, "only its journal tells what a killed command was uploading: let a lifecycle rule abort it"
        with suppress(EdlCkptError):
            able = bool(target.request_many("list_multipart_uploads", Prefix=target.key))
        yield yes("list of uploads", why, able=able)

    def stat(self, relative: str) -> ObjectStat | None:
        """Return an object's size, ETag and age; None when there is no such object."""
        answer = self._target(relative).head()
        if answer is None:
            return None
        size, written = int(answer["ContentLength"]), answer["LastModified"]
        age, write_id = (served_at(answer) - written).total_seconds(), answer.get("Metadata", {}).get(WRITE_ID)
        return ObjectStat(size, answer["ETag"], age, write_id, modified=written.timestamp())

    def new_object(self, relative: str, size_bytes: int, memory: PartMemory | None = None) -> Upload:
        """Begin an object of a known size; nothing is visible until it is completed."""
        return Upload(self._target(relative), size_bytes, memory)

    def parts_of(self, relative: str, upload_id: str, *, edges: Sequence[int], first: int, memory: PartMemory) -> Parts:
        """Return a writer of some parts of an upload that another process began."""
        return Parts(self._target(relative), upload_id, edges, first, memory)

    def copy_object(self, source: ObjectWriter, target: ObjectWriter) -> None:
        """Fill a new object with the bytes of a completed one of this process; the service copies them."""
        assert isinstance(source, Upload)  # noqa: S101 - they are of this store
        assert isinstance(target, Upload)  # noqa: S101
        target.copy(source)

    def open_uploads(self) -> Iterator[OpenUpload]:
        """Yield the uploads below the location that are neither completed nor aborted, if the service lists them."""
        with suppress(UnsupportedError):
            for upload in self._top.uploads():
                yield upload._replace(relative=upload.relative.removeprefix(self._prefix))

    def abort_upload(self, relative: str, upload_id: str) -> bool:
        """Abort an upload and discard its parts; a missing one is no error. False where the service cannot."""
        return self._target(relative).abort_upload(upload_id)

    def resume_object(self, relative: str, size_bytes: int, upload_id: str, write_id: str) -> Upload | None:
        """Return an earlier upload that has all its parts; None when it is gone or lacks some."""
        upload = self.new_object(relative, size_bytes)
        return upload if upload.adopt(upload_id, write_id) else None


_SKEW_SECONDS: Final = 60.0
_REFUSED_SKEW_SECONDS: Final = 840.0
"""S3 refuses requests whose time is 15 minutes off."""
_SLOW_SECONDS: Final = 0.5
_SOURCES: Final = {
    "explicit": "storage options",
    "env": "environment (AWS_ACCESS_KEY_ID)",
    "shared-credentials-file": "credentials file of AWS",
    "config-file": "configuration file of AWS",
    "iam-role": "role of this machine",
    "container-role": "role of this container",
    "assume-role-with-web-identity": "web identity (a Kubernetes service account)",
}


def _clock(answer: dict[str, object], now: float) -> Fact:
    """Return how far the clock of this machine is from that of the service."""
    told = told_time(answer)
    if told is None:
        return Fact("clock", "the service does not tell its time", Verdict.UNKNOWN)
    off = now - told.timestamp() - 0.5  # its header has whole seconds
    direction = "ahead of" if off > 0 else "behind"
    shown = f"{rounded_duration(abs(off))} {direction} the service" if abs(off) >= 2 else "right"
    verdict = Verdict.BROKEN if abs(off) > _REFUSED_SKEW_SECONDS else Verdict.WEAKER
    why = "S3 refuses requests that are 15 minutes off"
    return judged("clock", shown, why, weak=abs(off) > _SKEW_SECONDS, verdict=verdict)


def _conditions(target: S3Target) -> Iterator[Fact]:
    """Yield whether a write can depend on what is there. No command of ours needs it, as services differ."""
    note = "no command needs it: the lock is made of listings, and metadata is kept twice after a lock was lost"
    for name, condition in (("If-None-Match", {"IfNoneMatch": "*"}), ("If-Match", {"IfMatch": '"0"'})):
        try:
            target.request("put_object", Body=b"again", **condition)
        except (LockedError, NotFoundError):
            yield Fact(f"conditional writes ({name})", "yes")
        except UnsupportedError:
            yield Fact(f"conditional writes ({name})", "no", Verdict.FINE, note)
        except EdlCkptError as error:
            yield Fact(f"conditional writes ({name})", f"no: {error.message}", Verdict.FINE, note)
        else:
            yield Fact(f"conditional writes ({name})", "no: the condition is ignored", Verdict.FINE, note)
