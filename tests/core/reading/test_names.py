"""Names as people give them: whole keys, and the ends of keys that are no other's."""

from __future__ import annotations

import pytest

from edl_ckpt.core.base.errors import NameNotFoundError, UsageError
from edl_ckpt.core.model.tables import TableInfo
from edl_ckpt.core.reading.names import names_like, slots_of, whole_name

USER = "model.ebc.embedding_bags.user.weight"
ITEM = "model.ebc.embedding_bags.item.weight"
MOMENTUM = "optim.state.ebc.embedding_bags.user.weight.user.momentum1"
SLOTS = slots_of([TableInfo(USER, 8, ""), TableInfo(MOMENTUM, 8, "", companion_of=USER, slot="momentum1")])
KNOWN = (USER, ITEM, MOMENTUM)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        (USER, USER),
        ("user", USER),
        ("user.weight", USER),
        ("embedding_bags.item", ITEM),
        ("user:momentum1", MOMENTUM),
        (f"{USER}:momentum1", MOMENTUM),
        ("embedding_bags.user.weight:momentum1", MOMENTUM),
        ("user.momentum1", MOMENTUM),
    ],
)
def test_an_end_of_a_name_is_enough(name: str, whole: str) -> None:
    """A whole key is itself; behind a dot its end will do, also without '.weight', and a slot behind its table."""
    assert whole_name(name, KNOWN, "table", "run@1", SLOTS) == whole


def test_ends_of_tensorflow_names() -> None:
    """A slash parts names too, and what TensorFlow puts behind every object's variable may be left out."""
    known = ["net/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE", "net/dense/bias/.ATTRIBUTES/VARIABLE_VALUE"]
    assert whole_name("dense/kernel", known, "variable", "run@1") == known[0]


def test_a_table_comes_before_companions() -> None:
    """A name that a table and a companion end with means the table."""
    infos = [TableInfo("a.user", 1, ""), TableInfo("opt.user", 1, "", companion_of="a.user", slot="m")]
    assert whole_name("user", [info.name for info in infos], "table", "r", slots_of(infos)) == "a.user"


def test_no_name_is_guessed() -> None:
    """What several keys end with is an error that names them; a part in the middle is none, and gets a hint."""
    with pytest.raises(UsageError, match=r"which table\? 'weight' is the end of model.+item.+, model.+user"):
        whole_name("weight", KNOWN[:2], "table", "run@1")
    for name in ("ser", "embedding_bags", "user:momentum2", ""):
        with pytest.raises(NameNotFoundError):
            whole_name(name, KNOWN, "table", "run@1", SLOTS)


def test_globs_match_whole_names_first() -> None:
    """A glob that matches a whole name means whole names only; else it means ends of names."""
    assert names_like("us*", ["user", "old.user"]) == ["user"]
    assert names_like("us*", KNOWN[:2], SLOTS) == [USER, MOMENTUM]
    assert names_like("user:mom*", KNOWN, SLOTS) == [MOMENTUM]
    assert names_like("nothing*", KNOWN, SLOTS) == []
