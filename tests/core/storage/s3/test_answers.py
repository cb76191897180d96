"""Good answers say to us what they say to botocore."""

from __future__ import annotations

from typing import Any

import pytest

from edl_ckpt.core.storage.s3.answers import read_answer
from edl_ckpt.core.storage.s3.session import Service, settings
from edl_ckpt.core.storage.s3.wire import DamagedError, Headers

_OBJECT = {
    "Date": "Sun, 29 Nov 2026 13:00:00 GMT",
    "ETag": '"d41d8cd98f00b204e9800998ecf8427e"',
    "Last-Modified": "Sun, 29 Nov 2026 12:00:00 GMT",
    "Content-Length": "10",
    "Content-Range": "bytes 0-9/100",
    "x-amz-meta-edl-ckpt-write-id": "abc",
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-checksum-crc32c": "AAAAAA==",
}
_SPACE = ' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
_BEGUN = "<InitiateMultipartUploadResult{}><Bucket>b</Bucket><UploadId>an-id</UploadId></InitiateMultipartUploadResult>"
_ENDED = "<CompleteMultipartUploadResult><ETag>&quot;x-1&quot;</ETag></CompleteMultipartUploadResult>"
_CASES = [
    ("get_object", "GetObject", _OBJECT, ""),
    ("head_object", "HeadObject", _OBJECT, ""),
    ("upload_part", "UploadPart", {"ETag": '"x"', "x-amz-checksum-crc32c": "AAAAAA=="}, ""),
    ("create_multipart_upload", "CreateMultipartUpload", {"x-amz-checksum-algorithm": "CRC32C"}, _BEGUN.format("")),
    ("create_multipart_upload", "CreateMultipartUpload", {}, _BEGUN.format(_SPACE)),
    ("complete_multipart_upload", "CompleteMultipartUpload", {"Date": _OBJECT["Date"]}, _ENDED),
]


@pytest.mark.usefixtures("s3")
@pytest.mark.parametrize(("method", "operation", "headers", "body"), _CASES)
def test_an_answer_says_what_botocore_reads(method: str, operation: str, headers: dict[str, str], body: str) -> None:
    """Each fact that is read is botocore's, by the same name."""
    service = Service(*settings({}, "s3://"))
    found = Headers({name.lower(): text for name, text in headers.items()})
    shape = service.client.meta.service_model.operation_model(operation).output_shape
    is_object = method == "get_object"
    raw = {"status_code": 200, "headers": found, "body": b"" if is_object else body.encode()}
    theirs: dict[str, Any] = service.parser.parse(raw, shape)
    ours = read_answer(method, 200, found, body.encode())
    assert ours.pop("ResponseMetadata")["HTTPHeaders"] == theirs["ResponseMetadata"]["HTTPHeaders"]
    assert ours.pop("Body", None) == (b"" if is_object else None)
    assert ours.pop("Metadata") == theirs.get("Metadata", {})
    assert ours == {name: theirs[name] for name in ours}
    expected = {"ContentRange", "UploadId", "ChecksumCRC32C"}
    if method == "head_object":
        expected |= {"ContentLength", "LastModified"}
    assert {name for name in expected if name in theirs} <= set(ours)


@pytest.mark.parametrize(
    ("method", "headers", "body"),
    [
        ("create_multipart_upload", {}, b"<html>"),
        ("create_multipart_upload", {}, b"<InitiateMultipartUploadResult/>"),
        ("head_object", {"content-length": "many"}, b""),
        ("list_objects_v2", {}, b"<html>"),
    ],
)
def test_what_is_no_answer_is_damaged(method: str, headers: dict[str, str], body: bytes) -> None:
    """An answer without what makes it one may be right the next time."""
    with pytest.raises(DamagedError):
        read_answer(method, 200, Headers(headers), body)
