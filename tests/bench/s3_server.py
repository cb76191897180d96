"""S3 in the benchmarks: a fast server that counts its requests, and other clients of the same server.

EDL_CKPT_BENCH_S3 is the URL of an empty bucket on the server, such as http://127.0.0.1:9000/bench. The counters are
JSON at `/_stats` of the server, and `/_reset` clears them; without them only times are printed. obstore must be
importable; awscli is measured where it is installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from edl_ckpt.core.base.errors import NotFoundError
from edl_ckpt.core.storage import LocalStore, open_store

VARIABLE: Final = "EDL_CKPT_BENCH_S3"
_CLIENT: Final = Path(__file__).with_name("obstore_client.py")


class Server:
    """The server that the environment names."""

    def __init__(self, url: str) -> None:
        self.endpoint, _, self.bucket = url.rstrip("/").rpartition("/")

    @classmethod
    def named(cls) -> Server | None:
        """Return the server, None when the environment names none or obstore is missing."""
        url = os.environ.get(VARIABLE)
        if not url:
            return None
        if importlib.util.find_spec("obstore") is None:
            print(f"{VARIABLE} is set, but obstore, the reference, is not installed", file=sys.stderr)
            return None
        return cls.at(url)

    @classmethod
    def at(cls, url: str) -> Server:
        """Return a server by its URL, with all that a client needs in the environment."""
        server = cls(url)
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
        os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
        os.environ["AWS_ENDPOINT_URL"] = server.endpoint
        return server

    def url(self, prefix: str) -> str:
        """Return a location on it."""
        return f"s3://{self.bucket}/{prefix}"

    def obstore(self, what: str, prefix: str, directory: Path | None = None) -> list[str]:
        """Return the command by which obstore does something with all objects below a prefix; see `obstore_client`."""
        return [sys.executable, str(_CLIENT), what, self.endpoint, self.bucket, prefix, str(directory or "")]

    def awscli(self, source: str, target: str) -> list[str] | None:
        """Return the command by which awscli copies a folder, None where it is not installed."""
        program = shutil.which("aws", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
        return [program, "s3", "cp", "--recursive", "--quiet", source, target] if program else None

    def forget(self, prefix: str) -> None:
        """Delete everything below a prefix."""
        store = open_store(self.url(prefix))
        assert not isinstance(store, LocalStore)
        with suppress(NotFoundError):
            store.remove_each([entry.relative for entry in store.entries(lambda _: True) if not entry.is_dir])

    def reset(self) -> None:
        """Clear the counters."""
        self._ask("/_reset")

    def counters(self) -> dict[str, Any]:
        """Return requests by kind, bytes and requests in flight since the last reset; nothing where none count."""
        return dict(self._ask("/_stats"))

    def _ask(self, path: str) -> Mapping[str, Any]:
        try:
            with urllib.request.urlopen(self.endpoint + path, timeout=10) as answer:
                found: Mapping[str, Any] = json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, ValueError):
            return {}
        return found
