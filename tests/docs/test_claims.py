"""Each claim of the pages on safety has a test that holds it: the table names them, and nothing is claimed beside it.

`claims.toml` has, for each claim, the words of the page and the tests. A page that gains a sentence in one of the
sections below fails here until the table names the test of it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from places import TESTS, TOP

SECTIONS = {
    "README.md": ("Nothing is lost",),
    "SECURITY.md": ("What edl-ckpt does not trust", "What edl-ckpt trusts", "Credentials", "Permissions"),
    "docs/how-nothing-is-lost.md": ("Every write has the same steps", "While others write", "How it is tested"),
}
"""The sections that claim something, by their pages."""


class Claim(NamedTuple):
    """Words of a page, and the tests that hold them."""

    page: str
    words: str
    tests: tuple[str, ...]


def plain(text: str) -> str:
    """Return a text on one line, without marks."""
    return re.sub(r"\s+", " ", re.sub(r"[`*]|\]\([^)]*\)|\[", "", text)).strip()


def rows_of(kind: str) -> list[Claim]:
    """Return the rows of the table of a kind."""
    rows = tomllib.loads((Path(__file__).parent / "claims.toml").read_text(encoding="utf-8"))[kind]
    return [Claim(row["page"], plain(row["words"]), tuple(row.get("tests", ()))) for row in rows]


def items(page: str, section: str) -> list[str]:
    """Return the paragraphs and the items of lists of a section, each on one line."""
    text = (TOP / page).read_text(encoding="utf-8")
    body = re.split(r"(?m)^## ", text.partition(f"## {section}\n")[2])[0]
    assert body, f"{page} has no section {section!r}"
    body = re.sub(r"(?ms)^```.*?^```", "", body)
    found = re.split(r"\n\n|\n(?=\* |\d+\. )", body)
    return [each for each in map(plain, found) if each and not each.startswith("#")]


CLAIMS, SCOPE = rows_of("claims"), rows_of("scope")


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.words[:40])
def test_a_claim_is_on_its_page_and_its_tests_exist(claim: Claim) -> None:
    """A test that is renamed, or a sentence that is changed, is noticed."""
    assert claim.words in plain((TOP / claim.page).read_text(encoding="utf-8"))
    assert claim.tests, "a claim without a test"
    for named in claim.tests:
        path, _, name = named.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf-8"), named


SENTENCE = re.compile(r"(?<=[.!?:])\s+(?=[A-Z.\"(])")
"""Between two sentences."""
TITLES = frozenset({"Stage.", "Flush.", "Read back.", "Publish.", "Tests", "1.", "2.", "3.", "4."})
"""What only numbers or names a step."""


@pytest.mark.parametrize(("page", "section"), [(page, each) for page, some in SECTIONS.items() for each in some])
def test_nothing_is_claimed_without_a_row(page: str, section: str) -> None:
    """Each sentence is one of the table, or a part of one, or contains one; or it says what the page is about."""
    known = [row.words for row in (*CLAIMS, *SCOPE) if row.page == page]
    sentences = [one for each in items(page, section) for one in SENTENCE.split(each) if one not in TITLES]
    assert [one for one in sentences if not any(words in one or one in words for words in known)] == []
