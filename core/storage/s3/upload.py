"""Objects of known size, written at any offset from several threads, visible once completed."""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError, RefusedError, UnsupportedError
from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.base.parallel import awaited, patience, run_all
from edl_ckpt.core.storage.interface import ObjectWriter, SentPart
from edl_ckpt.core.storage.parts import Part, PartMemory, least_part
from edl_ckpt.core.storage.s3.client import S3Target, is_md5

MIN_PART_BYTES: Final = 5 << 20
"""The least that S3 accepts for each part of an upload but the last."""
WRITE_ID: Final = "edl-ckpt-write-id"
_COPIES: Final = 8
"""Parts of an object that the service copies at a time."""
_LOST_SECONDS: Final = 1.0
"""How long a service may be silent while uploads are looked for whose beginning it did not answer."""


def _named(part: SentPart) -> dict[str, Any]:
    """Return what completes an upload with a part."""
    checksum = {"ChecksumCRC32C": part.crc32c} if part.crc32c else {}
    return {"PartNumber": part.number + 1, "ETag": part.etag, **checksum}


def _differ(one: SentPart, other: SentPart) -> bool:
    """Say whether two parts have other bytes, by a checksum that the service reports of both."""
    if one.crc32c and other.crc32c:
        return one.crc32c != other.crc32c
    etags = one.etag.strip('"'), other.etag.strip('"')
    return all(map(is_md5, etags)) and etags[0] != etags[1]


