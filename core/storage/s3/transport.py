"""Requests to S3: the frequent ones by the thread that asks (`Wire`), all others by botocore's client.

botocore's client takes 1.5 ms of CPU for a small GET, and 50 ms for a page of a listing. So it makes the first request
to a bucket, and its public events show the address, the region and the signer that it chose. Requests that are made by
the hundred are then written and read by botocore's serializer and parser, signed by that signer, and sent by `Wire`.
Anything unusual goes through the client again: proxies, redirects, refused credentials, other signatures.

Connections of `http.client` to one address, and requests that the thread that asks sends and receives itself.

A blocked socket cannot be interrupted by another thread. So each call of a socket returns after `LOOK_SECONDS`, and
ends when the command was interrupted. Only a new connection is made by another thread, which its caller can leave.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, unquote_plus, urlencode, urlsplit
from xml.etree import ElementTree as ET

from edl_ckpt.core.base.errors import LockedError
from edl_ckpt.core.base.interruption import WHOLE
from edl_ckpt.core.base.parallel import LOOK_SECONDS, answered, awaited, stop_requested
from edl_ckpt.core.storage.s3.session import Service, moment

Result = TypeVar("Result")
_SEND_BYTES: Final = 1 << 20
_SMALL_BYTES: Final = 16 << 10


class _PatientSocket:
    """A socket that waits for LOOK_SECONDS at a time; LockedError when the command was interrupted meanwhile.

    TimeoutError when no byte moves for `silence_seconds`.
    """

    silence_seconds = 60.0

    def recv_into(self, *arguments: Any) -> int:
        """Receive some bytes."""
        return self._waited(super().recv_into, *arguments)  # type: ignore[misc]

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all bytes."""
        view = memoryview(data).cast("B")
        while view:
            view = view[self._waited(super().send, view[:_SEND_BYTES], flags) :]  # type: ignore[misc]

    def _waited(self, move: Callable[..., int], *arguments: Any) -> int:
        since = time.monotonic()
        while True:
            try:
                return move(*arguments)
            except (TimeoutError, BlockingIOError):
                if stop_requested():
                    raise LockedError("stopped") from None
                if time.monotonic() - since > self.silence_seconds:
                    raise


class _Socket(_PatientSocket, socket.socket):
    """One whose timeout is the kernel's, so that a call can wait until a large buffer is full."""

    def settimeout(self, value: float | None) -> None:
        """Let each call take so many seconds at most."""
        if value is not None:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(value * 1e6)))

    def recv_into(self, buffer: Any, *_: int) -> int:
        """Fill a large buffer, or receive some bytes of a small one."""
        whole = socket.MSG_WAITALL if len(buffer) > _SMALL_BYTES else 0
        return self._waited(super(_PatientSocket, self).recv_into, buffer, 0, whole)


class _TlsSocket(_PatientSocket, ssl.SSLSocket):
    pass


class Wire:
    """The connections to the address of a URL. Several threads use it, each connection by one at a time."""

    def __init__(self, url: str, service: Service) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port
        self._tls = service.trust() if parts.scheme == "https" else None
        if self._tls is not None:
            self._tls.sslsocket_class = _TlsSocket
        self._connect_seconds, self._read_seconds = service.connect_seconds, service.read_seconds
        self._idle: deque[HTTPConnection] = deque()

    def send(self, request: Any, receive: Callable[[HTTPResponse], Result]) -> tuple[int, HTTPMessage, Result]:
        """Send a signed request of botocore; return the status, the headers, and the body that `receive` reads.

        A connection whose answer was read to its end is used again.
        """
        connection = self._take()
        try:
            parts = urlsplit(request.url)
            target = f"{parts.path or '/'}{'?' * bool(parts.query)}{parts.query}"
            with suppress(BrokenPipeError, ConnectionResetError):  # there may be an answer all the same
                connection.request(request.method, target, request.body, {**request.headers})
            response = connection.getresponse()
            body = receive(response)
        except BaseException:
            connection.close()
            raise
        if response.will_close or not response.isclosed():
            connection.close()
        else:
            self._idle.append(connection)
        return response.status, response.headers, body

    def _take(self) -> HTTPConnection:
        """Return an idle connection that the other side has not closed, or a new one."""
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                left_behind(self._connect)
                continue
            poll = select.poll()
            poll.register(connection.sock, select.POLLIN)
            if not poll.poll(0):
                return connection
            connection.close()

    def __del__(self) -> None:
        """Close the connections."""
        for connection in self._idle:
            connection.close()

    def _connect(self) -> None:
        """Add a new connection to the idle ones; one whose caller has left waits there for the next request."""
        if self._tls is None:
            connection = HTTPConnection(self._host, self._port, timeout=self._connect_seconds)
        else:
            connection = HTTPSConnection(self._host, self._port, timeout=self._connect_seconds, context=self._tls)
        connection.connect()
        if self._tls is None:
            connection.sock.settimeout(None)
            connection.sock = _Socket(fileno=connection.sock.detach())
        opened: Any = connection.sock
        opened.settimeout(LOOK_SECONDS)
        opened.silence_seconds = self._read_seconds
        self._idle.append(connection)


def left_behind(function: Callable[[], Result]) -> Result:
    """Return the result of a function that may block; LockedError, without its end, when the command is interrupted."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            future.set_exception(error)

    with WHOLE:
        threading.Thread(target=run, name="edl-ckpt-s3", daemon=True).start()
    return awaited(future)


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


class DamagedError(Exception):
    """A damaged answer: too short, too long, or with another checksum than the data. A retry may succeed."""


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
