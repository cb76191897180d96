"""Conditions on rows: what a text says, and which rows of a table and of its companions stay."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bundle_files import write_bundle
from checkpoints import at, files_of
from edl_ckpt.core import Changes, Table, Version, convert_version, open_checkpoint, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.converting.row_filters import parse_row_filter
from examples import examples
from foreign import copied

OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
COLUMNS: dict[str, npt.NDArray[Any]] = {
    "freqs": np.array([0, 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)], np.int64),
    "small": np.array([-128, 127, 0, 1, 2, 3], np.int8),
    "half": np.array([0.1, 65504, np.inf, -np.inf, np.nan, -0.0], np.float16),
    "single": np.array([0.1, 16777216, 3.4e38, np.inf, np.nan, -1], np.float32),
    "double": np.array([0.1, 1e300, -1e300, np.nan, 5e-324, 2.0**53], np.float64),
    "flags": np.array([True, False, True, False, True, True]),
}
IDS = np.array([0, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), -1], np.int64)
WHOLE = st.one_of(
    st.integers(-5, 5),
    st.sampled_from(
        [127, 128, -129, 65504, 65505, 16777216, 16777217, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1]
    ),
    st.integers(-(2**80), 2**80),
).map(str)
NUMBERS = st.one_of(
    WHOLE,
    st.sampled_from(["1_000", "+7", "0.1", "1.50", "-0.0", "2e3", "9.007199254740993e15", "1e300", "1E-300", "1e+2"]),
    st.decimals(-1000, 1000, places=3).map(str),
)
TERMS = st.tuples(st.sampled_from([*COLUMNS, "id"]), st.sampled_from([*OPERATORS]), NUMBERS)
WAYS = st.lists(st.lists(TERMS, min_size=1, max_size=3), min_size=1, max_size=3)
SPACES = st.sampled_from(["", " ", "  "])
Row = Mapping[int, bytes]


@given(ways=WAYS, space=SPACES, table=st.sampled_from(["user", "a/b:0", "x where y", "or", "and.where", "密集"]))
def test_a_text_says_its_terms(ways: list[list[tuple[str, str, str]]], space: str, table: str) -> None:
    """Each term comes back; `and` binds closer than `or`; whole numbers are whole however they are written."""
    text = f"{table} where " + " or ".join(" and ".join(space.join(term) for term in way) for way in ways)
    rows = parse_row_filter(text)
    assert (rows.table, rows.text) == (table, text)
    assert [[(t.column, t.operator) for t in way] for way in rows.ways] == [[t[:2] for t in way] for way in ways]
    for term, (_, _, number) in zip((t for w in rows.ways for t in w), (t for w in ways for t in w), strict=True):
        exact = Fraction(number.replace("_", ""))
        assert isinstance(term.number, int) == (exact.denominator == 1)
        assert term.number == (int(exact) if exact.denominator == 1 else float(exact))
    columns = dict.fromkeys(term[0] for way in ways for term in way if term[0] != "id")
    assert rows.columns == list(columns)


@pytest.mark.parametrize(
    "condition",
    [
        *("", "id", "id <", "< 3", "3 < id", "id < 1 < 2", "id < three", "id << 3", "id <> 3", "id =! 3", "id === 3"),
        *("id < 3 and", "or id < 3", "id < 3 or or id < 4", "not id < 3", "(id < 3)", "id < (3)", "id < 3, id > 4"),
        *("id < 3 AND id > 1", "id < 3 && id > 1", "id < 3; import os", "id < 3 # and", "id < nan", "id < inf"),
        *("id < 0x10", "id < --1", "id < 1e", "id < 1.", "id < .5", "id < 1j", "id < 1__import__", "id < _1"),
        *(
            "__import__('os').abort()",
            "id.__class__ < 1",
            "id[0] < 1",
            "id < id",
            "id < '3'",
            "id < `ls`",
            "id < $HOME",
        ),
        *("ід < 1", "id < １", "id < ٣", "id\0 < 1", "id < 1\0"),  # noqa: RUF001 - letters and digits of other scripts
        *("id < 1e309", "id > -1e309", "id < 1e999999999", "id < 1e99999999999999999999", "id < " + "9" * 5000),
    ],
)
def test_any_other_text_is_a_usage_error(condition: str) -> None:
    """A text that is no condition is refused with the form that is expected; nothing in it is evaluated."""
    with pytest.raises(UsageError) as error:
        parse_row_filter(f"user where {condition}")
    assert "expected TABLE where COLUMN OPERATOR NUMBER" in str(error.value.hint)


@pytest.mark.parametrize(
    "text", ["", "user", "where id < 3", " where id < 3", "user id < 3", "user where", "user whereid<3"]
)
def test_a_table_and_where_come_first(text: str) -> None:
    """Without a table or `where` a text is no condition."""
    with pytest.raises(UsageError, match="is not a row condition"):
        parse_row_filter(text)


@given(text=st.text(max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    """Whatever stands behind `where`, it is terms, or it is a usage error."""
    try:
        rows = parse_row_filter(f"user where {text}")
    except UsageError:
        return
    assert all(term.operator in OPERATORS for way in rows.ways for term in way)


@examples(25)
@given(ways=WAYS)
def test_rows_go_by_exact_comparisons(ways: list[list[tuple[str, str, str]]]) -> None:
    """The rows that go are those of arithmetic without rounding, for each dtype, and NaN is only unequal."""
    text = "t where " + " or ".join(" and ".join(" ".join(term) for term in way) for way in ways)
    gone = parse_row_filter(text).goes(IDS, COLUMNS)
    assert gone.dtype == np.bool_
    assert gone.tolist() == [any(all(holds(term, row) for term in way) for way in ways) for row in range(len(IDS))]


def holds(term: tuple[str, str, str], row: int) -> bool:
    """Say whether a term holds for a row of the columns, by fractions."""
    column, sign, number = term
    value = (IDS if column == "id" else COLUMNS[column])[row].item()
    exact = Fraction(number.replace("_", ""))
    if isinstance(value, float):
        return bool(OPERATORS[sign](value, float(exact)))  # a double is the finest there is
    return bool(OPERATORS[sign](Fraction(value), exact))


@pytest.mark.parametrize("text", ["t where id < 3", "t where half > 1 or small = 2 and id != 0"])
def test_no_rows_are_no_answer(text: str) -> None:
    """Of no rows none goes."""
    assert parse_row_filter(text).goes(IDS[:0], {n: c[:0] for n, c in COLUMNS.items()}).shape == (0,)


def content(version: Version) -> dict[str, dict[int, bytes]]:
    """Return the rows of each table as bytes by their ids."""
    with open_checkpoint(version) as checkpoint:
        found = {name: checkpoint.table(name).to_numpy() for name in checkpoint.table_names}
    return {
        name: {int(key): np.asarray(row).tobytes() for key, row in zip(rows.ids, rows.vectors, strict=True)}
        for name, rows in found.items()
    }


def edited(version: Version, place: Path, *rules: str) -> dict[str, dict[int, bytes]]:
    """Leave rows out by rules; return what stays, after all checks and a dry run that says the same."""
    before = files_of(place)
    planned = convert_version(version, output=place / "out", changes=Changes(rows=rules), dry_run=True)
    assert files_of(place) == before
    result = convert_version(version, output=place / "out", changes=Changes(rows=rules))
    assert (planned.rows, planned.size_bytes, planned.dropped) == (result.rows, result.size_bytes, result.dropped)
    out = at(place / "out", result.version or 0)
    assert verify_version(out, level="deep").ok
    assert {name: data for name, data in files_of(place).items() if name in before} == before
    return content(out)


def deeprec(place: Path, ids: npt.NDArray[np.int64], freqs: Any, versions: Any, parts: int = 1) -> Version:
    """Write a bundle of DeepRec with frequencies and versions."""
    arrays: dict[str, Any] = {"w": np.ones(3, np.float32)}
    for part in range(parts):
        chosen = np.flatnonzero(ids % 1000 % parts == part)
        chosen = chosen[np.argsort(ids[chosen] % 1000, kind="stable")]
        stem = f"item/part_{part}" if parts > 1 else "item"
        arrays[f"{stem}-keys"] = ids[chosen]
        arrays[f"{stem}-values"] = np.stack([ids[chosen], ids[chosen] + 1], 1).astype(np.float32)
        arrays[f"{stem}-freqs"], arrays[f"{stem}-versions"] = np.asarray(freqs)[chosen], np.asarray(versions)[chosen]
        arrays[f"{stem}-partition_offset"] = np.searchsorted(ids[chosen] % 1000, np.arange(1001)).astype(np.int32)
    write_bundle(place / "run/model.ckpt-10", arrays)
    return at(place / "run", 10)


@examples(4)
@given(
    keys=st.lists(st.integers(0, 2**63 - 1), unique=True, min_size=1, max_size=40),
    seed=st.integers(0, 99),
    parts=st.sampled_from([1, 3]),
    bounds=st.tuples(st.integers(-1, 5), st.integers(-1, 5), st.integers(0, 2**63 - 1)),
)
def test_columns_of_deeprec(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], seed: int, parts: int, bounds: tuple[int, int, int]
) -> None:
    """Frequencies, versions and ids decide together, in parts or not, and all columns lose the same rows."""
    random, ids, place = np.random.default_rng(seed), np.array(keys, np.int64), tmp_path_factory.mktemp("deeprec")
    freqs, versions = random.integers(0, 5, (2, len(ids)))
    version = deeprec(place, ids, freqs, versions, parts)
    before, (freq, age, key) = content(version), bounds
    rule = f"item where freqs < {freq} and versions <= {age} or id > {key}"
    gone = ((freqs < freq) & (versions <= age)) | (ids > key)
    kept = set(ids[~gone].tolist())
    after = edited(version, place, rule)
    assert after.keys() == before.keys() or not kept
    assert all(rows == {k: before[name][k] for k in kept} for name, rows in after.items())


SOURCES = {
    "dynamicemb, scores of two": ("dynamicemb", 1),
    "dynamicemb": ("dynamicemb", 2),
    "dynamicemb, four ranks": ("dynamicemb", 3),
    "tfra": ("tfra", 3),
}


def source(name: str, place: Path) -> Version:
    """Return a version of a name, with the table to filter as its first one."""
    if name in SOURCES:
        system, number = SOURCES[name]
        return at(copied(system, number, place / "run").parent, number)
    ids = np.array([0, 1, 5, 2**53 - 1, 2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, -1, -(2**63)], np.int64)
    rows = np.arange(30, dtype=np.float32).reshape(10, 3)
    tables = {"user": Table(ids, rows), "zero": Table(ids[:0], rows[:0]), "zoo": Table(ids, rows)}
    return save_checkpoint(place / "run", 10, int(name), variables={"w": np.ones(3)}, tables=tables, layout="elasticdl")


@pytest.mark.parametrize("name", ["1", "3", *SOURCES])
def test_ids_of_each_system(tmp_path: Path, name: str) -> None:
    """Rows go by their ids, the first of an order and the last, whole companions with them; other tables stay."""
    version = source(name, tmp_path)
    before = content(version)
    table = next(iter(before))
    ids = sorted(before[table])
    middle, last = ids[len(ids) // 2], ids[-1]
    rule = f"{table} where id >= {middle} and id != {last} or id == {ids[0]}"
    kept = {key for key in ids if not ((key >= middle and key != last) or key == ids[0])}
    own = {one for one in before if one.startswith(table)}
    after = edited(version, tmp_path, rule)
    assert after == {n: {k: v for k, v in r.items() if n not in own or k in kept} for n, r in before.items()}


@pytest.mark.parametrize(
    ("condition", "gone"),
    [
        ("id = 9007199254740993", [2**53 + 1]),
        ("id = 9.007199254740993e15", [2**53 + 1]),
        ("id > 9007199254740992 and id < 9007199254740994", [2**53 + 1]),
        ("id > 9223372036854775806", [2**63 - 1]),
        ("id >= 9223372036854775808", []),
        ("id <= -9223372036854775808", [-(2**63)]),
        ("id < -9223372036854775808", []),
        ("id > 99999999999999999999999 or id = 1e300", []),
        ("id = 0.5 or id = 1.0", [1]),
        ("id < 0.5 and id > -1.5", [0, -1]),
    ],
)
@pytest.mark.parametrize("shards", ["1", "3"])
def test_ids_that_no_float_tells_apart(tmp_path: Path, condition: str, gone: list[int], shards: str) -> None:
    """Ids beyond 2^53, and constants beyond int64, are compared exactly."""
    version = source(shards, tmp_path)
    before = content(version)["user"]
    assert edited(version, tmp_path, f"user where {condition}")["user"].keys() == before.keys() - set(gone)


@pytest.mark.parametrize("name", ["1", "3", *SOURCES])
def test_all_rows_and_no_row(tmp_path: Path, name: str) -> None:
    """A condition may hold for all rows or for none; an empty table stays one."""
    version = source(name, tmp_path)
    before = content(version)
    table = next(iter(before))
    assert edited(version, tmp_path / "none", f"{table} where id = 1 and id = 2") == before
    after = edited(version, tmp_path / "all", f"{table} where id < 0 or id >= 0")
    assert after[table] == {}
    assert all(rows == ({} if one.startswith(table) else before[one]) for one, rows in after.items())


def test_a_table_without_rows(tmp_path: Path) -> None:
    """Of an empty table nothing goes, and the other tables are untouched."""
    version = source("3", tmp_path)
    assert edited(version, tmp_path, "zero where id >= 0") == content(version)


def test_conditions_on_two_tables(tmp_path: Path) -> None:
    """Each table has its own condition, and each reason is told apart."""
    version = source("3", tmp_path)
    after = edited(version, tmp_path, "user where id < 0", "zoo where id > 5")
    assert min(after["user"]) == 0
    assert sorted(after["zoo"]) == [-(2**63), -1, 0, 1, 5]


@pytest.mark.parametrize("rule", ["{} where counts < 3", "{} where id < 3", "user where id < 3"])
def test_managed_collision_is_refused(tmp_path: Path, rule: str) -> None:
    """Rows of torch's tables have numbers, with managed collision too: none is left out."""
    version = at(copied("dcp/mch", 6, tmp_path / "run").parent, 6)
    with open_checkpoint(version) as checkpoint:
        table = checkpoint.table_names[0]
    before = files_of(tmp_path)
    with pytest.raises(UnsupportedError, match="have numbers: none can be left out") as error:
        convert_version(version, output=tmp_path / "out", changes=Changes(rows=(rule.format(table),)))
    assert "export" in str(error.value.hint)
    assert files_of(tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("item where feqs < 3", "keeps no 'feqs' for its rows; it has freqs, versions, id"),
        ("item where values < 3", "keeps no 'values'"),
        ("item where freqs < 3 and x = 1", "keeps no 'x'"),
    ],
)
def test_columns_that_are_not_there(tmp_path: Path, rule: str, words: str) -> None:
    """An unknown column is refused with those that there are."""
    version = deeprec(tmp_path, np.arange(5), np.arange(5), np.arange(5))
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match=words):
        convert_version(version, output=tmp_path / "out", changes=Changes(rows=(rule,)))
    assert files_of(tmp_path) == before
