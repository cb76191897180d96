"""Every screen of the browser and every key of it, driven without a terminal."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from textual import events

import browsing
from browsing import Screen
from checkpoints import at, files_of, save_mixed, save_small
from edl_ckpt.cli.browse import open_version, source
from edl_ckpt.cli.browse.page import BrowserPage
from edl_ckpt.cli.browse.values import TablePage
from edl_ckpt.cli.browse.version import VersionPage
from edl_ckpt.core import Reporter, Table, list_versions, open_checkpoint, sample_rows, save_checkpoint, set_metrics
from places import GOLDEN

SCROLLBAR = " ▁▂▃▄▅▆▇█"
UNNAMED = {"left", "h", "backspace", "tab", "shift+tab", "ctrl+c", "super+c"}
"""Other keys to go back, and those of every program with Textual."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a location of three versions, the last of which is damaged."""
    place = tmp_path_factory.mktemp("browse")
    browsing.make_stable(place / "run")
    return place


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return this location by a short name."""
    monkeypatch.chdir(place)
    return Path("run")


@pytest.mark.parametrize("name", browsing.PICTURES)
def test_pictures_are_current(name: str, place: Path) -> None:
    """Each screen looks as it did when somebody looked at its picture: texts, places and styles."""
    before, now = (browsing.words(svg) for svg in (browsing.path(name).read_text("utf-8"), browsing.draw(name, place)))
    assert now == before


def test_a_walk_through_all_screens(run: Path) -> None:
    """Enter goes down and esc goes up: versions, tables, rows, one row; variables and values; shards; what is recorded.

    Nothing on the disk changes.
    """
    before = files_of(run)

    async def use(screen: Screen) -> None:
        assert "3 versions" in screen.lines[0]
        text = await screen.press("up", "enter")
        assert "tables 2" in text
        assert "variables 3" in text
        assert "400 rows" in await screen.press("enter")
        assert "id 0" in await screen.press("enter")
        assert "tables 2" in await screen.press("escape", "escape")
        assert "[0, 0]" in await screen.press("tab", "down", "enter")
        assert "dense/kernel:0" in await screen.press("left")
        assert "variables-1-of-2.ckpt" in await screen.press("tab", "down", "enter", "escape")
        assert "offset" in await screen.press("enter")
        assert "serving" in await screen.press("backspace", "4")
        assert "serving" in await screen.press("5", "end", "enter", "escape")
        assert "version-200" in await screen.press("home", "down", "enter")
        assert "3 versions" in await screen.press("escape", "escape")
        assert "this is the first screen" in await screen.press("escape")
        assert "this is the first screen" not in await screen.press("down")
        await screen.press("q")

    app = browsing.browsing(run, use)
    assert (app.return_code, app.ended_with) == (0, None)
    assert files_of(run) == before


def test_rows_by_id_and_position(run: Path) -> None:
    """An id is found wherever its row is; a position is gone to; what is neither is said. Values are those of `get`."""
    with open_checkpoint(f"{run}@200") as checkpoint:
        vector = checkpoint.tables["item"].to_numpy([399]).vectors[0]

    async def use(screen: Screen) -> None:
        await screen.press("enter")
        text = await screen.type("g", "399")
        (line,) = (line for line in text.split("\n") if line.startswith("399 "))
        assert line.split()[3:7] == [f"{x:.5g}" for x in vector.tolist()[:4]]
        assert "run@200 --table item --id 399" in await screen.press("y")
        assert "no row has the id 4444" in await screen.type("g", "4,444")
        assert "'x' is not an id" in await screen.type("g", "x")
        assert f"{2**70} is" not in await screen.type("g", str(2**70))
        assert "no row has the id -5" in await screen.type("g", "-5")
        assert "\n  0 " in await screen.type(":", "0")
        assert "'400' is no row: they are 0 to 399" in await screen.type(":", "400")
        assert "id 0" in await screen.press("enter")

    browsing.browsing(f"{run}@200", use)


def test_a_sample(run: Path) -> None:
    """The sample is that of `sample`, another key press draws others, and esc shows all rows again."""
    expected = [sample_rows(at(run, 200), "user", 100, seed=seed).ids.tolist() for seed in (0, 1)]

    async def use(screen: Screen) -> None:
        await screen.press("down", "enter")
        for seed, ids in enumerate(expected):
            text = await screen.press("m")
            assert f"a sample (seed {seed})" in text
            assert [int(line.split()[0]) for line in screen.lines[2:12]] == ids[:10]
        assert f"id {expected[1][0]} " in await screen.press("home", "enter")
        assert "1,000 rows, dim 3" in await screen.press("escape", "escape")

    browsing.browsing(f"{run}@200", use)


def test_values_of_a_variable(run: Path) -> None:
    """Every element can be reached at every width, and a position along the first dimension is gone to."""

    async def use(screen: Screen) -> None:
        await screen.press("2", "down", "enter")
        assert "[9, 0]" in await screen.type(":", "9")
        assert "'10' is no row" in await screen.type(":", "10")
        for width in (40, 80, 200):
            await screen.resize(width, 50)
            await screen.press("home")
            lines = [line.rstrip(SCROLLBAR) for line in screen.lines[2:48]]
            numbers = [x for line in lines for x in line.partition("]")[2].split()]
            assert numbers == [f"{(k - 60) / 200:.5g}" for k in range(120)][: len(numbers)]
            assert len(numbers) > 45

    browsing.browsing(f"{run}@200", use, size=(100, 30))


def test_search(run: Path) -> None:
    """/ shows what contains a text, on every screen that has names; enter keeps it, and esc shows all again."""

    async def use(screen: Screen) -> None:
        text = await screen.press("slash", *"serv")
        assert "200" in text
        assert "\n    100" not in text
        assert "tables 2" in await screen.press("enter", "enter")
        assert "item" not in await screen.type("/", "USER")
        assert "nothing contains it" in await screen.press("tab")
        assert "global_step" in await screen.press("escape")
        assert "\n    100" in await screen.press("escape", "escape")
        assert "no version contains it" in await screen.type("/", "nowhere")
        assert "\n    100" in await screen.press("escape")
        text = await screen.press("home", "enter", "3", "enter", "slash", *"bias", "enter")
        assert "item" not in text
        assert "item" in await screen.press("escape")

    browsing.browsing(run, use)


def test_differences(run: Path) -> None:
    """The other version is chosen from the listing, or named; the newest one before is under the cursor."""
    other = f"{run}@100"

    async def use(screen: Screen) -> None:
        await screen.resize(160, 24)
        await screen.press("up", "d")
        assert "Compare" in screen.lines[0]
        text = await screen.press("enter")
        assert f"{run}@100 -> {run}@200  5 of 5 tensors differ" in text
        assert "item" in text
        await screen.press("a")
        assert "dense/bias" not in await screen.type("/", "user")
        assert "L2 of all changes" in await screen.press("enter")
        assert "measures are in the line" in await screen.press("escape", "escape", "end", "enter")
        await screen.press("escape", "d")
        assert f"{run}@100 -> {run}@200" in await screen.type("o", other)
        await screen.press("escape", "d")
        text = await screen.type("o", f"{run}@7")
        assert "no version 7" in text
        assert "versions there: 100, 200, 300" in text

    browsing.browsing(run, use)


def test_equal_versions(tmp_path: Path) -> None:
    """Versions of equal content say so, and what is equal is shown."""
    for version in (1, 2):
        save_checkpoint(str(tmp_path), version, 1, variables={"w": np.ones(3)}, tables={})

    async def use(screen: Screen) -> None:
        text = await screen.press("d", "enter")
        assert "  equal" in screen.lines[0]
        assert "variable  equal" in text

    browsing.browsing(tmp_path, use, size=(200, 20))


def test_a_change_that_is_no_number(tmp_path: Path) -> None:
    """A change by NaN is shown next to others."""
    for version, value in ((1, 1.0), (2, np.nan)):
        variables = {"a": np.array([1, value]), "v": np.array([1.0, version])}
        save_checkpoint(str(tmp_path), version, 1, variables=variables, tables={})

    async def use(screen: Screen) -> None:
        assert "nan" in await screen.press("d", "enter")

    assert browsing.browsing(tmp_path, use, size=(160, 20)).ended_with is None


def test_verify(run: Path) -> None:
    """Each level is a key; findings are listed, and shown whole; `verify` says the same of the version."""

    async def use(screen: Screen) -> None:
        assert "choose: 1 headers" in await screen.press("end", "v")
        for level in "123":
            assert "1 error" in await screen.press(level)
            assert "truncated" in screen.text
        assert "error truncated" in await screen.press("enter")
        assert "hint: the save, or a copy of the file, was interrupted" in screen.text
        await screen.press("escape", "escape", "up", "v")
        assert "no finding: checked every value; not sealed" in " ".join((await screen.press("3")).split())
        assert "run@200 --deep" in await screen.press("y")
        assert "choose" not in await screen.press("escape", "v")

    browsing.browsing(run, use, size=(160, 24))


def test_verify_in_the_background(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check goes on while another screen is looked at, which shows how far it is; x cancels it, with its threads."""
    started: list[str] = []
    ended: list[str] = []

    def slow(version: object, *, level: str, reporter: Reporter) -> None:
        started.append(level)
        reporter.start("values", 1000)
        reporter.advance(250)
        try:
            while True:
                reporter.advance(0)
                gate.wait(0.01)
        finally:
            ended.append(level)

    gate = threading.Event()
    monkeypatch.setattr(source, "verify_version", slow)

    async def use(screen: Screen) -> None:
        await screen.press("v")
        await screen.send("3")
        await screen.until("values: 250 of 1000 B, 25%")
        await screen.send("escape")
        await screen.until("tables 2")
        await screen.until("verifying run@200, values: 250 of 1000 B, 25%")
        await screen.send("v", "x")
        await screen.until("cancelled")
        assert started == ["deep"]
        while not ended:
            await screen.pilot.pause(0.01)
        assert "cancelled" in screen.lines[0]

    browsing.browsing(f"{run}@200", use, size=(160, 24))


