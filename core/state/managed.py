"""What the managers of a location remember: the versions that they saved, and which of them they may delete.

It is the file `.edl-ckpt-0/meta-0/manager.json`. TensorFlow's manager keeps the same in the file `checkpoint`
(`CheckpointState` in `tensorflow/python/training/checkpoint_state.proto`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.state.lock_proof import write_proved
from edl_ckpt.core.state.metadata import (
    read_document,
)
from edl_ckpt.core.state.paths import MANAGER_FILE, META_DIR
from edl_ckpt.core.storage.interface import Store

_SCHEMA: Final = "edl-ckpt/manager/1"
_PATH: Final = f"{META_DIR}/{MANAGER_FILE}"


@dataclass(frozen=True, slots=True)
class Managed:
    """The versions that managers saved and may delete, oldest first, with the time of each; the version saved last.

    Times are in seconds since the epoch; `last_preserved` is that of the last version that is kept for ever.
    """

    saved: Mapping[int, float]
    latest: int | None
    last_preserved: float


def read_managed(store: Store) -> Managed | None:
    """Return what managers remember, None when there is no file; UsageError when it is damaged."""
    document = read_document(store, _PATH)
    if document is None:
        return None
    saved = document.get("saved")
    latest = document.get("latest")
    last = document.get("last_preserved")
    good = isinstance(saved, list) and all(
        isinstance(entry, dict) and _is_number(entry.get("version")) and _is_time(entry.get("time")) for entry in saved
    )
    if not good or not isinstance(saved, list) or not (latest is None or _is_number(latest)) or not _is_time(last):
        raise UsageError("damaged: expected saved, latest and last_preserved", path=_PATH)
    return Managed({entry["version"]: float(entry["time"]) for entry in saved}, latest, float(last or 0.0))


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_time(value: object) -> bool:
    return type(value) in {int, float} and abs(float(str(value))) < 1 << 53


def write_managed(store: Store, managed: Managed) -> None:
    """Replace what managers remember; the caller holds the lock of the location."""
    document = {
        "schema": _SCHEMA,
        "latest": managed.latest,
        "saved": [{"version": version, "time": time} for version, time in managed.saved.items()],
        "last_preserved": managed.last_preserved,
    }
    write_proved(store, _PATH, (json.dumps(document, indent=2) + "\n").encode())
