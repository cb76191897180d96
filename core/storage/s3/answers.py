"""Good answers of the requests that are made by the hundred, read as botocore reads them, in a tenth of its time.

Only what `S3Target` and `S3Store` use of an answer is read. botocore's own parser reads errors.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote_plus
from xml.etree import ElementTree as ET

from edl_ckpt.core.storage.s3.session import moment
from edl_ckpt.core.storage.s3.wire import DamagedError, Headers

_METADATA: Final = "x-amz-meta-"
_TEXTS: Final = {
    "etag": "ETag",
    "content-range": "ContentRange",
    "x-amz-checksum-crc32c": "ChecksumCRC32C",
    "x-amz-checksum-algorithm": "ChecksumAlgorithm",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-customer-algorithm": "SSECustomerAlgorithm",
}
"""botocore's names of facts that are texts, by the headers that have them."""


def read_answer(method: str, status: int, headers: Headers, body: Any) -> dict[str, Any]:
    """Return what a good answer to a method of botocore's client says; DamagedError for what cannot be read."""
    answer: dict[str, Any] = {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers}}
    if method == "list_objects_v2":
        return answer | _listing(bytes(body))
    if method == "create_multipart_upload":
        answer["UploadId"] = _upload_id(bytes(body))
    if method == "get_object":
        answer["Body"] = body
    metadata = {}
    for name, text in headers.items():
        if name in _TEXTS:
            answer[_TEXTS[name]] = text
        elif name.startswith(_METADATA):
            metadata[name.removeprefix(_METADATA)] = text
    answer["Metadata"] = metadata
    if method == "head_object":
        answer |= _size_and_time(headers)
    return answer


def _size_and_time(headers: Headers) -> dict[str, Any]:
    """Return the size and the time of an object, where the answer has them."""
    found: dict[str, Any] = {}
    try:
        if "content-length" in headers:
            found["ContentLength"] = int(headers["content-length"])
        if "last-modified" in headers:
            found["LastModified"] = moment(headers["last-modified"])
    except ValueError as error:
        raise DamagedError("no size or time of an object") from error
    return found


def _parsed(data: bytes) -> tuple[ET.Element, str]:
    """Return the root of a document, and the namespace of its names as the library writes it."""
    root = ET.fromstring(data)  # noqa: S314 - as botocore does; expat bounds what entities make
    return root, root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""


def _upload_id(data: bytes) -> str:
    try:
        root, space = _parsed(data)
    except ET.ParseError as error:
        raise DamagedError("no upload (ParseError)") from error
    found = root.findtext(f"{space}UploadId")
    if not found:
        raise DamagedError("an upload without an id")
    return found


def _listing(data: bytes) -> dict[str, Any]:
    """Return a page of a listing, as botocore does in four times the time; DamagedError for what is none."""
    try:
        root, space = _parsed(data)
        name_of = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
        rows = [
            {fact.tag.removeprefix(space): fact.text or "" for fact in row} for row in root.iter(f"{space}Contents")
        ]
        prefixes = [row.findtext(f"{space}Prefix") or "" for row in root.iter(f"{space}CommonPrefixes")]
        return {
            "IsTruncated": root.findtext(f"{space}IsTruncated") == "true",
            "NextContinuationToken": root.findtext(f"{space}NextContinuationToken"),
            "Contents": [
                {
                    "Key": name_of(row["Key"]),
                    "Size": int(row["Size"]),
                    "LastModified": moment(row["LastModified"]),
                    "ETag": row.get("ETag", ""),
                }
                for row in rows
            ],
            "CommonPrefixes": [{"Prefix": name_of(prefix)} for prefix in prefixes],
        }
    except (ET.ParseError, KeyError, ValueError) as error:
        raise DamagedError(f"no listing ({type(error).__name__})") from error
