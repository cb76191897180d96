"""`edl-ckpt report`: a page that a validator accepts, a browser shows without a network, and no name can break."""

from __future__ import annotations

import re
import shlex
import socket
from itertools import pairwise
from pathlib import Path

import html5lib
import numpy as np
import pytest

from browser import first_pixel, needs_browser, open_page, picture
from checkpoints import save_small
from edl_ckpt.cli.page import charts, render
from edl_ckpt.core import (
    Latest,
    Policy,
    ReportLimits,
    Table,
    add_tag,
    report_location,
    save_checkpoint,
    set_metrics,
    set_note,
)
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import size
from places import TOP
from program import document, edl, inside
from s3_fixtures import Bucket

HOSTILE = (
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(2)>", "\"quotes' & <b>", "</style><h1>", "x" * 500,
    "\u202egnp.exe", "{{ 7 * 7 }}", "a\nb\x1b[31m\x00", "]]><!--", "y" * 40 + "1" + "y" * 40, "y" * 40 + "2" + "y" * 40,
)  # fmt: skip
LIGHT, DARK = (255, 255, 255), (0x14, 0x17, 0x1B)
HTML = "{http://www.w3.org/1999/xhtml}"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a location whose names, metrics, tags and notes are meant to break a page."""
    run = tmp_path_factory.mktemp("<b>hostile") / "run"
    rng = np.random.default_rng(0)
    for version in (10, 20, 30):
        tables = {name: Table(np.arange(30) + version, rng.normal(size=(30, 3))) for name in HOSTILE}
        variables = {name: rng.normal(size=(4, 2)) for name in HOSTILE}
        save_checkpoint(str(run), version, 2, variables=variables, tables=tables, layout="elasticdl")
        values = (float("nan"), float("inf"), 0.5, version / 40)
        set_metrics(f"{run}@{version}", dict(zip(HOSTILE[:4], values, strict=True)))
        set_note(f"{run}@{version}", HOSTILE[0])
    add_tag(f"{run}@20", "a<b>&'")
    (run / "version-20/variables-0-of-2.ckpt").write_bytes(b"no")
    return run


@pytest.fixture(scope="module")
def page(hostile: Path) -> str:
    """Return the page about it."""
    return render.page_of(report_location(hostile, Policy((Latest(1),))))


def test_valid_and_harmless(page: str) -> None:
    """The strict parser of HTML finds no fault, and no element or attribute that could run or fetch anything."""
    root = html5lib.HTMLParser(strict=True).parse(page)
    names = {str(element.tag).rpartition("}")[2] for element in root.iter()}
    assert not names & {"script", "img", "link", "iframe", "object", "embed", "form", "base", "image", "use", "a:"}
    for element in root.iter():
        for key, value in element.attrib.items():
            assert not str(key).lower().startswith("on")
            assert str(key).rpartition("}")[2] not in {"src", "srcset", "style", "action"}
            assert "href" not in str(key) or value.startswith("#")
    style = root.find(f".//{HTML}style").text
    assert "url(" not in style
    assert "@import" not in style


def test_names_are_there_as_text(page: str) -> None:
    """Each hostile name stands in the page as text, escaped as everywhere else, and none of it is interpreted."""
    text = "".join(html5lib.parse(page).itertext())
    for name in (HOSTILE[0], HOSTILE[2], HOSTILE[4], HOSTILE[6], r"\u202egnp.exe", r"a\nb\x1b[31m\x00", "a<b>&'"):
        assert name in text
    assert "\u202e" not in page


def test_reading_with_ears(page: str) -> None:
    """Headings descend in order, tables have captions and heads, charts are images with names, ids occur once."""
    root = html5lib.parse(page)
    levels = [int(str(e.tag)[-1]) for e in root.iter() if re.fullmatch(rf"{re.escape(HTML)}h[1-6]", str(e.tag))]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tables = root.findall(f".//{HTML}table")
    assert len(tables) > 5
    for table in tables:
        assert "".join(table.find(f"{HTML}caption").itertext()).strip()
        assert all(head.get("scope") in {"col", "row"} for head in table.iter(f"{HTML}th"))
    drawings = root.findall(f".//{HTML}figure/{HTML}div/{SVG}svg")
    assert len(drawings) > 10
    assert all(drawing.get("role") == "img" and drawing.get("aria-label") for drawing in drawings)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    used = set(re.findall(r"url\(#([\w-]+)\)", page)) | set(re.findall(r'href="#([\w-]+)"', page))
    assert used <= set(ids)


def test_marks_say_their_values(hostile: Path, page: str) -> None:
    """Under the pointer each bar and point has its values in words, and no part of a line has those of another."""
    drawn = html5lib.parse(page)
    titles = [title.text for title in drawn.iter(f"{SVG}title")]
    report = report_location(hostile, Policy((Latest(1),)))
    for version in report.versions:
        assert f"{version.key}: {size(version.size_bytes)}, {charts.status(report, version)}" in titles
    assert report.newest is not None
    assert all(f"shard {shard.ps_id}: {size(shard.size_bytes)}" in titles for shard in report.newest.shards)
    counts = sum(sum(tensor.stats.histogram) for tensor in report.tensors)
    bars = [title for title in titles if re.fullmatch(r"\S+ to \S+: \d+", title)]
    assert sum(int(bar.rpartition(" ")[2]) for bar in bars) == counts
    assert len(titles) == len([title for title in titles if title])


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def test_contrast() -> None:
    """In both schemes text has a contrast of 4.5 to 1 on both grounds, and lines and bars 3 to 1, as WCAG 2 wants."""
    style = (TOP / "cli/page/page.css").read_text("utf-8")
    pairs = {n: (a, b) for n, a, b in re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", style)}
    plain = dict(re.findall(r"--([\w-]+): (#\w{6});", style))
    assert plain == {name: light for name, (light, _) in pairs.items()}
    for name, colours in pairs.items():
        if name in {"ground", "panel", "grid"}:
            continue
        for colour, *grounds in zip(colours, pairs["ground"], pairs["panel"], strict=True):
            for ground in grounds:
                low, high = sorted((_luminance(colour), _luminance(ground)))
                least = 3 if name in {"line", "idle"} or name.startswith("series") else 4.5
                assert (high + 0.05) / (low + 0.05) >= least, (name, colour, ground)


@needs_browser
def test_in_a_browser(page: str, tmp_path: Path) -> None:
    """Without a network a browser shows the page, light and dark as its reader prefers or chooses, wide and narrow."""
    shown = tmp_path / "page.html"
    shown.write_text(page, "utf-8")
    chosen = tmp_path / "chosen.html"
    chosen.write_text(page.replace('id="auto" checked', 'id="auto"').replace('id="dark"', 'id="dark" checked'), "utf-8")
    light, dark = picture(shown, 1100, 900), picture(shown, 1100, 900, dark=True)
    assert (first_pixel(light), first_pixel(dark)) == (LIGHT, DARK)
    assert min(len(light), len(dark)) > 20_000  # not blank
    assert first_pixel(picture(chosen, 400, 800)) == DARK
    open_page(chosen, f"--print-to-pdf={tmp_path}/page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


@needs_browser
def test_what_slips_through_is_harmless(page: str, tmp_path: Path) -> None:
    """Even a script or an image that got into the page unescaped would neither run nor be fetched."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        port = server.getsockname()[1]
        bad = f"<script>document.title = 'run'</script><img src='http://127.0.0.1:{port}/x' onerror='document.title=1'>"
        bad += f"<link rel=stylesheet href='http://127.0.0.1:{port}/y'><svg onload=\"document.title='run'\"></svg>"
        spoiled = tmp_path / "page.html"
        spoiled.write_text(page.replace("<main>", f"<main>{bad}"), "utf-8")
        assert "<title>Checkpoints in" in open_page(spoiled, "--dump-dom")
        with pytest.raises(TimeoutError):
            server.accept()


