"""Every golden checkpoint, resharded to any count."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import elasticdl_rules
from edl_ckpt.core import parse_ref, reshard_version, resolve, verify_version
from golden_cases import ALL, BEYOND_ELASTICDL, section_of, shard_files
from oracle import combined, read_model, without_slots
from places import GOLDEN


@pytest.mark.parametrize("ps_num", [1, 2, 3, 4, 5, 8, 31, 32, 33])
@pytest.mark.parametrize("case", ALL)
def test_reshard_golden(case: str, ps_num: int, expected: Any, tmp_path: Path) -> None:
    """Resharded to any count, the oracle finds the expected content, the placement is the rule.

    Verify has no error but those that no number of servers mends.
    """
    version = resolve(parse_ref(str(GOLDEN / case)))
    result = reshard_version(version, ps_num, output=str(tmp_path))
    files = shard_files(tmp_path)
    assert len(files) == ps_num
    assert combined(without_slots(read_model(files))) == section_of(expected, case)["combined"]
    written = resolve(parse_ref(str(tmp_path)))
    check = verify_version(written, level="deep")
    assert check.fingerprint == result.fingerprint
    bad = {f.code for f in check.findings if f.severity == "error"} - {"nan", "inf", "huge-value"}
    assert bad == BEYOND_ELASTICDL.get(case, set())
    assert elasticdl_rules.visible(tmp_path) == {Path(written.path).name}


def test_scan_is_undisturbed_in_place(tmp_path: Path) -> None:
    """After an in-place reshard, kept old shards included, ElasticDL's scan finds the same latest version."""
    location = tmp_path / "run"
    shutil.copytree(GOLDEN / "multi", location)
    before = elasticdl_rules.answer(location)
    reshard_version(resolve(parse_ref(str(location))), 3, keep_old=True)
    assert elasticdl_rules.answer(location) == before == ("version-20", "version-20")
    assert (location / ".edl-ckpt-0").is_dir()
    reshard_version(resolve(parse_ref(f"{location}@9")), 5)
    assert elasticdl_rules.answer(location) == before
