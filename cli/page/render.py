"""A report as one HTML page."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from edl_ckpt.cli import __version__
from edl_ckpt.cli.page.sections import facts_of, made_by, sections_of
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.libraries import library

if TYPE_CHECKING:
    from edl_ckpt.core.operations.report.results import LocationReport


def check_libraries() -> None:
    """Raise UnsupportedError without the libraries of the extra `report`."""
    for name in ("jinja2", "vl_convert"):
        library(name, "report")


def page_of(report: LocationReport) -> str:
    """Return a report as HTML; UnsupportedError without the libraries of the extra `report`."""
    jinja2 = library("jinja2", "report")
    here = files("edl_ckpt.cli.page")
    style = here.joinpath("page.css").read_text(encoding="utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["zip"] = zip
    template = environment.from_string(here.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page: str = template.render(
        program=__version__,
        place=escaped(report.location.url),
        made=made_by(report),
        facts=facts_of(report),
        sections=sections_of(report),
        style=style,
        style_digest=f"sha256-{digest}",
    )
    return page