def test_damage_is_shown_in_place(run: Path) -> None:
    """A damaged version opens to what can be read of it, and to our words; every key still does what it can."""

    async def use(screen: Screen) -> None:
        assert "warning: variables-1-of-2.ckpt: ends after" in screen.text
        assert "shards 2" in screen.text  # what stands before the cut counts
        assert "could not be read" not in await screen.press("enter", "escape")
        for key in "1234":
            assert "Traceback" not in await screen.press(key)
        assert "are lost with shard 1" in screen.text
        assert "warning: " in await screen.press("r")
        assert "Traceback" not in screen.text

    app = browsing.browsing(f"{run}@300", use)
    assert app.ended_with is None


def test_a_shard_without_a_header(tmp_path: Path) -> None:
    """A shard that is no shard is listed, and Enter says why it does not open."""
    save_small(tmp_path, 10)
    (tmp_path / "version-10/variables-1-of-2.ckpt").write_bytes(b"\xff" * 500)

    async def use(screen: Screen) -> None:
        assert "its header could not be read" in await screen.press("3", "down", "enter")

    assert browsing.browsing(f"{tmp_path}@10", use).ended_with is None


@pytest.mark.parametrize("fault", ["float-val", "missing-shard", "mixed-n", "more-ids-than-rows", "zero-byte"])
def test_golden_faults(fault: str) -> None:
    """Whatever is wrong with a version, its screens show what can be read, and errors in the place of the rest."""

    async def use(screen: Screen) -> None:
        await screen.press("enter", "enter", "end", "enter", "escape", "escape", "2", "enter")
        assert "Traceback" not in screen.text
        await screen.press("escape", "escape", "v", "3")
        assert "errors" in screen.lines[0] or "1 error" in screen.lines[0]

    app = browsing.browsing(GOLDEN / "bad" / fault, use, size=(200, 24))
    assert app.ended_with is None


