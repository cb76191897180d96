"""The browser with much, with far and with hostile content: it stays quick, harmless and honest."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from textual import events

import browsing
import hostile_state
from browsing import Screen
from checkpoints import save_small
from edl_ckpt.cli.browse import open_version
from edl_ckpt.cli.browse import version as version_module
from edl_ckpt.cli.browse.grid import Grid, ItemRows
from edl_ckpt.cli.terminal.tables import Cell
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core import Table, add_tag, save_checkpoint, set_metrics, set_note
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.summary import VariableSummary
from edl_ckpt.core.state.paths import META_DIR, is_verdicts
from s3_fixtures import Bucket
from s3_proxy import Fault, stall, status

NAMES = [
    "[red]not red[/red]",
    "\x1b[2J\x1b[31mescape",
    "tab\tnew\nline",
    "\u202eright to left\u2066",
    "עברית/שלום:0",
    "密集/权重🚀:0",
    "x" * 500,
    "deep/" * 60 + "name:0",
    " ",
    "$(reboot)`'\"\\",
]


@pytest.mark.parametrize("size", [(30, 10), (80, 24)])
def test_hostile_names(size: tuple[int, int], tmp_path: Path) -> None:
    """Names are shown as texts, in lines that fit, with their controls escaped; what is cut is below the table."""
    tables = {f"{name}-table": Table(np.arange(3), np.ones((3, 2), np.float32)) for name in NAMES}
    save_checkpoint(str(tmp_path), 1, 2, variables={name: np.ones(3, np.float32) for name in NAMES}, tables=tables)
    set_note(f"{tmp_path}@1", "a note with [bold]markup[/bold]\x1b[5m and \x07")
    set_metrics(f"{tmp_path}@1", {"[blink]auc": 0.5, "x" * 200: 1.0}, mode="max")
    add_tag(f"{tmp_path}@1", "[on_red]tag")

    def check(screen: Screen) -> str:
        for strip in screen.app.screen._compositor.render_strips():
            assert cell_len(strip.text) == size[0]
            assert escaped(strip.text) == strip.text
        return screen.text

    async def use(screen: Screen) -> None:
        for tab, rows in ("1", len(NAMES)), ("2", len(NAMES)), ("3", 1), ("4", 5):
            for key in (tab, *["down"] * rows):
                await screen.press(key)
                check(screen)
        await screen.press("home", "1")
        for key in ("enter", "y", "s", "escape", "escape", "2", "end", "enter", "y", "escape", "v", "2", "escape"):
            await screen.press(key)
            check(screen)
        if size[0] >= 80:
            assert "\\x1b[5m" in await screen.press("4")
            await screen.press("1", "slash", *"[red]", "enter")
            assert "[red]not red[/red]-table" in check(screen)

    app = browsing.browsing(f"{tmp_path}@1", use, size=size)
    assert app.ended_with is None


def marks(top: Path) -> dict[str, tuple[int, int, int]]:
    """Return the mode, the size and the time of everything below a directory."""
    found: dict[str, tuple[int, int, int]] = {}
    for folder, directories, files in os.walk(top):
        if folder.count("/deep") > 3:  # the rest has no path
            directories.clear()
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            if not is_verdicts(name):  # `verify` remembers what it found
                info = os.lstat(path)
                found[path] = info.st_mode, info.st_size, 0 if path.endswith(META_DIR) else info.st_mtime_ns
    return found


@pytest.mark.parametrize(
    "scene",
    [
        pytest.param(scene, marks=() if scene in {"documents", "links", "names"} else pytest.mark.slow)
        for scene in sorted(hostile_state.SCENES)
    ],
)
def test_hostile_state(scene: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """State that anybody made, such as links, pipes and endless JSON, is read with care, and nothing changes."""
    hostile_state.prepare(tmp_path)
    request.addfinalizer(lambda: subprocess.run(["rm", "-rf", tmp_path / "run"], check=True))  # it may be very deep
    hostile_state.SCENES[scene](tmp_path / "run")
    before = marks(tmp_path)

    async def use(screen: Screen) -> None:
        await screen.press("home", "enter", "4", "1", "enter", "escape", "v", "3", "escape", "escape", "w", "escape")
        assert "Traceback" not in screen.text

    app = browsing.browsing(tmp_path / "run", use)
    assert app.ended_with is None or isinstance(app.ended_with, EdlCkptError)
    assert marks(tmp_path) == before


def test_a_long_name_is_whole_below(tmp_path: Path) -> None:
    """A name that loses its middle in the table is below it, as far as there is room."""
    name = "tower/" * 12 + "embedding"
    save_checkpoint(str(tmp_path), 1, 1, variables={name: np.ones(3, np.float32)}, tables={})

    async def use(screen: Screen) -> None:
        assert "..." in screen.lines[3]
        assert name in "".join(line.strip() for line in screen.lines[-5:-1])

    browsing.browsing(f"{tmp_path}@1", use, size=(60, 24))


def test_100_000_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rows that are seen are made: keys, search and the mouse answer as with ten variables."""
    save_small(tmp_path, 1)
    many = tuple(VariableSummary(f"layer_{k:06}/kernel:0", "float32", (1,), 4, k % 2) for k in range(100_000))
    read = open_version.opened

    def opened(version: Version) -> open_version.OpenVersion:
        found = read(version)
        found.summary = replace(found.summary, variables=many)
        return found

    monkeypatch.setattr(open_version, "opened", opened)

    async def use(screen: Screen) -> None:
        assert "variables 100,000" in screen.text
        await screen.press("2")
        before = rows_made.count
        assert "layer_099999" in await screen.press("end")
        await screen.press("pageup", "home", *["pagedown"] * 10)
        await screen.pilot._post_mouse_events([events.MouseScrollDown], offset=(5, 5))
        assert "layer_009998" in await screen.type("/", "9998")
        await screen.press("escape", "3", "2")
        assert rows_made.count - before < 5000

    class Counted(ItemRows):
        """Counts the rows that are made."""

        count = 0

        def row(self, index: int) -> Any:
            """Count, and make the row."""
            Counted.count += 1
            return super().row(index)

    rows_made = Counted
    monkeypatch.setattr(version_module, "ItemRows", Counted)
    browsing.browsing(f"{tmp_path}@1", use)


