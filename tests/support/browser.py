"""A browser without a window and without a network, for pages that the program writes."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import zlib
from pathlib import Path

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
BROWSER = next(filter(None, map(shutil.which, _NAMES)), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="Chromium is not installed: apt-get install chromium")


def open_page(page: Path, *flags: str) -> str:
    """Open a local page, in a profile of its own where no name can be resolved; return what the browser prints."""
    assert BROWSER is not None
    with tempfile.TemporaryDirectory() as profile:
        command = [
            *(BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={profile}"),
            *(*flags, f"file://{page}"),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def picture(page: Path, width: int, height: int, *, dark: bool = False) -> bytes:
    """Return what a window shows of a page, as a PNG; `dark` is the reader's preference."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "page.png"
        scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
        open_page(page, f"--window-size={width},{height}", f"--screenshot={target}", *scheme)
        return target.read_bytes()


def first_pixel(png: bytes) -> tuple[int, int, int]:
    """Return the colour of the pixel at the top left: no filter of PNG changes it."""
    at, data = 8, b""
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += size + 12
    red, green, blue = zlib.decompress(data)[1:4]
    return red, green, blue
