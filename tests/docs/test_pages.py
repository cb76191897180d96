"""README and the manual hold together: links lead somewhere, every page can be found, and the picture is current."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

import console
import edl_ckpt.core
import picture
from edl_ckpt.core.operations.export import FORMATS
from edl_ckpt.core.operations.verify.findings import HINTS, WARNINGS
from edl_ckpt.core.sources.elasticdl.consistency import BLOCKING
from edl_ckpt.core.sources.systems import systems
from places import TOP

MANUAL = TOP / "docs"
WRITTEN = [*console.pages(), TOP / "core" / "README.md", TOP / "proto" / "README.md"]
DECISIONS = sorted((MANUAL / "decisions").glob("*.md"))
CHANGES = sorted((MANUAL / "changes").glob("*.md"))
SYSTEMS = sorted((MANUAL / "systems").glob("*.md"))
WRITTEN += [*DECISIONS, *CHANGES, *SYSTEMS]
WRITTEN += [path for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md") if (path := TOP / name).exists()]
_UNCLEAR = re.compile(r"\b(whoever|nobody|beside|elsewhere|the begin of|what stands between|says no)\b", re.IGNORECASE)
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges and mkdocs make them."""
    headings = _HEADING.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(TOP)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every link within the project names a file that exists, and a heading in it."""
    for target in _LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: {target}"
        assert file.is_relative_to(TOP), f"{page.name}: {target}"
        assert not heading or heading in anchors(file), f"{page.name}: {target}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: str(page.relative_to(TOP)))
def test_words_are_plain(page: Path) -> None:
    """No page has a word that stopped readers: it names the person, the process or the place instead."""
    assert _UNCLEAR.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", sorted(MANUAL.glob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_its_task(page: Path) -> None:
    """What a reader types is in the first paragraph of a page, or in the block right behind it."""
    first, second = re.split(r"\n\n+", re.sub(r"<!--.*?-->\n", "", page.read_text(encoding="utf-8")))[1:3]
    assert re.search(r"`[^`]+`", first) or second.startswith(("```", "| ")), first


def test_every_page_can_be_found() -> None:
    """The manual's index and README lead to every page of the manual, and to no other."""
    names = {page.name for page in MANUAL.glob("*.md")} - {"index.md"}
    assert len(names) >= 14
    index = set(re.findall(r"\]\(([\w-]+\.md)", (MANUAL / "index.md").read_text(encoding="utf-8")))
    readme = set(re.findall(r"\]\(docs/([\w-]+\.md)", (TOP / "README.md").read_text(encoding="utf-8")))
    navigation = set(re.findall(r": ([\w-]+\.md)$", (TOP / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert index == names
    assert readme - {"index.md"} == names
    assert navigation == names | {"index.md"}


def test_systems_are_described() -> None:
    """README, the index of systems and the navigation lead to the page of each system, which is short."""
    names = {page.name for page in SYSTEMS}
    navigation = (TOP / "mkdocs.yml").read_text(encoding="utf-8")
    assert {f"{system.name}.md" for system in systems()} - {"elasticdl.md"} == names - {"README.md"}
    for entry, folder in (("README.md", "docs/systems/"), ("docs/systems/README.md", "")):
        text = (TOP / entry).read_text(encoding="utf-8")
        assert all(f"]({folder}{name})" in text for name in names - {"README.md"}), entry
    assert "](systems/README.md)" in (MANUAL / "index.md").read_text(encoding="utf-8")
    for page in SYSTEMS:
        assert f" systems/{page.name}\n" in navigation
        assert len(page.read_text(encoding="utf-8").split()) <= 520, page


def test_every_column_has_a_heading() -> None:
    """A reader with a screen reader hears what each column is: no table has an empty heading."""
    for page in WRITTEN:
        lines = page.read_text(encoding="utf-8").splitlines()
        for heading, rule in itertools.pairwise(lines):
            if re.fullmatch(r"[ |:-]+", rule) and "|-" in rule and heading.startswith("|"):
                assert all(cell.strip() for cell in heading.strip().strip("|").split("|")), (page, heading)


def test_readme_is_short() -> None:
    """A stranger reads README to its end: at most 150 lines."""
    assert len((TOP / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_nothing_is_installed_by_name_from_an_index() -> None:
    """No page and no message tells people to install edl-ckpt from a package index: the project is on none."""
    sources = [path for folder in ("cli", "core") for path in (TOP / folder).rglob("*.py")]
    generated = [path for folder in ("man", "reference") for path in (MANUAL / folder).glob("*")]
    for path in (*WRITTEN, *sources, *generated):
        assert not re.search(r"pip install (-\S+ )*['\"]?edl-ckpt", path.read_text(encoding="utf-8")), path


@pytest.mark.parametrize("name", picture.PICTURES)
def test_pictures_are_current(name: str) -> None:
    """Each picture shows what the program prints today, in colour; `python tests/docs/picture.py` draws it again."""
    drawn = picture.draw(name)
    before, now = (console.normalise(picture.words(svg)) for svg in (picture.path(name).read_text("utf-8"), drawn))
    assert all(f"$ {command}" in now for command in picture.PICTURES[name])
    assert len(set(re.findall(r"fill: (#[0-9a-f]{6})", drawn))) > 2
    assert before == now


@pytest.mark.parametrize("name", picture.SCREENS)
def test_screens_are_current(name: str) -> None:
    """Each picture of the browser shows what it draws today; `python tests/docs/picture.py` draws it again."""
    before, now = (picture.words(svg) for svg in (picture.path(name).read_text("utf-8"), picture.screen(name)))
    assert "? " in now
    assert before == now


def test_findings_are_described() -> None:
    """The page on verify has a row for every code that has a hint, is a warning, or stops other commands."""
    page = (MANUAL / "findings.md").read_text(encoding="utf-8")
    described = set(re.findall(r"`([\w-]+)`", "\n".join(re.findall(r"^\| (`.*`) \|", page, re.MULTILINE))))
    assert len(described) > 30
    assert {*WARNINGS, *HINTS, *BLOCKING} - {"lost-info"} <= described


def test_public_names_are_described() -> None:
    """The page on the library names everything that the engine exports, and nothing else."""
    page = (MANUAL / "library.md").read_text(encoding="utf-8")
    table = page.partition("## All public names")[2]
    rows = re.findall(r"^\| [\w ]+ \| (`.*) \|$", table, re.MULTILINE)
    named = re.findall(r"`(\w+)`", " ".join(rows))
    assert sorted(named) == sorted(edl_ckpt.core.__all__)


def test_every_room_is_described() -> None:
    """The page on the engine has a row for each of its rooms and operations, and for no package that does not exist.

    What is in a module, its own docstring says.
    """
    page = (TOP / "core" / "README.md").read_text(encoding="utf-8")
    table = page.partition("## Rooms")[2].partition("## Words")[0]
    named = re.findall(r"^\| `([\w/]+)` \| \w+", table, re.MULTILINE)
    packages = {path.parent.relative_to(TOP / "core") for path in (TOP / "core").rglob("__init__.py")} - {Path()}
    needed = {str(room) for room in packages if len(room.parts) == 1 or str(room.parent) == "operations"}
    assert len(named) == len(set(named))
    assert needed <= set(named) <= {str(room) for room in packages}


def test_decisions_are_whole() -> None:
    """Each decision has a number of its own, its context, decision and consequence in few words, and a link."""
    decisions = sorted(path for path in DECISIONS if path.name != "README.md")
    assert [path.name[:4] for path in decisions] == [f"{number:04}" for number in range(1, len(decisions) + 1)]
    links = re.findall(
        r"^\* \[(\d+)\. (.*)\]\((.*)\)$", (MANUAL / "decisions/README.md").read_text("utf-8"), re.MULTILINE
    )
    assert [name for _, _, name in links] == [path.name for path in decisions]
    for path, (number, title, _) in zip(decisions, links, strict=True):
        text = path.read_text(encoding="utf-8")
        assert text.startswith(f"# {number}. {title}\n\n**Context.** "), path
        assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Consequence"], path
        assert len(text.split()) <= 300, path


def test_changes_are_sentences() -> None:
    """Each change that is not released yet is one paragraph of at most 60 words, of a kind that the rules name."""
    rules = (MANUAL / "changes/README.md").read_text(encoding="utf-8")
    kinds = re.findall(r"^\| `(\w+)` \|", rules, re.MULTILINE)
    assert len(kinds) >= 4
    for path in CHANGES:
        if path.name != "README.md":
            assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", path.name), path
            text = path.read_text(encoding="utf-8")
            assert re.fullmatch(r"[^\s#*|>-](.+\n)+", text), path
            assert len(text.split()) <= 60, path


def test_export_formats_are_described() -> None:
    """The page on exports has a row for each format, with its endings."""
    page = (MANUAL / "export-and-import.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+(?:-checkpointing)?)` \| (.*?) \|", page, re.MULTILINE)
    described = {name: set(re.findall(r"`(\.\w+)`", endings)) for name, endings in rows}
    assert described == {name: set(form.traits.endings) for name, form in FORMATS.items()}
