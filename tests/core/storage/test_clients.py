"""Storage behind a client of fsspec: what goes wrong there, and what a listing says of it."""

from __future__ import annotations

import functools
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractFileSystem

from edl_ckpt.core import execute_copy, list_versions, parse_ref, plan_copy, resolve, verify_version
from edl_ckpt.core.base.errors import (
    AuthError,
    EdlCkptError,
    NoSpaceError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.storage import open_store
from edl_ckpt.core.storage.faults import storage_errors
from places import GOLDEN
from program import inside


@pytest.fixture
def refused() -> Iterator[int]:
    """Return a port of this machine that refuses connections: it is bound, and nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the golden data; a path that is a number gets that status."""

    def send_head(self) -> Any:
        """Answer with the status that the path names, or with the file."""
        first = self.path.strip("/").partition("/")[0]
        if first.isdigit():
            self.send_error(int(first))
            return None
        return super().send_head()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the parent's name
        """Print nothing."""


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    """Serve the golden data over HTTP."""
    pytest.importorskip("aiohttp")
    handler = functools.partial(Handler, directory=str(GOLDEN))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("scheme", ["ftp", "http", "webhdfs"])
@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_nobody_answers(scheme: str, host: str, refused: int, capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection and an unknown host are error 13 with the URL, whatever the client raises."""
    pytest.importorskip({"http": "aiohttp", "webhdfs": "requests"}.get(scheme, "ftplib"))
    url = f"{scheme}://{host}:{refused}/run"
    error = inside(capsys, "list", url, code=13)
    assert (error["id"], error["path"]) == ("unavailable", url)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(403, AuthError), (404, NotFoundError), (429, UnavailableError), (501, UnsupportedError), (503, UnavailableError)],
)
def test_answers_of_a_server(web: str, status: int, kind: type[EdlCkptError]) -> None:
    """The status that a server answers gives the error: 404 alone means that nothing is there."""
    with pytest.raises(kind) as end:
        list_versions(f"{web}/{status}/run")
    assert type(end.value) is kind
    with pytest.raises(kind):
        list_versions(f"{web}/{status}/run/")


def test_http_location(web: str, tmp_path: Path) -> None:
    """A location behind a web server is listed with the sizes of its shards, and can be copied from."""
    versions = list_versions(f"{web}/multi").versions
    assert [(v.version, v.state, v.size_bytes) for v in versions] == [
        (v.version, v.state, v.size_bytes) for v in list_versions(GOLDEN / "multi", grace_seconds=0).versions
    ]
    execute_copy(plan_copy([resolve(parse_ref(f"{web}/multi@20"))], tmp_path / "run"))
    assert verify_version(resolve(parse_ref(f"{tmp_path}/run@20")), level="deep").ok
    with pytest.raises(UnsupportedError):
        open_store(f"{web}/multi").write_small("x", b"")


@pytest.mark.parametrize(
    ("url", "kind", "code"),
    [
        ("http://", UsageError, 2),
        ("http://[bad/run", UsageError, 2),
        ("ftp:///run", UsageError, 2),
        ("dbfs://x/run", UsageError, 2),
        ("nosuch://x/run", UnsupportedError, 15),
    ],
)
def test_urls(url: str, kind: type[EdlCkptError], code: int) -> None:
    """A URL without a host, a storage without its options and one that nobody knows are plain errors."""
    with pytest.raises(kind) as end:
        list_versions(url)
    assert (type(end.value), end.value.exit_code, end.value.path) == (kind, code, url)


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ConnectionResetError("reset"), UnavailableError), (ImportError("no module"), UnsupportedError)],
)
def test_listing_that_breaks_off(error: Exception, kind: type[EdlCkptError], monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends a listing in its middle is an error, not a version without shards; a missing directory is."""
    memory = fsspec.filesystem("memory")
    memory.put(str(GOLDEN / "multi"), "/broken/run", recursive=True)
    whole = MemoryFileSystem.ls
    fault = error

    def ls(self: MemoryFileSystem, path: str, detail: bool = True, **kwargs: Any) -> Any:
        if path.endswith("version-20"):
            raise fault
        return whole(self, path, detail, **kwargs)

    # fsspec's own walk, as file systems have it that can only list directories.
    monkeypatch.setattr(MemoryFileSystem, "find", AbstractFileSystem.find)
    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    with pytest.raises(kind):
        list_versions("memory://broken/run")
    fault = FileNotFoundError("gone")
    assert [v.version for v in list_versions("memory://broken/run").versions] == [9, 20, 100]
    monkeypatch.undo()
    memory.rm("/broken", recursive=True)


def made(library: str, name: str, base: type[BaseException] = Exception, **facts: Any) -> BaseException:
    """Return an error as a library raises it that need not be installed here."""
    kind: type[BaseException] = type(name, (base,), {"__module__": f"{library}.errors"})
    error = kind("words with http://user:password@host/")
    for fact, value in facts.items():
        setattr(error, fact, value)
    return error


class Answer:
    """The answer of a server, as `requests` attaches it to its errors."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (made("aiohttp", "ServerDisconnectedError"), UnavailableError),
        (made("requests", "ConnectionError", OSError), UnavailableError),
        (made("requests", "HTTPError", OSError, response=Answer(401)), AuthError),
        (made("requests", "InvalidURL", ValueError), UsageError),
        (made("paramiko", "AuthenticationException"), AuthError),
        (made("google", "DefaultCredentialsError"), AuthError),
        (made("gcsfs", "HttpError", code=429), UnavailableError),
        (made("azure", "ResourceNotFoundError", status_code=404), NotFoundError),
        (made("azure", "HttpResponseError", status_code=409), EdlCkptError),
        (socket.gaierror(-2, "Name or service not known"), UnavailableError),
        (OSError(113, "No route to host"), UnavailableError),
    ],
)
def test_clients(error: Exception, kind: type[EdlCkptError]) -> None:
    """An error of a client's library is ours, by its status or its name, and repeats no password."""
    with pytest.raises(kind) as end, storage_errors("there"):
        raise error
    assert type(end.value) is kind
    assert "password" not in str(end.value)


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        ("530 Login incorrect", AuthError),
        ("550 No such file", NotFoundError),
        ("552 Quota exceeded", NoSpaceError),
        ("421 Too many connections", UnavailableError),
        ("501 Syntax error", EdlCkptError),
    ],
)
def test_ftp_replies(reply: str, kind: type[EdlCkptError]) -> None:
    """The code of an FTP reply gives the error."""
    import ftplib

    with pytest.raises(kind) as end, storage_errors("there"):
        raise ftplib.error_perm(reply)
    assert type(end.value) is kind


def test_bugs_stay_bugs() -> None:
    """An exception that is of no client is not turned into an error of storage."""
    with pytest.raises(KeyError), storage_errors("there"):
        raise KeyError("x")
