"""What an S3 service can do: what it says of itself, and what it does with small objects of ours."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError, LockedError, NotFoundError, UnsupportedError
from edl_ckpt.core.base.words import rounded_duration
from edl_ckpt.core.storage.location import Fact, Verdict, judged
from edl_ckpt.core.storage.s3.client import S3Target, told_time

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


def told_facts(top: S3Target) -> Iterator[Fact]:
    """Yield what can be said of a location without a write: the service, the credentials, the clock and the listing."""
    address, region, source = top.identity()
    yield Fact("service", f"{address}{f', region {region}' if region else ''}")
    origin, why = _SOURCES.get(source, source) or "nowhere", "only a public bucket can be read"
    yield judged("credentials from", origin, why, weak=not source)
    start, before = time.monotonic(), time.time()
    answer = top.request_many("list_objects_v2", Prefix=top.key, MaxKeys=1)
    seconds = time.monotonic() - start
    shown, why = f"yes, {seconds * 1000:.0f} ms", "every command makes some requests"
    yield judged("listing", shown, why, weak=seconds > _SLOW_SECONDS)
    yield _clock(answer, before + seconds / 2)
    with suppress(EdlCkptError):  # few may ask
        status = top.request_many("get_bucket_versioning").get("Status", "off")
        why = "deleted versions stay, and cost, until a lifecycle rule removes them"
        yield judged("bucket versioning", str(status).lower(), why, weak=status == "Enabled")


def _clock(answer: dict[str, object], now: float) -> Fact:
    """Return how far the clock of this machine is from that of the service."""
    told = told_time(answer)
    if told is None:
        return Fact("clock", "the service does not tell its time", Verdict.UNKNOWN)
    off = now - told.timestamp() - 0.5  # its header has whole seconds
    shown = (
        f"{rounded_duration(abs(off))} {'ahead of' if off > 0 else 'behind'} the service" if abs(off) >= 2 else "right"
    )
    verdict = Verdict.BROKEN if abs(off) > _REFUSED_SKEW_SECONDS else Verdict.WEAKER
    why = "S3 refuses requests that are 15 minutes off"
    return judged("clock", shown, why, weak=abs(off) > _SKEW_SECONDS, verdict=verdict)


def tried_facts(target: S3Target) -> Iterator[Fact]:
    """Yield what the service does with an object of ours, which the caller removes: conditions, and large objects."""
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
    try:
        target.request_many("list_multipart_uploads", Prefix=target.key)
    except EdlCkptError:
        why = "what a killed command was uploading is found by its journal only: let a lifecycle rule abort old uploads"
        yield Fact("list of uploads", "no", Verdict.WEAKER, why)
    else:
        yield Fact("list of uploads", "yes")


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
