"""The requests that are made by the thousand, without botocore's model.

They are a GET, a HEAD, a page of a listing, and an upload: its beginning, each of its parts, and its end.

botocore takes 2 ms of CPU for a small GET, and 100 ms for the answer of a listing. Its model is passed over here, and
nothing else of it: the first request to a bucket goes through botocore's client, and shows the address that was
resolved, the region and the signer, whose credentials are fresh each time. From then on requests are signed by that
signer and sent through the same connections, with their proxies, certificates and timeouts. Whatever looks unusual goes
through the client again: redirects, refused credentials, other signatures, other parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_plus, urlencode, urlsplit, urlunsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from edl_ckpt.core.storage.s3.wire import DamagedError, Reply, Wire, wire_of

_OPERATIONS: Final = {
    "get_object": ("GET", "GetObject", frozenset({"Bucket", "Key", "Range", "IfMatch"})),
    "head_object": ("HEAD", "HeadObject", frozenset({"Bucket", "Key"})),
    "create_multipart_upload": ("POST", "CreateMultipartUpload", frozenset({"Bucket", "Key", "Metadata"})),
    "upload_part": ("PUT", "UploadPart", frozenset({"Bucket", "Key", "UploadId", "PartNumber", "ContentMD5", "Body"})),
    "complete_multipart_upload": (
        "POST",
        "CompleteMultipartUpload",
        frozenset({"Bucket", "Key", "UploadId", "MultipartUpload", "IfNoneMatch"}),
    ),
    "list_objects_v2": ("GET", "ListObjectsV2", frozenset({"Bucket", "Prefix", "Delimiter", "ContinuationToken"})),
}
"""By the name of botocore's method: the method of HTTP, the operation, and the parameters that are understood here."""
_HEADERS: Final = {
    "Range": "Range",
    "IfMatch": "If-Match",
    "IfNoneMatch": "If-None-Match",
    "ContentMD5": "Content-MD5",
}
_QUERY: Final = {
    "Prefix": "prefix",
    "Delimiter": "delimiter",
    "ContinuationToken": "continuation-token",
    "PartNumber": "partNumber",
    "UploadId": "uploadId",
}
_PART_FACTS: Final = {
    "etag": "ETag",
    "x-amz-server-side-encryption": "ServerSideEncryption",
    "x-amz-server-side-encryption-customer-algorithm": "SSECustomerAlgorithm",
}
_GOOD: Final = frozenset({200, 206})
_PLAIN_ERRORS: Final = frozenset({404, 412, 416, 429, 500, 502, 503, 504})
"""Errors that mean the same whoever asks; botocore's client looks into all others."""
_SIGNATURE: Final = "s3v4"
_UNCLEAR: Final = frozenset({"", ".", ".."})
"""Parts of a path that clients may fold."""
_MOST_ERROR_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class _Route:
    """The way to one bucket, as botocore found it."""

    url: str
    """The address of the bucket, without a slash at its end."""
    agent: str
    signing_name: str
    region: str
    signer: Any
    wire: Wire | None
    """Its connections; None where botocore must make each request."""

    @property
    def waits(self) -> bool:
        """Say whether the credentials must be fetched anew before a request can be signed."""
        refresh_needed = getattr(getattr(self.signer, "_credentials", None), "refresh_needed", None)
        return refresh_needed is not None and bool(refresh_needed())

    def sign(self, request: Any) -> Any:
        """Return a request as it is sent, signed with the credentials of this moment."""
        self.signer.get_auth_instance(self.signing_name, self.region, _SIGNATURE).add_auth(request)
        return request.prepare()


class _Settings(NamedTuple):
    """What botocore's signer reads of the configuration of a client."""

    s3: dict[str, bool]


