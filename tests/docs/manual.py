"""Make the man pages in `docs/man/`, the reference in `docs/reference/` and the JSON Schemas in `docs/schemas/`.

And the table of commands that completion needs, in `cli/completion/`, the page that `--help` shows, in `cli/manual/`,
the file for agents in `docs/skill/`,
the public names of the engine for type checkers,
`core/__init__.pyi`, and the reference in the navigation of the site, `mkdocs.yml`.

python tests/docs/manual.py             compare; the exit code is 1 when a file is out of date
python tests/docs/manual.py --update    rewrite the files
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import completion_table
import edl_ckpt.core
import markdown_pages
import roff
import schema_documents
import schema_pages
from edl_ckpt.cli.catalogue import SECTIONS
from edl_ckpt.cli.manual.pages import ManualPage, every
from edl_ckpt.cli.options.program import parser

TOP = Path(__file__).parents[2]
_ROOT = "edl-ckpt.1"
_SITE = "mkdocs.yml"
_SKILL = "docs/skill/SKILL.md"


def files() -> dict[str, str]:
    """Return the text of every generated file, by its path below the top of the repository."""
    pages = list(every(parser))
    made = {**_man_pages(pages), **_reference(pages), **_schemas(), **_completion(), "core/__init__.pyi": _door()}
    return {**made, "cli/manual/front.json": _front(pages[0]), _SKILL: _skill(pages), _SITE: _navigation(pages)}


def _front(page: ManualPage) -> str:
    """Return the page of the program as data; a row of it has no notes."""
    blocks = [
        {
            "heading": block.heading,
            "paragraphs": block.paragraphs,
            "rows": [(row.term, row.text) for row in block.rows],
            "lines": block.lines,
        }
        for block in page.blocks
    ]
    about = {"summary": page.summary, "usage": page.usage, "description": page.description}
    return json.dumps({**about, "blocks": blocks}, indent=1, ensure_ascii=False) + "\n"


def _skill(pages: list[ManualPage]) -> str:
    """Return the file by which an agent knows when to use the program, its commands, and its exit codes."""
    by_name = {page.name: page for page in pages}
    lines = [
        "---",
        "name: edl-ckpt",
        (
            "description: List, inspect, verify, compare, reshard, export, import, copy and prune checkpoints of torch"
            " DCP, TorchRec, TensorFlow, safetensors and ElasticDL, on a disk or S3, without a GPU or the framework."
        ),
        "---",
        "",
        "# edl-ckpt",
        "",
        (
            "`LOCATION@VERSION` names a version: a number, `latest`, `verified`, `best:METRIC` or a tag. Add `--json`"
            " for a document, `--dry-run` before a change. An error's `hint` says what to do. Never pass `--force`,"
            " `--yes` or `--even-newest` only because an error appeared."
        ),
    ]
    for heading, names in SECTIONS.items():
        lines += ["", f"## {heading}", ""]
        for name in (each for each in pages if each.name.partition(" ")[0] in names and not each.is_topic):
            example = next((line for block in name.blocks for line in block.lines), "")
            lines.append(f"* `{name.name}`: {name.summary} `{example}`")
    codes = next(block for block in by_name["exit-codes"].blocks if block.rows)
    lines += ["", "## Exit codes", "", *(f"* {row.term}: {row.text}" for row in codes.rows)]
    return "\n".join(lines) + "\n"


def _door() -> str:
    """Return the public names of the engine, as strict type checkers take them for exported."""
    homes = sorted(
        ((home, name) for home, names in edl_ckpt.core._HOMES.items() for name in names.split()),
        key=lambda pair: (pair[0], not pair[1].isupper(), pair[1]),
    )
    lines = [f"from edl_ckpt.core.{home} import {name} as {name}" for home, name in homes]
    names = [f'    "{name}",' for name in sorted(edl_ckpt.core.__all__, key=lambda name: (not name.isupper(), name))]
    others = ("__version__: str", "_HOMES: dict[str, str]")
    return "\n".join([*lines, "", "__all__ = [", *names, "]", *others]) + "\n"


def _completion() -> dict[str, str]:
    """Return the table from which the program completes."""
    return {"cli/completion/table.json": completion_table.make(parser())}


def _schemas() -> dict[str, str]:
    """Return the JSON Schema of every document, and the page of their keys."""
    text = schema_documents.make()
    schemas = json.loads(text)
    pages = {f"docs/schemas/{name}.json": json.dumps(one, indent=2) + "\n" for name, one in schemas.items()}
    return {"cli/render/schemas.json": text, **pages, "docs/reference/documents.md": schema_pages.draw(schemas)}


def _man_pages(pages: list[ManualPage]) -> dict[str, str]:
    """Return the man pages; that of the program names all others."""
    names = [roff.file_name(page) for page in pages]
    return {
        f"docs/man/{name}": roff.draw(page, tuple(names[1:]) if name == _ROOT else (_ROOT,))
        for name, page in zip(names, pages, strict=True)
    }


def _reference(pages: list[ManualPage]) -> dict[str, str]:
    """Return a page for each command and topic, with those of its sub-commands, and an index."""
    found: dict[str, list[ManualPage]] = {}
    for page in pages:
        found.setdefault(page.name.partition(" ")[0] or "index", []).append(page)
    texts = {f"docs/reference/{name}.md": markdown_pages.draw(group) for name, group in found.items()}
    return {**texts, "docs/reference/index.md": _index(found)}


def _index(found: dict[str, list[ManualPage]]) -> str:
    """Return the index: the commands in their sections, and the topics."""
    lines = ["# Reference", "", "These pages say what `--help`, `edl-ckpt help` and the man pages say.", ""]
    topics = tuple(name for name, group in found.items() if group[-1].is_topic)
    for heading, names in {**SECTIONS, "Topics": topics}.items():
        lines += [f"## {heading}", "", *markdown_pages.header("Topic" if names is topics else "Command", "Task")]
        lines += [f"| [{name}]({name}.md) | {found[name][-1 if name in topics else 0].summary} |" for name in names]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _navigation(pages: list[ManualPage]) -> str:
    """Return the settings of the site, with every page of the reference in the navigation."""
    begin, end = "  - Reference:\n      - reference/index.md\n", "  # The end of these lines."
    head, _, rest = (TOP / _SITE).read_text(encoding="utf-8").partition(begin)
    commands = {page.name for page in pages if not page.is_topic}
    topics = tuple(page.name for page in pages if page.is_topic and page.name not in commands)
    lines = ["      - JSON documents: reference/documents.md\n"]
    for heading, names in {**SECTIONS, "Topics": topics}.items():
        lines += [f"      - {heading}:\n", *(f"          - {name}: reference/{name}.md\n" for name in names)]
    return "".join([head, begin, *lines, end, rest.partition(end)[2]])


def stale() -> list[str]:
    """Return the generated files that are not as they would be made now: changed, absent, or of no page."""
    made = files()
    present = {
        str(path.relative_to(TOP))
        for pattern in (
            "docs/man/*",
            "docs/reference/*",
            "docs/schemas/*",
            "cli/completion/*.json",
            "cli/manual/*.json",
            "cli/render/*.json",
            "core/*.pyi",
            _SKILL,
            _SITE,
        )
        for path in TOP.glob(pattern)
    }
    changed = [p for p, text in made.items() if p in present and (TOP / p).read_text(encoding="utf-8") != text]
    return sorted({*changed, *(made.keys() ^ present)})


def update() -> None:
    """Rewrite all generated files, and remove those of no page."""
    made = files()
    for path in stale():
        if path in made:
            (TOP / path).parent.mkdir(parents=True, exist_ok=True)
            (TOP / path).write_text(made[path], encoding="utf-8")
        else:
            (TOP / path).unlink()


if __name__ == "__main__":
    if "--update" in sys.argv:
        update()
    print("\n".join(stale()), end="")
    sys.exit(1 if stale() else 0)
