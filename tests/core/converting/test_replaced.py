"""A version of another system that is replaced while it is opened: all is of one save, or there is an error."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

from checkpoints import at
from edl_ckpt.core import convert_version, fingerprint_checkpoint, open_checkpoint
from edl_ckpt.core.base.errors import LockedError, ReplacedError
from edl_ckpt.core.storage.local import LocalStore
from foreign import copied


def test_files_of_two_saves_are_never_opened_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the opening of two files, the step gets other files of the same names."""
    place = copied("dcp/torchrec", 2, tmp_path / "run").parent
    version, opened, before = at(place, 2), LocalStore.open, threading.active_count()

    def replacing(store: LocalStore, path: str, **_: int) -> object:
        reader = opened(store, path)
        monkeypatch.setattr(LocalStore, "open", opened)
        convert_version(at(place, 2), 2, changes=None)
        return reader

    monkeypatch.setattr(LocalStore, "open", replacing)
    with pytest.raises(ReplacedError, match="replaced"):
        open_checkpoint(version)
    assert threading.active_count() == before


def test_a_reader_meets_one_of_the_two(tmp_path: Path) -> None:
    """Readers look again and again while a step is written for other ranks, in its place."""
    place = copied("dcp/torchrec", 2, tmp_path / "run").parent
    with open_checkpoint(at(place, 2)) as checkpoint:
        wanted = fingerprint_checkpoint(checkpoint).text
    stop, seen, wrong = threading.Event(), np.zeros(1, np.int64), list[str]()

    def read() -> None:
        while not stop.is_set():
            try:
                with open_checkpoint(at(place, 2)) as checkpoint:
                    text = fingerprint_checkpoint(checkpoint).text
                    checkpoint.check_unchanged()
            except LockedError:
                continue
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                wrong.append("".join(traceback.format_exception(error)))
                continue
            seen[0] += 1
            if text != wanted:
                wrong.append(text)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for ranks in (3, 2, 1, 2) * 4:
            convert_version(at(place, 2), ranks)
    finally:
        stop.set()
        reader.join()
    assert not wrong
    assert seen[0] > 0