def test_1000_versions(tmp_path: Path) -> None:
    """A thousand versions are one table, with the cursor on the newest; search finds one of them."""
    save_small(tmp_path, 1, ps_num=1, sealed=False)
    shard = (tmp_path / "version-1/variables-0-of-1.ckpt").read_bytes()
    for number in range(2, 1001):
        (tmp_path / f"version-{number}").mkdir()
        (tmp_path / f"version-{number}/variables-0-of-1.ckpt").write_bytes(shard)

    async def use(screen: Screen) -> None:
        assert "1,000 versions" in screen.text
        assert "\n   1000" in screen.text
        assert "\n      1" in await screen.press("home")
        assert "\n    777" in await screen.type("/", "777")
        assert "1,000 versions" in await screen.press("escape", "r")

    browsing.browsing(tmp_path, use, size=(100, 30))


def test_numbers_are_never_cut(tmp_path: Path) -> None:
    """At every width each number of a wide screen is there: in the table, or below it in the row under the cursor."""
    browsing.make_stable(tmp_path / "run")

    def numbers(screen: Screen) -> list[str]:
        grid = screen.app.screen.query_one(Grid)
        row = grid.rows.row(grid.cursor)
        assert row is not None
        return [cell if isinstance(cell, str) else cell.text for cell in row if isinstance(cell, str | Cell)]

    async def use(screen: Screen) -> None:
        for keys in ((), ("up", "enter"), ("2",), ("3",)):
            await screen.press(*keys)
            for width in (24, 30, 40, 60, 72, 80, 100, 160):
                await screen.resize(width, 40)
                flat = "".join(screen.text.split())
                shown = [cell for cell in numbers(screen) if cell and cell.strip()[0].isdigit()]
                assert [cell for cell in shown if "".join(cell.split()) not in flat] == [], width
            await screen.resize(120, 40)

    browsing.browsing(tmp_path / "run", use, size=(120, 40), now=lambda: browsing.NOW)


def test_on_s3(multi: Bucket) -> None:
    """All screens work on S3, and nothing is written to the bucket."""
    before = multi.objects()

    async def use(screen: Screen) -> None:
        assert "3 versions" in screen.text
        assert "tables" in await screen.press("enter")
        assert "rows" in await screen.press("enter")
        await screen.press("end", "enter", "escape", "s", "escape", "escape", "2", "enter", "escape")
        assert "error" not in screen.text
        assert "ok" in (await screen.press("v", "3")).split("\n")[0]
        await screen.press("escape", "d", "enter")
        assert "->" in screen.lines[0]
        assert "error" not in screen.text

    app = browsing.browsing(multi.url, use, size=(120, 30))
    assert app.ended_with is None
    assert multi.objects() == before


def test_s3_that_fails(multi: Bucket) -> None:
    """Storage that refuses is an error in its place; r tries again when it answers again."""

    async def use(screen: Screen) -> None:
        armed = multi.proxy.fail(Fault(status(403, "AccessDenied"), operation="get", times=None))
        text = await screen.press("enter")
        assert armed.hits > 0
        assert "error: " in text
        assert "Traceback" not in text
        multi.proxy.heal()
        assert "error: " not in await screen.press("r")
        assert "tables 1" in screen.text

    app = browsing.browsing(multi.url, use, size=(120, 30))
    assert app.ended_with is None


def test_s3_that_does_not_answer(multi: Bucket) -> None:
    """While a request is under way for ever, the screen answers every key, and what was asked for can be given up."""

    async def use(screen: Screen) -> None:
        multi.proxy.fail(Fault(stall(120), times=None))
        await screen.send("v", "3")
        await screen.until("verifying")
        await screen.send("escape", "r")
        await screen.until("listing ...")
        await screen.send("question_mark")
        await screen.until("show the keys of this screen")
        await screen.send("escape", "v", "x")
        await screen.until("cancelled")
        await screen.send("q")

    begin = time.monotonic()
    app = browsing.browsing(multi.url, use, size=(120, 30))
    assert (app.return_code, app.ended_with) == (0, None)
    assert time.monotonic() - begin < 100


def test_fast_paging_on_slow_storage(tmp_path: Path, s3: Bucket) -> None:
    """Who scrolls on while rows are being read gets those first; few requests are made in vain."""
    table = Table(np.arange(20_000), np.ones((20_000, 8), np.float32))
    save_checkpoint(str(tmp_path), 1, 1, variables={}, tables={"t": table})
    s3.upload(tmp_path)

    async def use(screen: Screen) -> None:
        await screen.press("enter", "enter")
        s3.proxy.reset()
        s3.proxy.fail(Fault(stall(0.2), operation="get", times=None))
        await screen.send(*["pagedown"] * 60)
        await screen.settle()
        assert s3.proxy.count("get") < 15
        assert f"{60 * 20:,}" in screen.text
        await screen.send("end", "r")
        await screen.settle()
        assert "19,999" in screen.text

    browsing.browsing(s3.url, use, size=(80, 24))
