"""New names: what a pair OLD=NEW names, and what a companion is called when its table has a new name."""

from __future__ import annotations

import pytest

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.converting.names import followed_name, new_names

USER = "model.ebc.embedding_bags.user.weight"


@pytest.mark.parametrize(
    ("pair", "names", "expected"),
    [
        (("user", "member"), ["user"], ["member"]),
        (("user", "member"), [USER], ["model.ebc.embedding_bags.member.weight"]),
        (("user.weight", "member.weight"), [USER], ["model.ebc.embedding_bags.member.weight"]),
        (("us*", "m*"), [USER], ["model.ebc.embedding_bags.mer.weight"]),
        (("user", "model.ebc.embedding_bags.x.weight"), [USER], ["model.ebc.embedding_bags.x.weight"]),
        (("kernel", "w"), ["net/kernel/.ATTRIBUTES/VARIABLE_VALUE"], ["net/w/.ATTRIBUTES/VARIABLE_VALUE"]),
        (("a.*", "b.*"), ["a.c", "a.d"], ["b.c", "b.d"]),
        (("kernel", "w"), ["x/kernel", "y/kernel"], ["x/w", "y/w"]),
    ],
)
def test_an_end_of_a_name_is_replaced(pair: tuple[str, str], names: list[str], expected: list[str]) -> None:
    """A whole name gets the new name; of a longer one, the end that the pair names is replaced."""
    assert list(new_names([pair], lambda _: names).values()) == expected


def test_two_names_that_would_be_one() -> None:
    """A glob of whole names needs a * in the new name."""
    with pytest.raises(UsageError, match="would all be named 'x'"):
        new_names([("a*", "x")], lambda _: ["ab", "ac"])


@pytest.mark.parametrize(
    ("companion", "table", "new", "expected"),
    [
        ("item_emb-freqs", "item_emb", "items", "items-freqs"),
        ("t/Adagrad", "t", "u", "u/Adagrad"),
        (
            f"optim.state.{USER.removeprefix('model.')}.user.momentum1",
            USER,
            "model.ebc.embedding_bags.member.weight",
            "optim.state.ebc.embedding_bags.member.weight.member.momentum1",
        ),
        (f"optim.state.{USER.removeprefix('model.')}.user.momentum1", USER, "other.x.member.weight",
         "optim.state.other.x.member.weight.member.momentum1"),
        ("mc.modules.user._mch_counts", "mc.embedding_bags.user.weight", "mc.embedding_bags.m.weight",
         "mc.modules.m._mch_counts"),
        ("unrelated", "table", "new", "unrelated"),
    ],
)  # fmt: skip
def test_a_companion_follows_its_table(companion: str, table: str, new: str, expected: str) -> None:
    """The name of the table is replaced in the name of its companion, wherever the system puts it."""
    assert followed_name(companion, table, new) == expected
    assert followed_name(companion, table, table) == companion
