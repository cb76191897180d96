"""Hooks of mkdocs: pages next to `docs/` become pages of the site, and links lead to them.

The README of the engine, for example, is `project/core.md` in the site. A link to a file that is no page, such as a
test, keeps its text only.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

TOP = Path(__file__).parents[2]
PAGES = {
    "core/README.md": "project/core.md",
    "proto/README.md": "project/proto.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
}
_SOURCES = {page: source for source, page in PAGES.items()}
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages next to `docs/`."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(TOP / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Return the text of a page whose links lead to pages of the site."""
    here = page.file.src_uri
    source = _SOURCES.get(here, f"docs/{here}")

    def moved(link: re.Match[str]) -> str:
        path, mark, anchor = link[3].partition("#")
        if "://" in path or path.startswith("mailto:") or not path:
            return link[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = PAGES.get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
        if files.get_file_from_path(target) is None:
            target = target and posixpath.join(target, "README.md")
            if files.get_file_from_path(target) is None:
                return f"{link[2]}"
        relative = posixpath.relpath(target, posixpath.dirname(here) or ".")
        return f"{link[1]}[{link[2]}]({relative}{mark}{anchor})"

    return _LINK.sub(moved, markdown)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Return a page whose search has a name for screen readers, which the theme leaves out."""
    return _with_named_search(output)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Return the page for an address that does not exist, with the same name; it is no page of the manual."""
    del template_name, config
    return _with_named_search(output_content)


def _with_named_search(page: str) -> str:
    return page.replace(
        'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
    )