@dataclass(slots=True, eq=False)
class _Filling:
    """A part that receives bytes. Whoever comes first opens it, and the others wait for that."""

    part: Part | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Upload(ObjectWriter):
    """A new object of known size; several threads write at any offset, and it appears once it is completed.

    Each byte must be written exactly once. Bytes are collected in parts. A full part is uploaded beside the writing,
    and its memory freed; its error is raised by the next write, or at the end. All objects with one `memory` keep its
    bound together. A small object is an upload of one part, and not a single PUT: once an upload is aborted, it never
    becomes visible, even if this process was stopped and goes on later. Only an object without bytes is a single PUT.
    """

    _first = 0
    """The number of the first of these parts in the upload."""

    def __init__(
        self, target: S3Target, size_bytes: int, memory: PartMemory | None = None, edges: Sequence[int] = ()
    ) -> None:
        self.path = target.path
        self.size_bytes = size_bytes
        # Parts as small as S3 allows, since open ones are held in memory.
        self._edges = edges or [*range(0, max(size_bytes, 1), least_part(size_bytes, MIN_PART_BYTES)), size_bytes]
        """Where each part begins in the object, and where the last one ends."""
        self.verified = True
        """False once S3 did not report the checksum of a part. Then the object must be read back."""
        self._target = target
        self.write_id = new_id()
        self._has_own_memory = memory is None
        self._memory = memory or PartMemory()
        self._memory.expect(self._size_of(0))
        self._parts: dict[int, _Filling] = {}
        self._between: list[tuple[int, bytes]] = []
        self._sent_parts: dict[int, SentPart] = {}
        self._sent: list[Future[None]] = []
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def begin(self) -> str:
        """Open the upload on the service and return its id, '' for an object without bytes."""
        if self.size_bytes and not self.upload_id:
            since, lost = time.monotonic(), threading.Event()
            try:
                self.upload_id = self._target.begin_upload(lost.set, Metadata={WRITE_ID: self.write_id})
            finally:
                if lost.is_set():
                    self._abort_lost(since)
        return self.upload_id

    def _abort_lost(self, since: float) -> None:
        """Abort the uploads that were opened since a moment, and whose answers were lost: nobody else knows them.

        Whoever begins an upload has its name to itself meanwhile. A service that does not answer, or does not list
        uploads, leaves that to `recover`.
        """
        with suppress(EdlCkptError), patience(_LOST_SECONDS):
            for other in self._target.uploads():
                begun_here = other.age_seconds <= time.monotonic() - since + 1  # services round to seconds
                if other.relative == self._target.key and other.upload_id != self.upload_id and begun_here:
                    self._target.abort_upload(other.upload_id)

    def write_between(self, between: Iterable[tuple[int, bytes]]) -> None:
        """Take the (offset, bytes) that stand between values: each part gets its own when its first byte comes."""
        self._between = sorted(between)
        self.bytes_written += sum(len(data) for _, data in self._between)

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write all of `data` at `offset`; upload each part that is now full."""
        view = memoryview(data).cast("B")
        if offset < 0 or offset + len(view) > self.size_bytes:
            raise EdlCkptError("cannot write past the end of the object", path=self.path, offset=offset)
        done = 0
        while done < len(view):
            number = bisect_right(self._edges, offset + done) - 1
            at = offset + done - self._edges[number]
            size = min(self._size_of(number) - at, len(view) - done)
            self._fill(number, at, view[done : done + size])
            done += size
        with self._lock:
            self.bytes_written += len(view)

    def _size_of(self, number: int) -> int:
        return self._edges[number + 1] - self._edges[number]

    def _fill(self, number: int, at: int, data: memoryview) -> None:
        with self._lock:
            filling = self._parts.setdefault(number, _Filling())
        with filling.lock:
            if filling.part is None:
                filling.part = self._open(number)
        part = filling.part
        part.write(at, data)
        with filling.lock:
            part.filled += len(data)
            full = part.filled >= part.size_bytes
        if full:
            self._send(number, part)

    def _open(self, number: int) -> Part:
        """Return a part with the bytes that stand between values."""
        part = self._memory.open(self._size_of(number))
        start = self._edges[number]
        first = max(bisect_right(self._between, start, key=itemgetter(0)) - 1, 0)
        for offset, data in islice(self._between, first, None):
            if offset >= start + part.size_bytes:
                break
            some = memoryview(data)[max(start - offset, 0) : start + part.size_bytes - offset]
            part.write(max(offset - start, 0), some)
            part.filled += len(some)
        return part

    def _send(self, number: int, part: Part) -> None:
        """Upload a full part beside the writing; one on the local disk at once, so that not all of them get there."""
        is_near, data = part.data is not None, self._memory.lift(part)
        with self._lock:
            self._parts.pop(number, None)
            if self._error is not None:
                self._memory.drop(part)
                raise self._error
            if is_near:
                self._sent.append(self._memory.senders.begin(lambda: self._upload(number, part, data)))
        if not is_near:
            self._upload(number, part, data)

    def _upload(self, number: int, part: Part, data: bytearray) -> None:
        try:
            name = self._first + number
            answer = self._target.upload("upload_part", data, UploadId=self.upload_id, PartNumber=name + 1)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._memory.drop(part)
        with self._lock:
            sent = SentPart(name, part.size_bytes, answer["ETag"], answer["verified"], answer.get("ChecksumCRC32C", ""))
            self._sent_parts[number] = sent
            self.verified = self.verified and answer["verified"]

    def finish(self) -> None:
        """Make sure that every byte was written and uploaded; EdlCkptError when one was not."""
        self._wait()
        for number in range(len(self._edges) - 1 if self._between else 0):
            if number not in self._sent_parts and number not in self._parts:
                self._fill(number, 0, memoryview(b""))  # a part without a value
        self._wait()
        if self._has_own_memory:
            self._memory.close()
        if self._parts or not self._is_whole():
            raise EdlCkptError("not every byte of the object was written", path=self.path)

    def _is_whole(self) -> bool:
        """Say whether the parts follow each other to the end of the object, whoever has cut it."""
        sizes = [part.size_bytes for part in self._sent_parts.values()]
        return sum(sizes) == self.size_bytes and max(self._sent_parts, default=-1) + 1 == len(sizes)

    def take(self, parts: Iterable[SentPart]) -> None:
        """Take parts that another process has sent to this upload; one that comes again replaces itself."""
        with self._lock:
            for part in parts:
                known = self._sent_parts.get(part.number)
                self._sent_parts[part.number] = part
                self.bytes_written += part.size_bytes - (0 if known is None else known.size_bytes)
                self.verified = self.verified and part.verified

    def join(self, parts: Iterable[SentPart]) -> None:
        """Take all parts, in this order, of an object whose size is theirs; numbers may be missing between theirs."""
        with self._lock:
            self._sent_parts = dict(enumerate(parts))
            self.size_bytes = self.bytes_written = sum(part.size_bytes for part in self._sent_parts.values())
            self.verified = self.verified and all(part.verified for part in self._sent_parts.values())

    def copy(self, source: Upload) -> None:
        """Begin with the bytes of a completed object of the same bucket, part by part: the service copies them itself.

        EdlCkptError when it reports another checksum than that of the part that was sent.
        """
        self.begin()
        parts = list(source._sent_parts.items())
        run_all(lambda numbered: self._copy_part(source, *numbered), parts, _COPIES)
        self.bytes_written = self.size_bytes

    def _copy_part(self, source: Upload, number: int, part: SentPart) -> None:
        first, end = source._edges[number], source._edges[number + 1]
        span, named = f"bytes={first}-{end - 1}", {"UploadId": self.upload_id, "PartNumber": number + 1}
        there = {"Bucket": source._target.bucket, "Key": source._target.key}
        try:
            answer = self._target.request("upload_part_copy", CopySource=there, CopySourceRange=span, **named)
            copied = answer["CopyPartResult"]
        except UnsupportedError:
            data = source._target.request("get_object", end - first, Range=span)["Body"]
            copied = self._target.upload("upload_part", data, **named)
        found = SentPart(number, part.size_bytes, copied["ETag"], part.verified, copied.get("ChecksumCRC32C", ""))
        if _differ(part, found):
            raise EdlCkptError("S3 copied other bytes than it has; nothing was published", path=self.path)
        with self._lock:
            self._sent_parts[number] = found

    def _wait(self) -> None:
        """Wait for the parts that are on their way."""
        for sent in self._sent:
            awaited(sent)
        self._sent.clear()

    def adopt(self, upload_id: str, write_id: str) -> bool:
        """Take over an earlier upload; return True when it has all its parts, however they are cut."""
        self.write_id = write_id
        self.verified = False  # another process compared its parts
        wanted = {"Key": self._target.key, "UploadId": upload_id}
        try:
            answers = [*self._target.pages("list_parts", "PartNumberMarker", **wanted)]
        except (LockedError, NotFoundError):
            return False
        for part in (part for answer in answers for part in answer.get("Parts", ())):
            number, crc = part["PartNumber"] - 1, part.get("ChecksumCRC32C", "")
            self._sent_parts[number] = SentPart(number, int(part["Size"]), part["ETag"], verified=False, crc32c=crc)
        if not self._is_whole():
            return False
        self.upload_id, self.bytes_written = upload_id, self.size_bytes
        return True

    def complete(self, *, replace: bool = False) -> None:
        """Make the object visible, whole. Raises RefusedError when the name is taken, unless `replace` is set.

        When a reply is lost, the write id or the parts of the object that is there show whose it is.
        """
        try:
            self._complete(**({} if replace else {"IfNoneMatch": "*"}))
        except UnsupportedError:
            if self._target.head() is not None:
                raise RefusedError("already exists; nothing was changed", path=self.path) from None
            self._complete()
        except (LockedError, NotFoundError):
            there = self._target.head()
            if there is None:
                raise
            if not self._is_ours(there):
                raise RefusedError("already exists; nothing was changed", path=self.path) from None
        self.completed = True

    def _complete(self, **condition: str) -> None:
        if not self.size_bytes:
            answer = self._target.upload("put_object", b"", **condition, Metadata={WRITE_ID: self.write_id})
            self.verified = answer["verified"]
            return
        parts = [_named(part) for _, part in sorted(self._sent_parts.items())]
        whole = {"UploadId": self.upload_id, "MultipartUpload": {"Parts": parts}}
        self._target.request("complete_multipart_upload", **whole, **condition)

    def _is_ours(self, found: Mapping[str, Any]) -> bool:
        """Return True when an object is this upload: by its write id, or by the checksum of an upload taken over."""
        if found.get("Metadata", {}).get(WRITE_ID) == self.write_id:
            return True
        parts = [part.etag.strip('"') for _, part in sorted(self._sent_parts.items())]
        if not parts or not all(map(is_md5, parts)):
            return False
        whole = hashlib.md5(bytes.fromhex("".join(parts)), usedforsecurity=False).hexdigest()
        return str(found["ETag"]).strip('"') == f"{whole}-{len(parts)}"

    def abort(self) -> None:
        """Abort the upload, unless it was completed."""
        if self._has_own_memory:
            self._memory.close()
        self._parts.clear()
        if self.upload_id and not self.completed:
            self._target.abort_upload(self.upload_id)


class Parts(Upload):
    """Some parts of an upload that another process began and will complete: those between `edges`, from `first` on.

    Bytes for other parts are dropped: whoever passes over a source writes all of it, and others write the rest.
    """

    def __init__(self, target: S3Target, upload_id: str, edges: Sequence[int], first: int, memory: PartMemory) -> None:
        super().__init__(target, edges[-1], memory, edges)
        self.upload_id, self._first = upload_id, first

    def write(self, offset: int, data: memoryview | bytes) -> None:
        """Write those of the bytes that belong to these parts."""
        view = memoryview(data).cast("B")
        start, end = max(offset, self._edges[0]), min(offset + len(view), self._edges[-1])
        if start < end:
            super().write(start, view[start - offset : end - offset])

    def _is_whole(self) -> bool:
        return len(self._sent_parts) == len(self._edges) - 1

    def sent(self) -> list[SentPart]:
        """Send what is left, and return all parts as whoever completes the upload needs them; errors as `finish`."""
        self.finish()
        return [part for _, part in sorted(self._sent_parts.items())]

    def complete(self, *, replace: bool = False) -> None:  # noqa: ARG002 - the protocol has it
        """Raise EdlCkptError: only whoever began the upload completes it."""
        raise EdlCkptError("parts cannot be completed apart from their upload", path=self.path)

    def abort(self) -> None:
        """Do nothing: the upload is another process's."""
