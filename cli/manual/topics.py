"""Topics of the manual that belong to no single command: references, exit codes, environment, configuration, JSON.

Their texts are in `topics.toml`, and so are the words of other programs for our commands.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from edl_ckpt.cli.manual.page import Block, ManualPage, Row


def _topic(name: str, text: Mapping[str, Any]) -> ManualPage:
    blocks = tuple(
        Block(
            block["heading"],
            tuple(block.get("paragraphs", ())),
            tuple(Row(*row) for row in block.get("rows", ())),
            tuple(block.get("lines", ())),
        )
        for block in text["blocks"]
    )
    return ManualPage(name, text["summary"], "", tuple(text.get("description", ())), blocks, is_topic=True)


_TEXTS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SYNONYMS: Final = {word: command for words, command in _TEXTS.pop("words").items() for word in words.split()}
"""Our commands by the words of other programs, behind the group where there is one."""
TOPICS: Final[Mapping[str, ManualPage]] = {name: _topic(name, text) for name, text in _TEXTS.items()}
"""The pages of the topics of `edl-ckpt help TOPIC`."""