class Direct:
    """Requests beside a client of botocore. Several threads may use it.

    The MD5 of each part is among the signed headers, so its SHA-256 is not computed too, by which botocore signs bodies
    over HTTP. A service that refuses that, or a user who configures `payload_signing_enabled`, gets it.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        config = getattr(client.meta, "config", None)
        self._signs_bodies = bool((getattr(config, "s3", None) or {}).get("payload_signing_enabled"))
        self._routes: dict[str, _Route] = {}
        self._seen = threading.local()
        endpoint = getattr(client, "_endpoint", None)  # no public name leads to the connections of a client
        self._session: Any = getattr(endpoint, "http_session", None)
        self._send: Callable[[Any], Any] | None = getattr(self._session, "send", None)
        client.meta.events.register("before-sign.s3", self._note)

    def _note(self, *, request: Any, **signing: Any) -> None:
        """Remember what botocore signs in this thread."""
        self._seen.last = (request.url, request.headers.get("User-Agent", ""), signing)

    @contextmanager
    def learning(self, method: str, parameters: Mapping[str, Any]) -> Iterator[None]:
        """Learn the way to a bucket from a request that botocore makes while the block runs, if it succeeds."""
        self._seen.last = None
        yield
        if self._seen.last is None or method not in _OPERATIONS or self._send is None:
            return
        url, agent, signing = self._seen.last
        parts = urlsplit(url)
        key = quote(parameters["Key"], safe="/~") if "Key" in parameters else ""
        if signing.get("signature_version") != _SIGNATURE or not parts.path.endswith(f"/{key}" if key else ""):
            self._routes.pop(parameters["Bucket"], None)
            return
        path = parts.path.removesuffix(key).rstrip("/")
        agent = agent.decode() if isinstance(agent, bytes) else agent
        base = urlunsplit((parts.scheme, parts.netloc, path, "", ""))
        names = (signing["signing_name"], signing["region_name"], signing["request_signer"])
        known = self._routes.get(parameters["Bucket"])
        wire = known.wire if known is not None and known.url == base else wire_of(self._session, base)
        self._routes[parameters["Bucket"]] = _Route(base, agent, *names, wire)

    def _route(self, method: str, parameters: Mapping[str, Any]) -> _Route | None:
        """Return the way of a request, None when botocore must make it."""
        route = self._routes.get(parameters.get("Bucket", ""))
        understood = _OPERATIONS[method][2] if method in _OPERATIONS else frozenset[str]()
        is_clear = parameters.keys() <= understood and _is_clear(parameters.get("Key", "k"))
        return route if is_clear and self._send is not None else None

    def wire(self, method: str, parameters: Mapping[str, Any]) -> Wire | None:
        """Return the connections by which whoever asks can make a request himself; None when it must be waited for."""
        route = self._route(method, parameters)
        return None if route is None or route.waits else route.wire

    def answer(
        self, method: str, parameters: Mapping[str, Any], send: Callable[[Any], Any] | None = None
    ) -> dict[str, Any] | None:
        """Make a request and return botocore's answer to it, with a body as a stream; None when botocore must make it.

        `send` sends it, by default botocore. Raises botocore's errors of the connection, and its ClientError.
        """
        route, send = self._route(method, parameters), send or self._send
        if route is None or send is None:
            return None
        verb, operation, _ = _OPERATIONS[method]
        response = send(_request(route, verb, parameters, signs_body=self._signs_bodies))
        if response.status_code not in _GOOD:
            _raise_plain(response, operation, is_head=verb == "HEAD")
            self._signs_bodies |= "ContentMD5" in parameters  # perhaps that is what it refuses; botocore signs them
            return None
        headers = {name.lower(): value for name, value in response.raw.headers.items()}
        answer = {"ResponseMetadata": {"HTTPStatusCode": response.status_code, "HTTPHeaders": headers}}
        if method == "list_objects_v2":
            return answer | _listing(_whole(response.raw, headers))
        if method == "create_multipart_upload":
            return answer | _begun(_whole(response.raw, headers))
        if method == "complete_multipart_upload":
            _check_completed(_whole(response.raw, headers), operation)
            return answer
        if method == "upload_part":
            _whole(response.raw, headers)
            return answer | {name: headers[header] for header, name in _PART_FACTS.items() if header in headers}
        answer |= _facts(headers)
        if verb == "HEAD":
            response.raw.close()
            return answer
        return answer | {"Body": response if isinstance(response, Reply) else Body(response.raw)}


class Body:
    """The body of an answer, received without a copy; its connection is used again once it was read to its end."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._stream = getattr(raw, "_fp", raw)  # urllib3's own `readinto` copies
        if not hasattr(self._stream, "readinto"):
            self._stream = raw

    def read(self, size: int | None = None) -> bytes:
        """Return so many bytes, or all."""
        data: bytes = self._stream.read() if size is None else self._stream.read(size)
        return data

    def readinto(self, buffer: memoryview) -> int:
        """Fill a part of a buffer and return its size, 0 at the end."""
        count: int = self._stream.readinto(buffer)
        return count

    def close(self) -> None:
        """Give the connection back, or close it when bytes are left."""
        if self._stream is not self._raw and self._stream.isclosed():
            self._raw.release_conn()
        else:
            self._raw.close()


