"""S3 in the benchmarks: a fast server that counts its requests, and obstore beside edl-ckpt on the same server.

EDL_CKPT_BENCH_S3 is the URL of an empty bucket on the server, such as http://127.0.0.1:9000/bench. The counters are
JSON at `/_stats` of the server, and `/_reset` clears them; without them only times are printed. obstore must be
importable.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from edl_ckpt.core.errors import NotFoundError
from edl_ckpt.core.storage import LocalStore, open_store

VARIABLE: Final = "EDL_CKPT_BENCH_S3"
_OBSTORE: Final = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import obstore
from obstore.store import S3Store
what, endpoint, bucket, prefix, directory = sys.argv[1:]
store = S3Store(bucket, endpoint=endpoint, client_options={"allow_http": True}, virtual_hosted_style_request=False)
STEP = 8 << 20
if what == "put":
    files = sorted(Path(directory).rglob("variables-*"))
    def put(path):
        obstore.put(store, f"{prefix}/{path.name}", path, chunk_size=STEP, max_concurrency=max(16 // len(files), 1))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, files))
    sys.exit()
found = [item for page in obstore.list(store, prefix) for item in page if not item["path"].endswith(".json")]
ranges = [(item["path"], at, min(STEP, item["size"] - at)) for item in found for at in range(0, item["size"], STEP)]
places = {item["path"]: f"{directory}/{item['path'].replace('/', '-')}" for item in found}
files = {path: open(place, "wb") for path, place in places.items()} if directory else {}
def move(one):
    path, at, size = one
    data = obstore.get_range(store, path, start=at, length=size)
    if files:
        import os
        os.pwrite(files[path].fileno(), data, at)
with ThreadPoolExecutor(16) as pool:
    list(pool.map(move, ranges))
"""
"""Put files with 16 parts in flight; get all objects in ranges of 8 MiB, 16 in flight."""


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
        server = cls(url)
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "bench")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "bench")
        os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
        os.environ["AWS_ENDPOINT_URL"] = server.endpoint
        return server

    def url(self, prefix: str) -> str:
        """Return a location on it."""
        return f"s3://{self.bucket}/{prefix}"

    def obstore(self, what: str, prefix: str, directory: Path | None) -> list[str]:
        """Return the command by which obstore puts the shards of a directory, or gets all objects below a prefix."""
        where = str(directory) if directory else ""
        return [sys.executable, "-c", _OBSTORE, what, self.endpoint, self.bucket, prefix, where]

    def forget(self, prefix: str) -> None:
        """Delete everything below a prefix."""
        store = open_store(self.url(prefix))
        assert not isinstance(store, LocalStore)
        with suppress(NotFoundError):
            store.remove_each([entry.relative for entry in store.entries(lambda _: True) if not entry.is_dir])

    def reset(self) -> None:
        """Clear the counters."""
        self._ask("/_reset")

    def counters(self) -> str:
        """Return requests, bytes and requests in flight since the last reset, as a line; '' where nothing counts."""
        counted = self._ask("/_stats")
        if not counted:
            return ""
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(counted["requests"].items()))
        moved = f"{counted['bytes_out'] / 1e6:.0f} MB read, {counted['bytes_in'] / 1e6:.0f} MB written"
        in_flight = f"in flight {counted['mean_in_flight']:.1f} on average, {counted['max_in_flight']} at most"
        return f"{counted['total']} requests ({kinds}), {moved}, {in_flight}"

    def _ask(self, path: str) -> Mapping[str, Any]:
        try:
            with urllib.request.urlopen(self.endpoint + path, timeout=10) as answer:
                found: Mapping[str, Any] = json.loads(answer.read() or b"{}")
        except (urllib.error.URLError, ValueError):
            return {}
        return found