def test_whole_or_not_at_all(tmp_path: Path) -> None:
    """The page appears by one rename; an old file stays without --force; among checkpoints it would break the scan."""
    run, target = tmp_path / "run", tmp_path / "page.html"
    save_small(run, 1, 2)
    done = edl("report", run, "-o", target)
    assert done.returncode == 0
    assert done.stdout.startswith(f"{target}  ")
    before = target.read_bytes()
    assert edl("report", run, "-o", target).returncode == 16
    assert target.read_bytes() == before
    assert edl("report", run, "-o", target, "--force", "--no-values").returncode == 0
    assert target.read_bytes() != before
    for place in (run / "page.html", run / "version-1" / "page.html"):
        assert edl("report", run, "-o", place).returncode == 16
        assert not place.exists()
    assert edl("report", run, "-o", tmp_path / "absent" / "page.html").returncode == 10
    assert edl("report", tmp_path / "none", "-o", tmp_path / "other.html").returncode == 10
    assert [*tmp_path.glob("*.html")] == [target]
    assert not [*tmp_path.glob(".*edl-ckpt*")]


def test_stdout_and_json(tmp_path: Path) -> None:
    """`-o -` prints the page and nothing else; --json prints the data, beside a page too; neither alone is refused."""
    run = tmp_path / "run"
    save_small(run, 1, 2)
    printed = edl("report", run, "-o", "-")
    assert printed.stdout.startswith("<!DOCTYPE html>")
    assert printed.stdout.rstrip().endswith("</html>")
    found = document("report", run, "-o", tmp_path / "page.html", "--keep", "1")
    assert [version["action"] for version in found["versions"]] == ["delete", "keep"]
    assert (tmp_path / "page.html").exists()
    assert edl("report", run).returncode == 2
    assert edl("report", run, "-o", "").returncode == 2
    of_version = edl("report", run / "version-1", "--json")
    assert of_version.returncode == 2
    assert f"try: edl-ckpt report {shlex.quote(str(run))}" in of_version.stderr
    assert edl("report", run, "-o", "-", "--json").returncode == 2


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the libraries the extra is named before anything is read; the data need none of them."""
    save_small(tmp_path / "run", 1)

    def absent(name: str, extra: str) -> None:
        raise UnsupportedError(f"{name} is not installed", hint=extra)

    monkeypatch.setattr(render, "library", absent)
    failed = inside(capsys, "report", tmp_path / "none", "-o", tmp_path / "page.html", code=15)
    assert failed["hint"] == "report"
    assert len(inside(capsys, "report", tmp_path / "run")["versions"]) == 1


def test_empty_location(tmp_path: Path) -> None:
    """A location without versions has a page that says so."""
    (tmp_path / "run").mkdir()
    text = "".join(html5lib.HTMLParser(strict=True).parse(render.page_of(report_location(tmp_path / "run"))).itertext())
    assert "There is no version in" in text


def test_on_s3(s3: Bucket, tmp_path: Path) -> None:
    """A report on a bucket and one written to a bucket are those of a disk."""
    save_small(s3.url, 1, 2)
    save_small(tmp_path / "run", 1, 2)
    far, near = report_location(s3.url), report_location(tmp_path / "run")
    assert far.tensors == near.tensors
    assert [(d.relative, d.max_abs) for d in far.drift] == [(d.relative, d.max_abs) for d in near.drift]
    assert "s3://" in render.page_of(far)


def test_requests_on_s3(s3: Bucket) -> None:
    """On a bucket, ten more versions cost no more than their part of the listing, and a prune's look at the newest."""
    counts = []
    for versions in (range(1, 7), range(7, 17)):
        save_small(s3.url, *versions, sealed=False)
        s3.proxy.requests.clear()
        report_location(s3.url, limits=ReportLimits(versions=5, opened=3, compared=2))
        counts.append(s3.proxy.count())
    assert counts[1] <= counts[0] + 2


