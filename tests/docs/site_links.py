"""Check the built manual: `python tests/docs/site_links.py site/` ends with 1 when it finds a fault.

Faults are links to a page or an anchor that the site lacks, pages of the reference outside the navigation, backslashes
before pipes, and tables with an empty heading. Links to other hosts are not followed.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Page(HTMLParser):
    """The links, anchors and tables of a page."""

    links: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    headings: list[str] = field(default_factory=list)
    text: list[str] = field(default_factory=list)
    navigation: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the links, anchors and headings of a tag."""
        found = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := found.get(name))}
        for name in ("href", "src"):
            if value := found.get(name):
                self.links.append(value)
                if "md-nav__link" in (found.get("class") or ""):
                    self.navigation.add(value)
        if tag == "th":
            self._heading = True
            self.headings.append("")

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a heading."""
        if tag == "th":
            self._heading = False

    def handle_data(self, data: str) -> None:
        """Note the text."""
        self.text.append(data)
        if self.headings and self._heading:
            self.headings[-1] += data.strip()


def read(path: Path) -> Page:
    """Return a page of the site."""
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def faults(site: Path) -> list[str]:
    """Return the faults of a site, a line each."""
    pages = {path.resolve(): read(path) for path in sorted(site.rglob("*.html"))}
    found: list[str] = []
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        if name.name == "404.html":  # its links begin at the root of the host
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                found.append(f"{name}: dead link {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name}: no anchor {link}")
        if "\\|" in "".join(page.text):
            found.append(f"{name}: a pipe with a backslash")
        if "" in page.headings:
            found.append(f"{name}: a table with an empty heading")
    start = pages[(site / "index.html").resolve()]
    reachable = {(site / link).resolve() for link in start.navigation}
    reference = {path.parent for path in pages if path.parent.parent == (site / "reference").resolve()}
    found += [f"reference/{path.name}: not in the navigation" for path in sorted(reference - reachable)]
    return found


if __name__ == "__main__":
    lines = faults(Path(sys.argv[1]))
    print(*lines, sep="\n", end="\n" if lines else "")
    sys.exit(bool(lines))
