"""Patterns that are compiled at their first use."""

from __future__ import annotations

import re

import pytest

from edl_ckpt.core.base.patterns import LatePattern


def test_a_late_pattern_matches_as_one_of_re() -> None:
    """Every method returns what the same pattern of `re` returns."""
    text = "step-7, Step-20"
    late, early = LatePattern(r"step-(\d+)", re.IGNORECASE), re.compile(r"step-(\d+)", re.IGNORECASE)
    for found, expected in (
        (late.match(text), early.match(text)),
        (late.match(text, 8), early.match(text, 8)),
        (late.search("a step-3"), early.search("a step-3")),
        (late.fullmatch("step-1"), early.fullmatch("step-1")),
    ):
        assert found is not None
        assert expected is not None
        assert (found.span(), found.groups()) == (expected.span(), expected.groups())
    assert late.fullmatch(text) is None
    assert [each[1] for each in late.finditer(text)] == ["7", "20"]
    assert [each[1] for each in late.finditer(text, 1)] == ["20"]
    assert LatePattern("[;,]").split("a,b;c") == ["a", "b", "c"]
    assert LatePattern(rb"\\(\d)").sub(lambda match: b"<" + match[1] + b">", rb"a\1") == b"a<1>"


def test_a_pattern_costs_nothing_before_it_is_used() -> None:
    """An error in a pattern shows at its first use: nothing is compiled before."""
    late = LatePattern("(")
    with pytest.raises(re.error):
        late.search("")
