"""The page of the program as `tests/docs/manual.py` made it: `--help` imports no command and no parser to show it."""

from __future__ import annotations

import json
from pathlib import Path

from edl_ckpt.cli.manual.pages import ManualPage, page_of_text


def front_page() -> ManualPage:
    """Return the page of the program, which a test holds against `pages.root`."""
    text = json.loads(Path(__file__).with_name("front.json").read_text(encoding="utf-8"))
    return page_of_text("", text)
