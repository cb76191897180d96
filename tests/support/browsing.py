"""The browser without a terminal: keys and the mouse go in, the screen comes out as text and as SVG.

`python tests/support/browsing.py` draws the pictures of `tests/data/browse/` again, which a test compares.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
from textual import events
from textual.pilot import Pilot

from edl_ckpt.cli.browse.app import BrowseApp
from edl_ckpt.cli.browse.versions import Preview
from edl_ckpt.core import Table, add_tag, parse_ref, save_checkpoint, set_metrics
from places import DATA

NOW = 1_800_000_000.0
"""The time on the screens of pictures: two hours after the versions there were saved."""
PICTURES: dict[str, tuple[str, tuple[int, int], tuple[str, ...]]] = {
    "versions-80x24": ("run", (80, 24), ()),
    "versions-40x20": ("run", (40, 20), ()),
    "tables-120x30": ("run@200", (120, 30), ()),
    "variables-40x20": ("run@200", (40, 20), ("tab",)),
    "shards-80x24": ("run@200", (80, 24), ("3",)),
    "rows-80x24": ("run@200", (80, 24), ("enter", "g", *"42", "enter")),
    "values-80x24": ("run@200", (80, 24), ("2", "down", "enter")),
    "statistics-100x40": ("run@200", (100, 40), ("s",)),
    "differences-100x24": ("run", (100, 24), ("up", "d", "enter")),
    "damaged-80x24": ("run@300", (80, 24), ()),
    "findings-80x24": ("run@300", (80, 24), ("v", "2")),
    "help-80x24": ("run@200", (80, 24), ("question_mark",)),
}
"""Pictures by their names: the reference, the size of the window, and the keys."""

_SECONDS = 300.0
"""A screen that has not come after so long does not come, on the slowest machine."""


def is_waiting(preview: Preview) -> bool:
    """Say whether headers of the version that a preview shows are to be read yet."""
    return preview.display and preview._version is not None and preview._version.path not in preview.seen


class Screen:
    """A browser that is being tested."""

    def __init__(self, app: BrowseApp, pilot: Pilot[Any]) -> None:
        self.app, self.pilot = app, pilot

    async def settle(self) -> None:
        """Wait until nothing is being read, nor about to be, and the screen stays as it is."""
        before: list[str] = []
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            await self.pilot.pause(0.005)
            page = self.app.screen
            busy = getattr(page, "jobs", []) or any(check.is_running for check in self.app.checks.values())
            busy = busy or any(map(is_waiting, page.query(Preview)))
            is_over = self.app.ended_with is not None or self.app.return_code is not None
            if is_over or (not busy and any(before) and before == self.lines):
                return
            before = [] if busy else self.lines
        raise AssertionError(f"it has read for {_SECONDS:g} seconds:\n{self.text}")

    async def send(self, *keys: str) -> None:
        """Press keys, and wait for nothing."""
        for key in keys:
            name = NAMES.get(key, key)
            char = key if len(key) == 1 else CHARACTERS.get(key)
            self.app.post_message(events.Key(name, char))
            await self.pilot.pause(0)

    async def press(self, *keys: str) -> str:
        """Press keys one after the other, and return the screen."""
        for key in keys:
            await self.send(key)
            await self.settle()
        return self.text

    async def type(self, key: str, words: str) -> str:
        """Press a key that asks, type an answer, and return the screen after it."""
        await self.send(key)
        await self.settle()
        await self.send(*words, "enter")
        await self.settle()
        return self.text

    async def until(self, words: str) -> None:
        """Wait until the screen has some words."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if words in self.text:
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"{words!r} does not come:\n{self.text}")

    async def until_gone(self, words: str) -> None:
        """Wait until the screen has some words no more."""
        deadline = time.monotonic() + _SECONDS
        while time.monotonic() < deadline:
            if words not in self.text:
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"{words!r} stays:\n{self.text}")

    async def click(self, words: str) -> str:
        """Click where some words stand first, and return the screen."""
        for y, line in enumerate(self.text.split("\n")):
            if words in line:
                await self.pilot.click(offset=(line.index(words), y))
                await self.settle()
                return self.text
        raise AssertionError(f"{words!r} is not on the screen:\n{self.text}")

    async def resize(self, width: int, height: int) -> str:
        """Give the window another size, and return the screen."""
        await self.pilot.resize_terminal(width, height)
        await self.settle()
        return self.text

    @property
    def lines(self) -> list[str]:
        """The lines of the screen."""
        return [strip.text.rstrip() for strip in self.app.screen._compositor.render_strips()]

    @property
    def text(self) -> str:
        """The screen as text."""
        return "\n".join(self.lines)