def _is_clear(key: str) -> bool:
    return not any(part in _UNCLEAR for part in key.split("/"))


def _request(route: _Route, verb: str, parameters: Mapping[str, Any], *, signs_body: bool) -> Any:
    from botocore.awsrequest import AWSRequest

    headers = {header: parameters[name] for name, header in _HEADERS.items() if name in parameters}
    headers["User-Agent"] = route.agent
    headers |= {f"x-amz-meta-{name}": value for name, value in parameters.get("Metadata", {}).items()}
    query = {short: str(parameters[name]) for name, short in _QUERY.items() if name in parameters}
    if "Key" in parameters:
        url = f"{route.url}/{quote(parameters['Key'], safe='/~')}"
    else:
        query = {"list-type": "2", "encoding-type": "url"} | query
        url = route.url if urlsplit(route.url).path else f"{route.url}/"
    if query or verb == "POST":  # a POST without a query begins an upload
        url = f"{url}?{urlencode(query, quote_via=quote, safe='~') or 'uploads'}"
    data = parameters.get("Body", b"")
    if "MultipartUpload" in parameters:
        data = _parts_document(parameters["MultipartUpload"]["Parts"])
    request = AWSRequest(verb, url, headers=headers, data=data, stream_output=True)
    if "ContentMD5" in parameters:
        request.context["client_config"] = _Settings({"payload_signing_enabled": signs_body})
    return route.sign(request)


def _raise_plain(response: Any, operation: str, *, is_head: bool) -> None:
    """Raise the ClientError in an answer; return when botocore's client must look into it."""
    from botocore.exceptions import ClientError

    status = response.status_code
    with closing(response.raw) as raw:
        data = b"" if is_head else raw.read(_MOST_ERROR_BYTES)
        length = raw.headers.get("Content-Length") or ""
    if not is_head and length.isdecimal() and len(data) < min(int(length), _MOST_ERROR_BYTES):
        raise DamagedError("an error was cut short")  # it may say that the bucket is missing, and not an object
    if status not in _PLAIN_ERRORS:
        return
    code = message = ""
    try:
        root = ET.fromstring(data)  # noqa: S314 - as botocore does; expat bounds what entities make
        code, message = (root.findtext(f"{{*}}{name}") or root.findtext(name) or "" for name in ("Code", "Message"))
    except ET.ParseError:  # a HEAD, or a proxy
        pass
    error = {"Code": code or str(status), "Message": message}
    raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": status}}, operation)


def _facts(headers: Mapping[str, str]) -> dict[str, Any]:
    """Return what the headers of an object say, by botocore's names."""
    facts: dict[str, Any] = {
        "Metadata": {n.removeprefix("x-amz-meta-"): v for n, v in headers.items() if n.startswith("x-amz-meta-")}
    }
    for header, name in (("etag", "ETag"), ("content-range", "ContentRange")):
        if header in headers:
            facts[name] = headers[header]
    if "content-length" in headers:
        facts["ContentLength"] = int(headers["content-length"])
    if "last-modified" in headers:
        facts["LastModified"] = moment(headers["last-modified"])
    return facts


