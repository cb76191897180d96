"""Requests to S3: the frequent ones by the thread that asks (`Wire`), all others by botocore's client.

botocore's client takes 1.5 ms of CPU for a small GET, and 50 ms for a page of a listing. So it makes the first request
to a bucket, and its public events show the address, the region and the signer that it chose. Requests that are made by
the hundred are then written and read by botocore's serializer and parser, signed by that signer, and sent by `Wire`.
Anything unusual goes through the client again: proxies, redirects, refused credentials, other signatures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from http.client import HTTPResponse
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree as ET

from edl_ckpt.core.base.parallel import answered
from edl_ckpt.core.storage.s3.session import Service, moment
from edl_ckpt.core.storage.s3.wire import DamagedError, Wire, left_behind

_FREQUENT: Final = {
    "get_object": "GetObject",
    "head_object": "HeadObject",
    "list_objects_v2": "ListObjectsV2",
    "create_multipart_upload": "CreateMultipartUpload",
    "upload_part": "UploadPart",
    "complete_multipart_upload": "CompleteMultipartUpload",
}
"""The operations that are not left to botocore's client, by the names of its methods."""
_PLAIN_ERRORS: Final = frozenset({404, 412, 416, 429, 500, 502, 503, 504})
"""Errors that mean the same whoever asks; botocore's client handles all others."""
_SIGNATURE: Final = "s3v4"
_SLICE_BYTES: Final = 1 << 20
"""Bytes that are received at a time."""
_BEGINNING: Final = threading.Lock()
"""Held for an instant, by the threads of a forked process only."""


class _Route(NamedTuple):
    """The way to one bucket, as botocore chose it."""

    url: str
    """The address of the bucket, without a slash at its end."""
    authorize: Callable[[], Any]
    """Returns what signs a request with the credentials of this moment."""
    wire: Wire