NAMES = {
    ">": "greater_than_sign",
    "<": "less_than_sign",
    "@": "at",
    "/": "slash",
    ":": "colon",
    ".": "full_stop",
    "-": "minus",
    "_": "underscore",
    " ": "space",
}
"""The names of keys that are no letters."""
CHARACTERS = {name: char for char, name in NAMES.items()} | {"question_mark": "?"}


def browsing(
    ref: str | Path, use: Callable[[Screen], Awaitable[Any]], *, size: tuple[int, int] = (80, 24), **settings: Any
) -> BrowseApp:
    """Run the browser, have it used, and return it when it has ended."""

    async def run() -> BrowseApp:
        app = BrowseApp(parse_ref(str(ref)), parse=parse_ref, **settings)
        async with app.run_test(size=size) as pilot:
            screen = Screen(app, pilot)
            await screen.settle()
            await use(screen)
        app.stop()
        return app

    return asyncio.run(run())


def make_stable(place: Path) -> None:
    """Save a location whose screens are the same on every day and machine: three versions, the last one damaged."""
    random = np.random.default_rng(1)
    for version in (100, 200, 300):
        save_checkpoint(
            str(place),
            version,
            2,
            variables={
                "dense/bias:0": np.arange(6, dtype=np.float32) * version,
                "dense/kernel:0": (np.arange(120, dtype=np.float32).reshape(10, 12) - 60) / version,
                "global_step:0": np.array(version),
            },
            tables={
                "item": Table(np.arange(400), random.integers(-99, 99, (400, 6)).astype(np.float32) / 8, "zeros"),
                "user": Table(np.arange(0, 9000, 9), np.full((1000, 3), 1 / version, np.float32)),
            },
            layout="elasticdl",
        )
        seal = place / f".edl-ckpt-0/meta-0/{version}.seal.json"
        seal.unlink()  # it says when it was made
        set_metrics(f"{place}@{version}", {"auc": 0.7 + version / 10_000})
    add_tag(f"{place}@200", "serving")
    shard = place / "version-300/variables-1-of-2.ckpt"
    shard.write_bytes(shard.read_bytes()[:-500])
    for path in place.rglob("*"):
        os.utime(path, (NOW - 7200, NOW - 7200))


def draw(name: str, place: Path) -> str:
    """Return a picture of the stable location in a directory, as SVG."""
    ref, size, keys = PICTURES[name]
    drawn: list[str] = []

    async def use(screen: Screen) -> None:
        await screen.press(*keys)
        drawn.append(screen.app.export_screenshot(title="edl-ckpt browse"))

    with contextlib.chdir(place):  # the location is named by its last part, on whichever machine
        browsing(ref, use, size=size, now=lambda: NOW)
    return "\n".join(line.rstrip() for line in drawn[0].splitlines() if line.strip()) + "\n"


def path(name: str) -> Path:
    """Return the file of a picture."""
    return DATA / "browse" / f"{name}.svg"


_CLASS = re.compile(r"\.([\w-]+) \{ fill: (#\w+)(.*?) \}")
_TEXT = re.compile(r'<text class="([\w-]+)" x="([0-9.]+)" y="([0-9.]+)".*?>(.*?)</text>', re.DOTALL)


def words(svg: str) -> list[tuple[float, float, str, str]]:
    """Return the texts of a picture with their places and styles: what must be the same, whoever wrote the SVG."""
    styles = {name: f"{colour}{more}" for name, colour, more in _CLASS.findall(svg)}
    found = (
        (float(y), float(x), unescape(content).replace("\xa0", " ").rstrip(), styles.get(style, ""))
        for style, x, y, content in _TEXT.findall(svg)
    )
    return sorted(each for each in found if each[2])


def update(names: Iterable[str] = PICTURES) -> None:
    """Draw pictures again."""
    with tempfile.TemporaryDirectory() as place:
        make_stable(Path(place, "run"))
        for name in names:
            path(name).write_text(draw(name, Path(place)), encoding="utf-8")


if __name__ == "__main__":
    update()
