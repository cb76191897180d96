"""What obstore does with the same objects: `obstore_client.py WHAT ENDPOINT BUCKET PREFIX DIRECTORY`.

Files are put with 32 parts of 8 MiB in flight, and got in ranges of 8 MiB, 32 in flight. `turn` gets everything, puts
it below another prefix, and gets that: the bytes that a proved reshard on S3 has to move.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import obstore
from obstore.store import S3Store

STEP, AT_ONCE = 8 << 20, 32


class Client:
    """A bucket."""

    def __init__(self, endpoint: str, bucket: str) -> None:
        options: Any = {"allow_http": True}
        self.store = S3Store(bucket, endpoint=endpoint, client_options=options, virtual_hosted_style_request=False)

    def put(self, prefix: str, directory: str) -> None:
        """Write every file of a directory."""
        files = [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
        parts = max(AT_ONCE // len(files), 1)

        def one(path: Path) -> None:
            key = f"{prefix}/{path.relative_to(directory)}"
            obstore.put(self.store, key, path, chunk_size=STEP, max_concurrency=parts)

        with ThreadPoolExecutor(64 if len(files) > 1000 else AT_ONCE) as pool:
            list(pool.map(one, files))

    def list(self, prefix: str) -> list[Any]:
        """Return all objects below a prefix."""
        return [item for page in obstore.list(self.store, prefix) for item in page]

    def get(self, prefix: str, directory: str) -> None:
        """Read all shards below a prefix, into files when a directory is given."""
        found = [item for item in self.list(prefix) if not item["path"].endswith(".json")]
        ranges = [
            (item["path"], at, min(STEP, item["size"] - at)) for item in found for at in range(0, item["size"], STEP)
        ]
        places = {item["path"]: f"{directory}/{item['path'].replace('/', '-')}" for item in found}
        files = {path: os.open(place, os.O_RDWR | os.O_CREAT) for path, place in places.items()} if directory else {}

        def one(part: tuple[str, int, int]) -> None:
            path, at, size = part
            data = obstore.get_range(self.store, path, start=at, length=size)
            if files:
                os.pwrite(files[path], data, at)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, ranges))


def main() -> None:
    """Do one thing."""
    what, endpoint, bucket, prefix, directory = sys.argv[1:]
    client = Client(endpoint, bucket)
    if what == "put":
        client.put(prefix, directory)
    elif what == "get":
        client.get(prefix, directory)
    elif what == "turn":
        client.get(prefix, directory)
        client.put(f"{prefix}-turned", directory)
        client.get(f"{prefix}-turned", "")
    else:
        client.list(prefix)


if __name__ == "__main__":
    main()