def test_refresh(tmp_path: Path) -> None:
    """R shows a version that was saved meanwhile, and the cursor stays; a version that is gone is said to be gone."""
    save_small(tmp_path, 10, 20)

    async def use(screen: Screen) -> None:
        await screen.press("home")
        save_small(tmp_path, 30)
        assert "\n     30" not in screen.text
        assert "30" in await screen.press("r")
        await screen.press("enter")
        assert "@10" in screen.lines[0]
        (tmp_path / "version-10").rename(tmp_path / "away")
        assert "the version is gone" in " ".join((await screen.press("r")).split())

    browsing.browsing(tmp_path, use)


def test_the_cursor_stays(run: Path) -> None:
    """Another size of the window, r, and a way back leave the cursor where it was."""

    async def use(screen: Screen) -> None:
        def under() -> str:
            page = screen.app.screen
            assert isinstance(page, VersionPage)
            return str(page.chosen.name)

        await screen.press("2", "down", "down")
        for change in (
            screen.resize(40, 12),
            screen.resize(120, 40),
            screen.press("r"),
            screen.press("1", "down", "2"),
        ):
            await change
            assert under() == "global_step:0"
        await screen.press("enter", "escape")
        assert under() == "global_step:0"
        await screen.press("1")
        assert under() == "user"

    browsing.browsing(f"{run}@200", use)


