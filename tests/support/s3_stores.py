"""The stores that a proxy of S3 forwards to: one at an address, or an application of this process."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import unquote_to_bytes

from s3_proxy import HOP_BY_HOP, ONE_AT_A_TIME, Call, Reply, Store


def over_http(host: str, port: int) -> Store:
    """Return the store at an address; each request has a connection of its own."""

    def store(call: Call) -> Reply:
        connection = HTTPConnection(host, port, timeout=60)
        try:
            connection.putrequest(call.request.method, call.target, skip_host=True, skip_accept_encoding=True)
            for name, value in call.headers:
                if name.lower() not in HOP_BY_HOP:
                    connection.putheader(name, value)
            if call.body or call.request.method in {"PUT", "POST"}:
                connection.putheader("Content-Length", str(len(call.body)))
            connection.endheaders(call.body)
            answer = connection.getresponse()
            return Reply(answer.status, tuple(answer.getheaders()), answer.read())
        except (OSError, HTTPException) as error:
            raise RuntimeError(f"{call.request.method} {call.target}: the store does not answer") from error
        finally:
            connection.close()

    return store


def in_process(application: Callable[..., Iterable[bytes]]) -> Store:
    """Return the store that is a WSGI application of this process: a request takes a third of its time over HTTP."""

    def store(call: Call) -> Reply:
        started: list[tuple[int, tuple[tuple[str, str], ...]]] = []

        def start(line: str, headers: list[tuple[str, str]], _error: object = None) -> None:
            started.append((int(line.split(maxsplit=1)[0]), tuple(headers)))

        try:
            with ONE_AT_A_TIME:
                body = b"".join(application(environ(call), start))
        except Exception:  # noqa: BLE001 - as a server of WSGI answers: moto fails for a part of an aborted upload
            return Reply(500, (("Content-Type", "text/plain"),), b"the application failed")
        ((number, headers),) = started
        return Reply(number, headers, body)

    return store


def environ(call: Call) -> dict[str, Any]:
    """Describe a request as WSGI (PEP 3333) does; RAW_URI is the path as it was sent, as servers of WSGI add."""
    path, _, query = call.target.partition("?")
    found: dict[str, Any] = {
        "REQUEST_METHOD": call.request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),
        "QUERY_STRING": query,
        "RAW_URI": call.target,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(len(call.body)),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(call.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    for name, value in call.headers:
        if name.lower() == "content-type":
            found["CONTENT_TYPE"] = value
        elif name.lower() not in HOP_BY_HOP:
            found[f"HTTP_{name.upper().replace('-', '_')}"] = value
    return found
