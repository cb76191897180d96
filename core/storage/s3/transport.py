"""Requests to S3: the frequent ones by the thread that asks (`Wire`), all others by botocore's client.

botocore's client takes 1.5 ms of CPU for a small GET, and 50 ms for a page of a listing. So it makes the first request
to a bucket, and its public events show the address, the region and the signer that it chose. Requests that are made by
the hundred are then written by botocore's serializer, signed here with that signer's credentials, sent by `Wire`, and
read here unless they are errors.
Anything unusual goes through the client again: proxies, redirects, refused credentials, other signatures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from edl_ckpt.core.base.parallel import answered
from edl_ckpt.core.storage.s3.answers import read_answer
from edl_ckpt.core.storage.s3.session import Service
from edl_ckpt.core.storage.s3.signing import UNSIGNED_BODY, Scope, body_sum, signed_headers
from edl_ckpt.core.storage.s3.wire import Wire, checked, left_behind

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
_FIRST_NOT_GOOD: Final = 300
_SIGNATURE: Final = "s3v4"
_WITHOUT_LENGTH: Final = frozenset({"GET", "HEAD"})
"""Methods whose requests have no length unless there is a body."""
_PORTS: Final = {"http": 80, "https": 443}
_BEGINNING: Final = threading.Lock()
"""Held for an instant, by the threads of a forked process only."""


class _Route(NamedTuple):
    """The way to one bucket, as botocore chose it."""

    host: str
    path: str
    """The path of the bucket, without a slash at its end."""
    authorize: Callable[[], Any]
    """Returns botocore's signer of a request, which has the credentials of this moment."""
    scope: Scope
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
                answer["Body"] = checked(answer["Body"], body)
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
        service, region = signing["signing_name"], signing["region_name"]
        authorize = partial(signing["request_signer"].get_auth_instance, service, region, _SIGNATURE)
        path = parts.path.removesuffix(quoted).rstrip("/")
        return _Route(_host(parts), path, authorize, Scope(region, service), wire)

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
        parts = service.serializer.serialize_to_request(parameters, model)
        target = _target(route.path, parameters.get("Key"), parts)
        headers = self._headers(service, route, model, target, parts)
        status, heads, body = route.wire.send(model.http["method"], target, headers, parts["body"], wanted=wanted)
        if method == "complete_multipart_upload" and b"<Error" in bytes(body):
            status = 500  # S3 may begin to answer before it knows
        if status < _FIRST_NOT_GOOD:
            return read_answer(method, status, heads, body)
        if status in _PLAIN_ERRORS:
            raw = {"status_code": status, "headers": heads, "body": body}
            raise service.client.exceptions.ClientError(service.parser.parse(raw, model.output_shape), model.name)
        self.hashes_parts |= method == "upload_part"  # perhaps that is what it refuses; botocore's client signs it
        return None

    def _headers(
        self, service: Service, route: _Route, model: Any, target: str, parts: Mapping[str, Any]
    ) -> dict[str, str]:
        """Return the headers of a request, signed; botocore's NoCredentialsError without credentials."""
        from botocore.exceptions import NoCredentialsError

        credentials, body = route.authorize().credentials, parts["body"]
        if credentials is None:
            raise NoCredentialsError
        named = {name.lower(): str(text) for name, text in parts["headers"].items()}
        is_part = model.name == "UploadPart"
        is_signed = service.signs_parts if is_part and not self.hashes_parts else service.signs_bodies
        total = body_sum(body) if is_signed else UNSIGNED_BODY
        method = model.http["method"]
        headers = signed_headers(
            method, target, {"host": route.host, **named}, body=total, scope=route.scope, credentials=credentials
        )
        length = {} if method in _WITHOUT_LENGTH and not body else {"content-length": str(len(body))}
        return {**headers, **length, "accept-encoding": "identity", "user-agent": service.agent}


def _note(seen: threading.local, *, request: Any, **signing: Any) -> None:
    """Remember what botocore signs in this thread."""
    seen.signed.append((request.url, signing))


def _host(parts: SplitResult) -> str:
    """Return the host of an address as requests name it: with the port, unless that is the usual one.

    >>> _host(urlsplit("https://S3.example:443/b")), _host(urlsplit("http://[::1]:9000"))
    ('s3.example', '[::1]:9000')
    """
    name = str(parts.hostname)
    host = f"[{name}]" if ":" in name else name
    return host if parts.port in {None, _PORTS.get(parts.scheme)} else f"{host}:{parts.port}"


def _target(path: str, key: str | None, parts: Mapping[str, Any]) -> str:
    """Return the path and the query of a request about an object, or without a `key` about the bucket of a path."""
    query = parts["url_path"].partition("?")[2]  # the bucket may be a part of this path, or of the address
    arguments = {**parts["query_string"], **({"encoding-type": "url"} if key is None else {})}
    query = "&".join(filter(None, (query, urlencode(arguments, quote_via=quote, safe="~"))))
    quoted = quote(key or "", safe="/~")
    place = f"{path}/{quoted}" if quoted or not path else path
    return f"{place}?{query}" if query else place