@pytest.mark.parametrize("ref", ["", "@10", "/version-10", "/version-10/", "@latest", "@best:auc"])
def test_references(ref: str, tmp_path: Path) -> None:
    """A location opens its versions, a version itself, with the listing behind it."""
    save_small(tmp_path / "run", 10, 20)
    set_metrics(f"{tmp_path}/run@20", {"auc": 0.5})

    async def use(screen: Screen) -> None:
        wanted = {"": "2 versions", "@latest": "2 versions", "@best:auc": "run@20"}.get(ref, "run@10")
        assert wanted in screen.lines[0]
        if "@" in screen.lines[0]:
            assert "2 versions" in await screen.press("escape")

    browsing.browsing(f"{tmp_path}/run{ref}", use, size=(200, 20))


def test_a_file_by_itself(tmp_path: Path) -> None:
    """A checkpoint in a file of any name opens at once, and is the first screen."""
    save_small(tmp_path / "run", 10, ps_num=1)
    file = tmp_path / "model.bin"
    file.write_bytes((tmp_path / "run/version-10/variables-0-of-1.ckpt").read_bytes())

    async def use(screen: Screen) -> None:
        assert "model.bin" in screen.lines[0]
        assert "60 rows" in await screen.press("enter")
        assert "this is the first screen" in await screen.press("escape", "escape")
        assert "tables 1" in await screen.press("r")

    browsing.browsing(file, use, size=(200, 20))


@pytest.mark.parametrize("ref", ["nowhere", "@7", "@best:auc"])
def test_a_wrong_reference_ends_the_program(ref: str, tmp_path: Path) -> None:
    """What names nothing ends the browser with the error of `inspect`: nothing was shown."""
    save_small(tmp_path, 10)

    async def use(screen: Screen) -> None:
        pass

    app = browsing.browsing(f"{tmp_path}/{ref}" if "@" not in ref else f"{tmp_path}{ref}", use)
    assert getattr(app.ended_with, "exit_code", None) == 10


def test_an_empty_location(tmp_path: Path) -> None:
    """A location without versions says so, and no key breaks it."""

    async def use(screen: Screen) -> None:
        assert "no checkpoint here" in screen.text
        await screen.press("enter", "v", "d", "y", "w", "escape", "slash", "x", "enter", "home", "end", "pagedown")
        assert "no version contains it" in screen.text

    app = browsing.browsing(tmp_path, use)
    assert app.ended_with is None


def test_locations_below(tmp_path: Path) -> None:
    """A directory without versions shows the locations below it, and opens them."""
    save_small(tmp_path / "a/run", 10)
    save_small(tmp_path / "b", 20, 30)

    async def use(screen: Screen) -> None:
        assert "locations below" in screen.text
        assert f"{tmp_path}/a/run" in screen.text
        assert "2 versions" in await screen.press("v", "d", "down", "enter")
        assert f"{tmp_path}/b@30" in (await screen.press("enter")).split("\n")[0]
        assert "locations below" in await screen.press("escape", "escape")
        assert "/a/run" not in await screen.type("/", "/b")
        assert "/a/run" in await screen.press("escape")
        assert "locations below" in await screen.press("r")

    browsing.browsing(tmp_path, use, size=(200, 20))


def test_every_kind_of_table(tmp_path: Path) -> None:
    """Tables of wide rows, of small integers and of none open, to their last row."""
    save_mixed(tmp_path)

    async def use(screen: Screen) -> None:
        await screen.press("enter", "end")
        assert "29,999" in screen.text
        assert "no rows" in await screen.press("escape", "down", "enter")
        assert "1,500" not in await screen.press("escape", "down", "enter", "end")
        assert "... 1,49" in screen.text
        assert "[1495]" in await screen.press("enter", "end")
        assert "values  " in await screen.press("escape", "s")
        assert "[2, 0]" in await screen.press("escape", "escape", "2", "end", "enter", "home", *["down"] * 14)

    browsing.browsing(f"{tmp_path}@7", use)


