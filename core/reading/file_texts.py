"""The texts in the headers of safetensors (`__metadata__`), which go along to outputs that have a place for them."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from edl_ckpt.core.reading.reader import Checkpoint

OF_PARTS: Final = "DCP_"
"""Begins what files of torch say of the boxes in them, which are joined here."""
_ENDING: Final = ".safetensors"
_USUAL: Final = {"format"}
"""Written with every file."""
_SCHEMA: Final = "edl-ckpt/export/1"
_OF_EXPORTS: Final = {"schema", "version", "fingerprint", "metrics", "tables", "partial", "lost", "export"}
"""What an export of ours says, which is of that export alone."""


def is_of_export(key: str, texts: Container[str]) -> bool:
    """Say whether a key is what an export of ours says of itself, where these are all `schema` texts of the files."""
    return _SCHEMA in texts and key in _OF_EXPORTS


def file_texts(checkpoint: Checkpoint) -> dict[str, str]:
    """Return the texts in headers by their keys, but for those that each writer makes anew.

    Where two files differ, that of the first one counts.
    """
    texts: dict[str, str] = {}
    for note in (note for shard in checkpoint.shards for note in shard.notes if note.file.endswith(_ENDING)):
        if note.key not in _USUAL and not note.key.startswith(OF_PARTS):
            texts.setdefault(note.key, note.text)
    schema = {texts.get("schema", "")}
    return {key: text for key, text in texts.items() if not is_of_export(key, schema)}