def _whole(raw: Any, headers: Mapping[str, str]) -> bytes:
    """Return a whole body; DamagedError when it ended early."""
    with closing(raw):
        data: bytes = raw.read()
    if int(headers.get("content-length", len(data))) != len(data):
        raise DamagedError(f"{len(data)} of {headers['content-length']} bytes arrived")
    return data


def _begun(data: bytes) -> dict[str, Any]:
    """Return the id of an upload that was begun; DamagedError for an answer without one."""
    try:
        root = ET.fromstring(data)  # noqa: S314 - as botocore does; expat bounds what entities make
    except ET.ParseError as error:
        raise DamagedError("no answer to the beginning of an upload") from error
    found = root.findtext("{*}UploadId") or root.findtext("UploadId")
    if not found:
        raise DamagedError("an upload was begun without an id")
    return {"UploadId": found}


def _parts_document(parts: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the names of the parts of an upload, in XML."""
    found = ((escape(part["ETag"]), part["PartNumber"]) for part in parts)
    rows = (f"<Part><ETag>{etag}</ETag><PartNumber>{number}</PartNumber></Part>" for etag, number in found)
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<CompleteMultipartUpload xmlns="{space}">{"".join(rows)}</CompleteMultipartUpload>'.encode()


def _check_completed(data: bytes, operation: str) -> None:
    """Raise the ClientError that S3 may put into the answer of a completion although its status is good."""
    from botocore.exceptions import ClientError

    try:
        root = ET.fromstring(data.strip())  # noqa: S314 - as botocore does; expat bounds what entities make
    except ET.ParseError as error:
        raise DamagedError("no answer to the end of an upload") from error
    if root.tag.rpartition("}")[2] == "Error":
        found = {"Code": root.findtext("{*}Code") or root.findtext("Code") or "", "Message": ""}
        raise ClientError({"Error": found, "ResponseMetadata": {"HTTPStatusCode": 500}}, operation)


def _listing(data: bytes) -> dict[str, Any]:
    """Return a page of a listing, as botocore does; DamagedError for what is none."""
    try:
        return _parsed(data)
    except (ET.ParseError, KeyError, ValueError) as error:
        raise DamagedError(f"no listing ({type(error).__name__})") from error


def _parsed(data: bytes) -> dict[str, Any]:
    root = ET.fromstring(data)  # noqa: S314 - as botocore does; expat bounds what entities make
    space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
    is_quoted = root.findtext(f"{space}EncodingType") == "url"
    rows = [{each.tag.removeprefix(space): each.text or "" for each in row} for row in root.iter(f"{space}Contents")]
    prefixes = [row.findtext(f"{space}Prefix") or "" for row in root.iter(f"{space}CommonPrefixes")]
    page = {
        "IsTruncated": root.findtext(f"{space}IsTruncated") == "true",
        "Contents": [
            {
                "Key": unquote_plus(row["Key"]) if is_quoted else row["Key"],
                "Size": int(row["Size"]),
                "LastModified": moment(row["LastModified"]),
                "ETag": row.get("ETag", ""),
            }
            for row in rows
        ],
        "CommonPrefixes": [{"Prefix": unquote_plus(text) if is_quoted else text} for text in prefixes],
    }
    token = root.findtext(f"{space}NextContinuationToken")
    return page if token is None else page | {"NextContinuationToken": token}


def moment(value: Any) -> datetime:
    """Return a time as S3 writes it: ISO 8601, in headers that of e-mail, in seconds since the epoch elsewhere."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        with suppress(TypeError, ValueError):
            found = parse(value)
            if found.tzinfo is not None:
                return found
    from botocore.utils import parse_timestamp

    parsed: datetime = parse_timestamp(value)
    return parsed