def test_a_bug_ends_the_program(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is none of ours, in a thread or in a screen, ends the browser, and is reported."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async def use(screen: Screen) -> None:
        await screen.press("enter")

    with monkeypatch.context() as patch:
        patch.setattr(open_version, "opened", broken)
        assert isinstance(browsing.browsing(run, use).ended_with, ZeroDivisionError)


def test_the_help_names_every_key(run: Path) -> None:
    """Each screen's help has all of its keys, and no key of a screen stands for two things."""
    pages: list[type[BrowserPage]] = []

    def below(page: type[BrowserPage]) -> None:
        for each in page.__subclasses__():
            if each.__module__.startswith("edl_ckpt.cli.browse"):
                pages.append(each)
                below(each)

    below(BrowserPage)
    assert len(pages) > 10
    for page in pages:
        keys = [key for each in page.keys for key in each.keys.split(",") if key]
        assert len(keys) == len({*keys}), page
        assert {*page._merged_bindings.key_to_bindings} - {*keys} <= UNNAMED if page._merged_bindings else False, page
        assert {"question_mark"} <= {*keys} or page.AUTO_FOCUS != "Grid", page

    async def use(screen: Screen) -> None:
        await screen.resize(80, 50)
        for path in ((), ("enter",), ("enter",), ("escape", "s"), ("escape", "v"), ("escape", "d")):
            await screen.press(*path)
            page = screen.app.screen
            assert isinstance(page, BrowserPage)
            text = " ".join((await screen.press("question_mark")).split())
            assert [key.help for key in page.keys if " ".join(key.help.split()) not in text] == []
            await screen.press("escape")

    browsing.browsing(run, use)


def test_the_mouse(run: Path) -> None:
    """A click puts the cursor on a row, a second one opens it; tabs and keys can be clicked; the wheel scrolls."""

    async def use(screen: Screen) -> None:
        await screen.click("    100")
        assert "@100" in (await screen.click("    100")).split("\n")[0]
        assert "dense/kernel:0" in await screen.click("variables")
        assert "Keys" in await screen.click("? help")
        assert "dense/kernel:0" in await screen.click("esc back")
        await screen.click("tables")
        await screen.click("user")
        assert "1,000 rows" in await screen.click("user")
        before = screen.lines[2]
        await screen.pilot._post_mouse_events([events.MouseScrollDown], offset=(5, 5))
        await screen.settle()
        assert screen.lines[2] != before

    browsing.browsing(run, use, size=(120, 20))


def test_nothing_is_read_that_nobody_looks_at(tmp_path: Path) -> None:
    """Opening a table reads a window of its rows; going to its end reads ids, and the values of the last rows."""
    rows = 60_000
    values = np.ones((rows, 64), np.float32)
    save_checkpoint(str(tmp_path), 1, 1, variables={}, tables={"t": Table(np.arange(rows), values)})
    (version,) = list_versions(tmp_path).versions

    async def use(screen: Screen) -> None:
        await screen.press("enter")
        page = screen.app.screen
        assert isinstance(page, TablePage)
        read = page._source.checkpoint.bytes_read
        assert read < 700_000
        await screen.press("end")
        assert "59,999" in screen.text
        assert page._source.checkpoint.bytes_read - read < 700_000

    assert version.size_bytes > 15_000_000
    browsing.browsing(f"{tmp_path}@1", use)


def test_the_screen_answers_while_it_reads(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that never answers stops no key: one can go back, ask for help, and leave; the read is given up."""
    gate = threading.Event()

    def never(*_: object) -> None:
        gate.wait(120)

    monkeypatch.setattr(open_version, "opened", never)

    async def use(screen: Screen) -> None:
        begin = time.monotonic()
        for key, words in (
            ("enter", "reading headers"),
            ("question_mark", "Keys"),
            ("escape", "tables"),
            ("escape", "3 versions"),
        ):
            await screen.send(key)
            await screen.until(words)
        await screen.send("q")
        assert time.monotonic() - begin < 100

    app = browsing.browsing(run, use)
    gate.set()
    assert app.return_code == 0