def test_labels() -> None:
    """Names that are shortened to the same label stay apart: one line each."""
    names = charts.labels(HOSTILE)
    assert len(set(names.values())) == len(HOSTILE)
    assert all(len(label) < 45 for label in names.values())


def test_labels_show_where_names_differ() -> None:
    """Long names that begin and end alike are cut so that what differs is seen; one that contains another too."""
    names = [f"{'towers/' * 9}{part}/{'weights/' * 9}" for part in ("age", "sex")]
    assert [("age" in short, "sex" in short) for short in charts.labels(names).values()] == [(1, 0), (0, 1)]
    within = ["x" * 60, "x" * 61]
    assert len(set(charts.labels(within).values())) == 2


def test_findings_come_first(hostile: Path, page: str, tmp_path: Path) -> None:
    """The first number is that of errors, red and a link to them; the first section is that of findings."""
    root = html5lib.parse(page)
    first = root.find(f".//{HTML}dl/{HTML}div")
    assert "".join(first.itertext()).split() == ["errors", "found2"]
    assert first.find(f".//{HTML}a").get("href") == "#findings"
    assert first.find(f"{HTML}dd").get("class") == "bad"
    assert root.find(f".//{HTML}section").get("id") == "findings"
    save_small(tmp_path / "run", 1, 2)
    healthy = html5lib.parse(render.page_of(report_location(tmp_path / "run")))
    assert healthy.find(f".//{HTML}dl/{HTML}div/{HTML}dd").get("class") is None


def test_older_versions_are_folded(tmp_path: Path) -> None:
    """The newest 50 versions are rows at once, the others unfold; each chart takes the width of the page."""
    save_small(tmp_path / "run", *range(1, 54))
    root = html5lib.parse(render.page_of(report_location(tmp_path / "run")))
    versions = root.find(f".//{HTML}section[@id='versions']")
    shown, folded = (
        versions.findall(f"{where}/{HTML}div/{HTML}table/{HTML}tbody/{HTML}tr") for where in (".", f"{HTML}details")
    )
    assert [row[0][0].text for row in shown] == [str(k) for k in range(53, 3, -1)]
    assert [row[0][0].text for row in folded] == ["3", "2", "1"]
    large = versions.findall(f"{HTML}figure/{HTML}div/{SVG}svg")
    assert large
    assert all(float(svg.get("width")) > 1000 for svg in large)