class Transport:
    """A client of one process for one set of options. It is safe in several threads, and is made anew after a fork.

    `make` makes botocore's client; its errors are those of the first request.
    """

    def __init__(self, make: Callable[[], Service]) -> None:
        self._make = make
        self.hashes_parts = False
        """True to sign the SHA-256 of parts too. Their checksum is among the signed headers, but a service may ask."""
        self._begin()

    def _begin(self) -> None:
        """Begin with neither a client nor connections: a forked process must not use those of its parent."""
        self._making = threading.Lock()
        self._known: Service | None = None
        self._routes: dict[str, _Route] = {}
        self._wires: dict[str, Wire] = {}
        self._seen = threading.local()
        self._process = os.getpid()

    def _begin_here(self) -> None:
        """Begin again in a forked process."""
        if self._process != os.getpid():
            with _BEGINNING:
                if self._process != os.getpid():
                    self._begin()

    @property
    def service(self) -> Service:
        """Return botocore's client, and what belongs to it."""
        self._begin_here()
        with self._making:
            if self._known is None:
                self._known = self._make()
                self._known.client.meta.events.register("before-sign.s3", partial(_note, self._seen))
            return self._known

    def call(self, method: str, parameters: Mapping[str, Any], body: memoryview | int | None = None) -> dict[str, Any]:
        """Make one request of S3's interface and return its answer, with its body: bytes, or received into a buffer.

        A body that does not fill its buffer, or is not of its size, is a DamagedError. Raises LockedError when a
        signal stops the command meanwhile.
        """
        self._begin_here()
        answer = self._made_here(method, parameters, body)
        if answer is None:
            answer = left_behind(partial(self._made_by_client, method, parameters))
            if body is not None:
                answer["Body"] = _checked(answer["Body"], body)
        answered()
        return answer

    def _made_by_client(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request by botocore's client, and learn the way to its bucket."""
        client, self._seen.signed = self.service.client, []
        answer: dict[str, Any] = getattr(client, method)(**parameters)
        if "Body" in answer:
            with answer["Body"] as stream:
                answer["Body"] = stream.read()
        for url, signing in self._seen.signed[-1:]:
            route = self._route(url, signing, parameters.get("Key", ""))
            if route is not None:
                self._routes.setdefault(parameters["Bucket"], route)
        return answer

    def _route(self, url: str, signing: Mapping[str, Any], key: str) -> _Route | None:
        """Return the way to a bucket from what botocore signed for a key; None where its client must make requests."""
        from botocore.utils import get_environ_proxies

        parts, quoted = urlsplit(url), quote(key, safe="/~")
        is_usual = signing["signature_version"] == _SIGNATURE and parts.path.endswith(quoted)
        if not is_usual or parts.scheme in get_environ_proxies(url):
            return None
        address = f"{parts.scheme}://{parts.netloc}"
        wire = self._wires.setdefault(address, Wire(address, self.service))
        names = signing["signing_name"], signing["region_name"], _SIGNATURE
        path = parts.path.removesuffix(quoted).rstrip("/")
        return _Route(address + path, partial(signing["request_signer"].get_auth_instance, *names), wire)

    def _made_here(
        self, method: str, parameters: Mapping[str, Any], wanted: memoryview | int | None
    ) -> dict[str, Any] | None:
        """Make a request in this thread; None when botocore's client must make it. Raises its ClientError."""
        route = self._routes.get(parameters.get("Bucket", ""))
        if route is None or method not in _FREQUENT:
            return None
        service = self.service
        if service.must_refresh():
            left_behind(route.authorize)
        model = service.client.meta.service_model.operation_model(_FREQUENT[method])
        request = self._request(service, route, model, parameters)
        route.authorize().add_auth(request)
        status, headers, body = route.wire.send(request.prepare(), partial(_receive, wanted=wanted))
        if method == "complete_multipart_upload" and b"<Error" in body:
            status = 500  # S3 may begin to answer before it knows
        is_good, is_object = status < 300, method == "get_object"
        if is_good and method == "list_objects_v2":
            metadata = {"HTTPStatusCode": status, "HTTPHeaders": {name.lower(): text for name, text in headers.items()}}
            return {"ResponseMetadata": metadata} | _listing(body)
        if is_good or status in _PLAIN_ERRORS:
            raw = {"status_code": status, "headers": headers, "body": b"" if is_good and is_object else body}
            answer: dict[str, Any] = service.parser.parse(raw, model.output_shape)
            if not is_good:
                raise service.client.exceptions.ClientError(answer, model.name)
            return answer | {"Body": body} if is_object else answer
        self.hashes_parts |= method == "upload_part"  # perhaps that is what it refuses; botocore's client signs it
        return None

    def _request(self, service: Service, route: _Route, model: Any, parameters: Mapping[str, Any]) -> Any:
        """Return a request that is still to be signed."""
        from botocore.awsrequest import AWSRequest

        parts = service.serializer.serialize_to_request(parameters, model)
        query = parts["url_path"].partition("?")[2]  # the bucket may be a part of this path, or of the address
        more = parts["query_string"] | ({"encoding-type": "url"} if "Key" not in parameters else {})
        query = "&".join(filter(None, (query, urlencode(more, quote_via=quote, safe="~"))))
        path = quote(parameters.get("Key", ""), safe="/~")
        url = f"{route.url}/{path}" if path or not urlsplit(route.url).path else route.url
        headers = {"User-Agent": service.agent, **parts["headers"]}
        request = AWSRequest(model.http["method"], f"{url}?{query}" if query else url, headers, parts["body"])
        is_hashed = model.name != "UploadPart" or self.hashes_parts
        request.context["client_config"] = service.client.meta.config if is_hashed else service.config_of_parts
        return request


def _note(seen: threading.local, *, request: Any, **signing: Any) -> None:
    """Remember what botocore signs in this thread."""
    seen.signed.append((request.url, signing))


def _receive(response: HTTPResponse, wanted: memoryview | int | None) -> Any:
    """Return a body, received into a buffer where there is one for it; DamagedError unless its size is right."""
    if response.status >= 300 or wanted is None:
        return response.read()
    if isinstance(wanted, int):
        return _checked(response.read(), wanted)
    filled = 0
    while filled < len(wanted):
        count = response.readinto(wanted[filled : filled + _SLICE_BYTES])
        if not count:
            break
        filled += count
    _check(filled + len(response.read(1)), len(wanted))
    return wanted


def _checked(data: bytes, wanted: memoryview | int) -> bytes | memoryview:
    """Return data of the right size, in the buffer where there is one."""
    if isinstance(wanted, int):
        _check(len(data), wanted)
        return data
    _check(len(data), len(wanted))
    wanted[:] = data
    return wanted


def _check(arrived: int, wanted: int) -> None:
    if arrived != wanted:
        raise DamagedError(f"{arrived} bytes arrived in place of {wanted}")


def _listing(data: bytes) -> dict[str, Any]:
    """Return a page of a listing, as botocore does in four times the time; DamagedError for what is none."""
    try:
        root = ET.fromstring(data)  # noqa: S314 - as botocore does; expat bounds what entities make
        space = root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""
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
