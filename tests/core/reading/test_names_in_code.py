"""Names in Python are those of the command line: ends of names, companions behind a colon, and arrays of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import edl_ckpt
from checkpoints import save_small
from edl_ckpt.core import NameNotFoundError, add_tag, list_versions, open_checkpoint, set_metrics
from edl_ckpt.core.base.errors import UsageError
from foreign import SYSTEMS
from program import edl
from system_runs import step_run

USER = "model.ebc.embedding_bags.user.weight"


def test_ends_and_companions(tmp_path: Path) -> None:
    """`table("user")` is the only table that ends so, and `user:momentum1` its companion; an array is its vectors."""
    run = step_run(tmp_path / "run", (10,))
    with open_checkpoint(f"{run}@10") as checkpoint:
        table = checkpoint.table("user")
        assert table.name == USER
        assert np.asarray(table).tobytes() == table.to_numpy().vectors.tobytes()
        assert np.asarray(table, np.float64).dtype == np.float64
        slot = checkpoint.table("user:momentum1")
        assert checkpoint["user:momentum1"].tobytes() == slot.to_numpy().vectors.tobytes()
        assert checkpoint["over.bias"].tobytes() == checkpoint["model.over.bias"].tobytes()
        assert checkpoint.variable("bias").tobytes() == checkpoint["over.bias"].tobytes()
        with pytest.raises(NameNotFoundError):
            checkpoint["nothing"]
        with pytest.raises(UsageError, match="which table"):
            checkpoint.table("momentum1")
        names = checkpoint._ipython_key_completions_()
        assert {f"{USER}:momentum1", USER, "model.over.bias"} <= set(names)
        assert "uniform" not in repr(table) + table._repr_html_() + checkpoint._repr_html_()


def test_a_listing_is_its_versions(tmp_path: Path) -> None:
    """A listing has a length, iterates, and is indexed; one without versions is a listing, too."""
    save_small(tmp_path / "run", 10, 20)
    listing = list_versions(tmp_path / "run")
    assert (len(listing), [v.version for v in listing], listing[-1].version) == (2, [10, 20], 20)
    assert [v.version for v in listing[:1]] == [10]
    (tmp_path / "empty").mkdir()
    assert (len(list_versions(tmp_path / "empty")), bool(list_versions(tmp_path / "empty"))) == (0, True)


def test_first_names(tmp_path: Path) -> None:
    """`latest` and `restore` are among the first names: a training job begins with them."""
    save_small(tmp_path, 10, 20)
    assert edl_ckpt.latest(tmp_path).version == 20
    assert edl_ckpt.restore(f"{tmp_path}@20", 0, 1).version == 20
    assert {"latest", "restore"} <= set(dir(edl_ckpt))


def test_cards_say_what_counts(tmp_path: Path) -> None:
    """The card of a listing names the latest version, the best of a metric, sealed ones, and what is wrong."""
    save_small(tmp_path, 10, 20, 30)
    set_metrics(f"{tmp_path}@10", {"auc": 0.9})
    set_metrics(f"{tmp_path}@20", {"auc": 0.8})
    add_tag(f"{tmp_path}@20", "serving")
    next(tmp_path.glob("version-30/*-1-of-2*")).unlink()
    shown = list_versions(tmp_path, grace_seconds=0)._repr_html_()
    for words in ("latest, sealed", "best auc, sealed", "serving", "shard 1 of 2 (numbered 0 to 1) is missing"):
        assert words in shown


def test_companions_are_called_by_their_table() -> None:
    """Rows, errors and hints name a companion as the options take it, whatever its whole name is."""
    source = SYSTEMS / "bundle/deeprec"
    for words in (("head",), ("get", "--id", "5")):
        done = edl(words[0], source, "--table", "item_emb-freqs", *words[1:])
        assert done.stdout.splitlines()[0].split("  ")[1] == "item_emb:freqs"
    wrong = edl("get", source, "--table", "item_emb:frq", "--id", "5")
    assert wrong.stderr.splitlines()[1] == "  did you mean item_emb:freqs?"
    with open_checkpoint(str(source)) as checkpoint, pytest.raises(NameNotFoundError) as caught:
        checkpoint.entries("nothing")
    assert caught.value.hint == "tables there: item_emb, item_emb:freqs, item_emb:versions"
