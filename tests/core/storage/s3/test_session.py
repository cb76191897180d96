"""Credentials, addresses and certificates are botocore's: they come from where the tools of AWS have them."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificate
from edl_ckpt.core.base.errors import AuthError, UnavailableError
from edl_ckpt.core.storage import Location, open_store
from edl_ckpt.core.storage.s3 import client
from edl_ckpt.core.storage.s3.session import Service, settings
from s3_fixtures import Bucket
from s3_proxy import Fault, Reply, truncate

_KEYS = ["a b+c%41&=#?.x", "ü/~(é)'*!.y", "plain/1"]


@pytest.mark.parametrize("key", _KEYS)
def test_keys_that_must_be_quoted(s3: Bucket, key: str) -> None:
    """Any name is written, listed and read as it is."""
    store = open_store(s3.url)
    store.write_small(key, b"data")
    assert store.read_small(key) == b"data"
    assert [entry.relative for entry in store.entries(lambda _: True) if not entry.is_dir] == [key]


def test_credentials_of_a_profile(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile may have a process that tells the credentials; the doctor's fact names it."""
    said = '{"Version": 1, "AccessKeyId": "AKIDEXAMPLE", "SecretAccessKey": "s"}'
    (tmp_path / "told.json").write_text(said)
    (tmp_path / "config").write_text(
        f"[profile it]\nregion = eu-west-3\ncredential_process = cat {tmp_path}/told.json\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    s3.put("run/x", b"data")
    assert open_store(Location(s3.url, {"profile": "it"})).read_small("x") == b"data"
    _, region, source = Service(*settings({"profile": "it"}, "s3://")).identity()
    assert (region, source) == ("eu-west-3", "custom-process")


@pytest.mark.parametrize(
    ("options", "source"), [({}, "env"), ({"key": "k", "secret": "s"}, "explicit"), ({"anon": "true"}, "")]
)
@pytest.mark.usefixtures("s3")
def test_where_credentials_come_from(options: dict[str, str], source: str) -> None:
    """The environment, the options of the location, or nowhere for a public bucket."""
    assert Service(*settings(options, "s3://")).identity()[2] == source


def test_without_credentials(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none are, that is the error, not what the service says."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(AuthError, match="NoCredentialsError"):
        open_store(s3.url).read_small("x")


@pytest.mark.parametrize("text", [b"<a><", b"<a/><b/>", None])
def test_a_damaged_listing_is_read_again(s3: Bucket, text: bytes | None) -> None:
    """Half a page of a listing is damage; so is a page that is no XML."""
    s3.put("run/x", b"data")
    store = open_store(s3.url)
    sized = Reply(200, (("Content-Length", str(len(text or b""))),), text or b"")
    armed = s3.proxy.fail(Fault(truncate if text is None else (lambda _call, _forward: sized), operation="list"))
    assert [*store.names("")] == ["x"]
    assert armed.hits == 1


class _Object(BaseHTTPRequestHandler):
    """Answers every request with an object of four bytes."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send it."""
        self.send_response(200)
        for name, value in {"Content-Length": "4", "ETag": '"x"', "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(b"data")

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.usefixtures("s3")
def test_certificates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_CA_BUNDLE names the authorities; a certificate of any other is refused."""
    monkeypatch.setattr(client, "pause", lambda _seconds: None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(make_certificate(tmp_path))
    with HTTPServer(("127.0.0.1", 0), _Object) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.server_port}")
        try:
            with pytest.raises(UnavailableError, match="SSLError"):
                open_store("s3://bucket/run").read_small("x")
            monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "c.pem"))
            store = open_store("s3://bucket/run")
            assert [store.read_small("x") for _ in range(3)] == [b"data"] * 3  # by botocore, and then by us
        finally:
            server.shutdown()
            thread.join()
