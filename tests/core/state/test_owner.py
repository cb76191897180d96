"""Whose a lock or a staged file is, and whether its owner is still alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from edl_ckpt.core.base.ids import new_id
from edl_ckpt.core.state import owner as owner_module
from edl_ckpt.core.state import signature


def test_another_space_of_process_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another container, though its host has our name, is judged by its silence, not by our processes."""
    words = signature.describe("x")
    dead = {**words, "pid": 2**22 + 5}
    assert owner_module.is_dead(dead, 0.0)
    assert not owner_module.is_dead({**dead, "kernel": "another"}, 0.0)
    assert owner_module.is_dead({**dead, "kernel": "another"}, 1e6)
    assert not owner_module.is_me({**words, "kernel": "another"})
    name = new_id()
    assert owner_module.is_here(owner_module.owner_in(name))
    assert not owner_module.is_here(owner_module.owner_in(name.replace(f"_{words['kernel']}-", "_00000000-")))


def test_an_owner_without_signs_of_life() -> None:
    """What cannot show that it is alive, on another host, counts as dead after a day, and not before."""
    owner = {"pid": 7, "host": "elsewhere"}
    day = 24 * 3600.0
    assert not owner_module.is_presumed_dead(owner, day)
    assert owner_module.is_presumed_dead(owner, day + owner_module.STALE_SECONDS + 1)
