"""Which arrays become tables: by names and shapes where these are clear, by options, and with a warning otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import only
from edl_ckpt.core import open_checkpoint, verify_version
from edl_ckpt.core.base.errors import NotFoundError, UnsupportedError, UsageError
from edl_ckpt.core.converting.name_map import tables_of
from edl_ckpt.core.operations.importing import NameMap, import_arrays
from frameworks import need
from reporters import Recorder

IDS = np.array([7, 3, 5])
ROWS = np.arange(6, dtype=np.float32).reshape(3, 2)


def imported(source: Path, target: Path, **names: Any) -> tuple[dict[str, list[int]], list[str]]:
    """Import a file; return the ids of each table, and the warnings."""
    warned = Recorder()
    import_arrays(str(source), str(target), 1, 2, names=NameMap(**names), layout="elasticdl", reporter=warned)
    assert verify_version(only(target), level="deep").ok
    with open_checkpoint(only(target)) as checkpoint:
        for table in checkpoint.tables.values():
            ids, rows = table.to_numpy()
            expected = ROWS if set(ids.tolist()) == {0, 1, 2} else ROWS[[list(IDS).index(i) for i in ids]]
            np.testing.assert_array_equal(rows, expected)
        return {name: sorted(t.to_numpy()[0].tolist()) for name, t in checkpoint.tables.items()}, warned.warnings


CLEAR = [
    "user_ids user_vecs",
    "user.ids user.weight",
    "user/keys user/values",
    "user-id user-embedding",
    "USER_IDS USER_EMB",
]


@pytest.mark.parametrize("names", CLEAR)
def test_a_clear_pair_is_a_table(tmp_path: Path, names: str) -> None:
    """Ids and rows with a common stem become a table of this name; a warning says so, unless the ids are X.ids."""
    ids, rows = names.split()
    arrays: dict[str, Any] = {ids: IDS, rows: ROWS, "bias": np.ones(3, np.float32)}
    np.savez(tmp_path / "own.npz", **arrays)
    tables, warnings = imported(tmp_path / "own.npz", tmp_path / "run")
    assert tables == {ids[:4]: [3, 5, 7]}
    usual = ids == "user.ids"
    assert warnings == ([] if usual else [f"by names and shapes, {ids} and {rows} are the table {ids[:4]}"])


def test_a_pair_without_a_stem_has_the_name_of_the_file(tmp_path: Path) -> None:
    """`ids` and `vectors` alone are the table that the file or the directory is called."""
    np.savez(tmp_path / "user.npz", ids=IDS, vectors=ROWS)
    assert imported(tmp_path / "user.npz", tmp_path / "run")[0] == {"user": [3, 5, 7]}
    (tmp_path / "item").mkdir()
    np.save(tmp_path / "item/keys.npy", IDS)
    np.save(tmp_path / "item/weights.npy", ROWS)
    assert imported(tmp_path / "item", tmp_path / "other")[0] == {"item": [3, 5, 7]}


UNCLEAR: dict[str, tuple[dict[str, Any], str, str]] = {
    "two of rows": ({"u_ids": IDS, "u_vecs": ROWS, "u_emb": ROWS}, "--table u=u_ids,u_vecs", ", or 1 other choice"),
    "two of ids": ({"u_ids": IDS, "u_keys": IDS, "u_vecs": ROWS}, "--table u=u_ids,u_vecs", ", or 1 other choice"),
    "other stems": ({"a_ids": IDS, "b_vecs": ROWS}, "--table NAME=a_ids,b_vecs", ""),
    "a matrix": ({"emb.weight": ROWS}, "--table NAME=emb.weight", ""),
    "a name to quote": ({"my embedding": ROWS}, "--table 'NAME=my embedding'", ""),
}


@pytest.mark.parametrize("case", UNCLEAR)
def test_what_could_be_a_table_is_a_warning(tmp_path: Path, case: str) -> None:
    """No rows from arrays that look like a table: a warning has the option that makes them one, and that works."""
    arrays, option, more = UNCLEAR[case]
    np.savez(tmp_path / "own.npz", **arrays)
    tables, warnings = imported(tmp_path / "own.npz", tmp_path / "run")
    assert tables == {}
    assert warnings == [f"there are 0 rows: no arrays are a table; try: {option}{more}"]
    text = option.removeprefix("--table ").strip("'")
    tables, _ = imported(tmp_path / "own.npz", tmp_path / "again", tables=tables_of([text]))
    assert tables == {text.partition("=")[0]: [3, 5, 7] if "," in text else [0, 1, 2]}


PLAIN: dict[str, dict[str, Any]] = {
    "other counts": {"u_ids": IDS[:2], "u_vecs": ROWS},
    "floats for ids": {"u_ids": IDS.astype(np.float32), "u_vecs": ROWS},
    "whole numbers for rows": {"u_ids": IDS, "u_vecs": ROWS.astype(np.int32)},
    "a dense model": {"l.weight": ROWS, "l.bias": ROWS[:, 0], "steps": np.array(3)},
    "parts of words": {"valid": IDS[:2], "arrows": ROWS},
}


@pytest.mark.parametrize("case", PLAIN)
def test_other_arrays_stay_variables(tmp_path: Path, case: str) -> None:
    """Arrays that are no ids and rows are dense variables, without a word."""
    np.savez(tmp_path / "own.npz", **PLAIN[case])
    assert imported(tmp_path / "own.npz", tmp_path / "run") == ({}, [])


def test_usual_names_stay_as_they_are(tmp_path: Path) -> None:
    """X.ids and X.vectors are a table whatever stands beside them, and other arrays with their stem are not."""
    arrays: dict[str, Any] = {"u.ids": IDS, "u.vectors": ROWS, "u_vecs": ROWS, "u.keys": IDS, "u.weight": ROWS}
    np.savez(tmp_path / "own.npz", **arrays)
    assert imported(tmp_path / "own.npz", tmp_path / "run") == ({"u": [3, 5, 7]}, [])


def test_options_name_all_tables(tmp_path: Path) -> None:
    """With tables by option or map nothing is guessed, and a warning names a pair that is left."""
    np.savez(tmp_path / "own.npz", u_ids=IDS, u_vecs=ROWS, other=ROWS)
    tables, warnings = imported(tmp_path / "own.npz", tmp_path / "run", tables=tables_of(["item=other"]))
    assert tables == {"item": [0, 1, 2]}
    assert warnings == ["arrays that look like a table stay dense variables; try: --table u=u_ids,u_vecs"]
    np.save(tmp_path / "item.npy", np.asfortranarray(ROWS.astype(">f4")))
    assert imported(tmp_path / "item.npy", tmp_path / "b", tables=tables_of(["x=item"]))[0] == {"x": [0, 1, 2]}


@pytest.mark.parametrize("texts", [[""], ["x"], ["x="], ["=m"], ["x=a,"], ["x=,b"], ["x=a", "x=b"]], ids="|".join)
def test_a_bad_option_shows_both_forms(texts: list[str]) -> None:
    """What is neither of the forms, or names a table twice, is refused."""
    with pytest.raises(UsageError, match="expected NAME=IDS,VECTORS or NAME=MATRIX, each NAME once"):
        tables_of(texts)


def test_an_option_may_be_wrong(tmp_path: Path) -> None:
    """An array that is not there, and shapes that are no table, are refused by the name of the table."""
    np.savez(tmp_path / "own.npz", ids=IDS, v=ROWS, flat=np.ones(3))
    for text, error, words in [
        ("x=nope", NotFoundError, "no array 'nope'"),
        ("x=nope,v", NotFoundError, "no array 'nope'"),
        ("x=*", NotFoundError, r"no array '\*'"),
        ("x=ids,*", NotFoundError, r"no array '\*'"),
        ("x=v,rows", NotFoundError, "no array 'rows'"),
        ("x=flat", UsageError, "table 'x': vectors must be"),
        ("x=flat,v", UsageError, "table 'x': ids must be whole numbers"),
    ]:
        with pytest.raises(error, match=words):
            import_arrays(str(tmp_path / "own.npz"), str(tmp_path / "run"), 1, 1, names=NameMap({}, tables_of([text])))
    assert not (tmp_path / "run").exists()


@pytest.mark.frameworks
def test_a_key_leads_to_nested_tensors(tmp_path: Path) -> None:
    """A dict in a .pt is named by its path; without it the error has the keys, and the one to try."""
    torch = need("torch")
    inner = {"emb.weight": torch.tensor(ROWS), "bias": torch.zeros(2)}
    state = {"epoch": 3, "optimizer": {"state": {}, "groups": [1]}, "model": inner, "ema": {"net.v2": inner}}
    torch.save(state, tmp_path / "trained.pt")
    by_matrix = tables_of(["emb=emb.weight"])
    for number, key in enumerate(["model", "ema.net.v2"]):
        target = tmp_path / f"run{number}"
        assert imported(tmp_path / "trained.pt", target, key=key, tables=by_matrix)[0] == {"emb": [0, 1, 2]}
    for bad, error, words, hint in [
        (
            None,
            UnsupportedError,
            "'epoch' is a value, not a tensor",
            "try: --key model; keys there: epoch, optimizer, model",
        ),
        ("ema", UnsupportedError, "'net.v2' is a dict, not a tensor", "try: --key ema.net.v2"),
        ("mode", NotFoundError, "no key 'mode'", "did you mean model"),
        ("model.x", NotFoundError, "no key 'x'", "emb.weight"),
        ("epoch", UnsupportedError, "expected a dict of tensors, got a value", ""),
        ("model.bias", UnsupportedError, "expected a dict of tensors, got a tensor", ""),
        ("optimizer", UnsupportedError, "'groups' is a dict or a list|'state' is a dict", "try: --key optimizer.state"),
    ]:
        with pytest.raises(error, match=words) as caught:
            import_arrays(tmp_path / "trained.pt", tmp_path / "bad", 1, 1, names=NameMap(key=bad))
        assert hint in (caught.value.hint or "")
    assert not (tmp_path / "bad").exists()
