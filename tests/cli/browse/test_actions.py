"""Rows of the browser sorted by a column, the preview of a version, and changes after a question."""

from __future__ import annotations

import threading
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest

import browsing
from browsing import Screen
from checkpoints import files_of, save_small
from edl_ckpt.cli.browse.version import VersionPage
from edl_ckpt.cli.browse.versions import Preview, VersionsPage
from edl_ckpt.core import Reporter, list_versions, set_metrics, verify_version
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.operations import annotate
from program import edl

WIDE = (140, 30)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a location of ten versions, whose metric falls and rises, and one of which has none."""
    monkeypatch.chdir(tmp_path)
    run = Path("run")
    save_small(run, *range(1, 11))
    for version, value in ((1, 0.5), (2, 0.9), (3, float("nan")), (4, 0.1), (10, 0.7)):
        set_metrics(f"{run}@{version}", {"auc": value})
    return run


def numbers(screen: Screen) -> list[int]:
    """Return the versions on the screen, from top to bottom."""
    words = [line.split()[:1] for line in screen.lines[2:13]]
    return [int(word[0]) for word in words if word and word[0].isdigit()]


def test_sorted_by_a_column(run: Path) -> None:
    """`>` and `<` choose the column, R turns the order, versions without a value stay last, the cursor on its row."""

    async def use(screen: Screen) -> None:
        assert numbers(screen) == [*range(1, 11)]
        await screen.press("up")
        assert "version ▲" in await screen.press(">")  # by the number, not by its words: 10 is not before 2
        assert numbers(screen) == [*range(1, 11)]
        await screen.press("R")
        assert numbers(screen) == [*range(10, 0, -1)]
        assert screen.app.page is not None
        assert screen.app.page.grid.cursor == 1
        for _ in range(12):
            if "auc ▲" in await screen.press(">"):
                break
        assert numbers(screen)[:4] == [4, 1, 10, 2]
        assert "auc ▼" in await screen.press("R")
        assert numbers(screen)[:4] == [2, 10, 1, 4]
        assert "run@9" in await screen.press("y")
        for _ in range(12):
            if not {"▲", "▼"} & {*(await screen.press("<"))}:
                break
        assert numbers(screen) == [*range(1, 11)]

    browsing.browsing(run, use, size=(100, 24))


def test_sorted_by_a_click(run: Path) -> None:
    """A click on a heading sorts by it, a second one turns the order; a search keeps it."""

    async def use(screen: Screen) -> None:
        await screen.click("version  state")
        await screen.click("version ▲")
        assert numbers(screen) == [*range(10, 0, -1)]
        await screen.type("/", "1")
        assert numbers(screen) == [10, 1]

    browsing.browsing(run, use, size=(100, 24))


def test_preview(run: Path) -> None:
    """A wide window shows the tables of a version, and what is lost of it; p hides them, and a narrow window too."""
    first = next(version for version in list_versions(run).versions if version.number == 1)
    shard = Path(first.shards[0].path)
    whole = shard.read_bytes()

    def write(content: bytes) -> None:
        shard.write_bytes(content)

    write(b"no")

    async def use(screen: Screen) -> None:
        await screen.until("rows, dim")
        assert f"path  {run}/version-10" in screen.text
        await screen.press("home")
        await screen.until("rows (50 %) are lost")
        write(whole)
        await screen.press("r")
        await screen.until("60 rows, dim 2")
        await screen.until_gone("are lost")  # the listing and the headers are read apart
        write(b"no")
        await screen.press("r")
        await screen.until("rows (50 %) are lost")
        await screen.press("p")
        await screen.until_gone("are lost")
        await screen.press("p")
        await screen.until("are lost")
        await screen.resize(80, 24)
        assert not screen.app.screen.query_one(Preview).display

    browsing.browsing(run, use, size=WIDE)


@pytest.mark.parametrize("answer", ["", "n", "no", "escape"])
def test_nothing_without_a_yes(run: Path, answer: str) -> None:
    """Only y and yes change something; all else leaves the disk as it is."""
    before = files_of(run.parent)

    async def use(screen: Screen) -> None:
        for key, target in (("c", "backup"), ("t", "serving"), ("e", "model.npz")):
            assert f"{target}? [y/N]" in await screen.type(key, target)
            await (screen.press("escape") if answer == "escape" else screen.press(*answer, "enter"))

    browsing.browsing(run, use, size=WIDE)
    assert files_of(run.parent) == before


def test_actions(run: Path) -> None:
    """Copy, tag and export do what the commands do, with the version under the cursor; what they refuse is an error."""

    async def use(screen: Screen) -> None:
        await screen.press("home")
        for key, target, said in (
            ("c", "backup", "copied to backup@1"),
            ("c", "backup", "is there already"),
            ("t", "serving", "tagged serving"),
            ("e", "model.npz", "exported to"),
            ("e", "model.npz", "error: "),
            ("t", "a b/c", "error: "),
            ("t", "v1@2", "error: "),
            ("c", "dest@5", "the same version number"),
            ("e", "m@2.npz", "exported to m@2.npz"),
            ("c", "s3://u:pw@b/x", "error: "),
        ):
            await screen.type(key, target)
            assert said in " ".join((await screen.press("y", "enter")).split())
        assert "tag  serving" in screen.text
        await screen.press("enter")
        await screen.type("t", "good")
        assert "tagged good" in await screen.press("y", "enter")

    browsing.browsing(run, use, size=WIDE)
    (copied,) = list_versions("backup").versions
    assert verify_version(copied, level="deep").ok
    assert {tag for version in list_versions(run).versions for tag in version.tags} == {"serving", "good"}
    assert edl("import", "model.npz", "again@1", "--ps", "1").returncode == 0


def test_an_action_that_runs(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While an action runs, neither q nor esc nor another action ends it without a word; x cancels it."""
    begun, release = threading.Event(), threading.Event()

    def slow(*_: object, **__: object) -> NoReturn:
        begun.set()
        release.wait(60)
        raise EdlCkptError("released")

    monkeypatch.setattr(annotate, "add_tag", slow)

    async def use(screen: Screen) -> None:
        await screen.press("home", "enter")
        await screen.type("t", "good")
        await screen.send("y", "enter")
        await screen.until("tag: good")
        assert begun.wait(300)
        for key in ("q", "escape", "t"):
            await screen.send(key)
            await screen.until("has not ended")
        assert isinstance(screen.app.screen, VersionPage)
        await screen.send("x")
        await screen.until("cancelled")
        release.set()
        await screen.press("escape")
        assert isinstance(screen.app.screen, VersionsPage)
        await screen.press("q")

    assert browsing.browsing(run, use, size=WIDE).return_code == 0


def test_the_end_waits_for_an_action(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C stops an action, and the program ends when the action has cleaned up, as with its lock."""
    cleaned: list[str] = []

    def slow(*_: object, reporter: Reporter) -> None:
        try:
            while True:
                reporter.advance(1)
                Event().wait(0.01)
        finally:
            Event().wait(0.2)
            cleaned.append("unlocked")

    monkeypatch.setattr(annotate, "add_tag", slow)

    async def use(screen: Screen) -> None:
        await screen.type("t", "good")
        await screen.send("y", "enter")
        await screen.until("tag: good")
        await screen.send("ctrl+c")

    assert browsing.browsing(run, use, size=WIDE).return_code == 130
    assert cleaned
