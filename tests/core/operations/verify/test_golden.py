"""The golden checkpoints that are damaged: their findings, and what ElasticDL itself says."""

from __future__ import annotations

from typing import Any

import pytest

import elasticdl_rules
from edl_ckpt.core import list_versions, verify_version
from places import GOLDEN

BAD = {
    "bak-instead-of-shard": {"extra-file", "missing-shard"},
    "bitflip": set(),
    "bool-dense": set(),
    "dir-version-differs": {"directory-version-mismatch"},
    "extra-file": {"extra-file"},
    "float-val": {"values-outside-content"},
    "missing-shard": {"missing-shard"},
    "mixed-n": {"mixed-ps-num"},
    "more-ids-than-rows": {"id-row-mismatch"},
    "no-table-info": {"missing-table-info"},
    "swapped-shards": {"misplaced-row", "misplaced-variable"},
    "truncated": {"truncated"},
    "unknown-field-1000": {"unknown-field"},
    "version-mismatch": {"version-mismatch"},
    "zero-byte": {"empty-file"},
}


@pytest.mark.parametrize("case", sorted(BAD))
def test_bad_findings(case: str, expected: Any) -> None:
    """Each damaged checkpoint gets exactly its findings at the default level."""
    version = list_versions(str(GOLDEN / "bad" / case)).versions[0]
    result = verify_version(version)
    assert {f.code for f in result.findings} == BAD[case]
    assert result.ok == (BAD[case] <= {"unknown-field"})
    assert set(BAD) == set(expected["bad"])


@pytest.mark.parametrize("case", sorted(BAD))
def test_rules_restated_rightly(case: str, expected: Any) -> None:
    """The tests' restatement of ElasticDL's validity rule says what ElasticDL's own code said."""
    directory = next((GOLDEN / "bad" / case).iterdir())
    assert elasticdl_rules.is_valid(directory) == expected["bad"][case]["valid"]
