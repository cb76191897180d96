"""Metadata as library users write it: each function takes the lock itself."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import at
from edl_ckpt.core import (
    Latest,
    Policy,
    add_tag,
    import_metrics,
    list_versions,
    location_lock,
    read_policy,
    read_series,
    recover,
    remove_metadata,
    remove_metrics,
    remove_tag,
    set_metadata,
    set_metrics,
    set_modes,
    set_note,
    store_policy,
)
from edl_ckpt.core.base.errors import LockedError, NotFoundError, UsageError
from edl_ckpt.core.state import annotate
from edl_ckpt.core.storage import open_store
from places import GOLDEN


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with versions 9 and 20 complete, 100 not."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    set_metrics(at(tmp_path / "run", 9), {"auc": 0.5})
    add_tag(at(tmp_path / "run", 9), "prod")
    set_metadata(at(tmp_path / "run", 9), {"owner": "ads"})
    return tmp_path / "run"


WRITERS: dict[str, Callable[[Path, dict[str, Any]], object]] = {
    "set_metrics": lambda run, wait: set_metrics(at(run, 20), {"auc": 0.6}, **wait),
    "remove_metrics": lambda run, wait: remove_metrics(at(run, 9), ["auc"], **wait),
    "set_modes": lambda run, wait: set_modes(run, {"f1": "max"}, **wait),
    "add_tag": lambda run, wait: add_tag(at(run, 20), "next", **wait),
    "remove_tag": lambda run, wait: remove_tag(at(run, 9), "prod", **wait),
    "set_metadata": lambda run, wait: set_metadata(at(run, 20), {"lr": 0.1}, **wait),
    "remove_metadata": lambda run, wait: remove_metadata(at(run, 9), ["owner"], **wait),
    "set_note": lambda run, wait: set_note(at(run, 9), "words", **wait),
    "store_policy": lambda run, wait: store_policy(run, Policy((Latest(1),)), **wait),
    "import_metrics": lambda run, wait: import_metrics(read_series(str(GOLDEN / "logs/master-head.log")), run, **wait),
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_writer_takes_the_lock(run: Path, name: str) -> None:
    """While another command holds the lock, nothing is written; afterwards it is, and the lock is free again."""
    before = {p: p.read_bytes() for p in run.rglob("*.json")}
    with location_lock(run, "test"):
        with pytest.raises(LockedError):
            WRITERS[name](run, {"wait_seconds": 0})
        assert {p: p.read_bytes() for p in run.rglob("*.json")} == before
    WRITERS[name](run, {})
    assert {p: p.read_bytes() for p in run.rglob("*.json")} != before
    with location_lock(run, "test", wait_seconds=0):
        pass


def test_a_wrong_keyword(run: Path) -> None:
    """A misspelt option is an error of Python before anything is written, not a command with another option."""
    version = list_versions(run).versions[0]
    calls: list[Callable[..., Any]] = [partial(add_tag, version, "x"), partial(recover, str(run))]
    for call in calls:
        with pytest.raises(TypeError, match="unexpected keyword"):
            call(forc=True)
    assert list_versions(run).versions[0].tags == version.tags


def test_metrics_are_numbers(run: Path) -> None:
    """Numbers of numpy are metrics. What is no number, and a note that is no text, changes nothing."""
    good: dict[str, Any] = {"a": np.float32(0.5), "b": np.int64(3), "c": np.array(2.0)}
    set_metrics(at(run, 20), good)
    wrong: list[Any] = [True, np.True_, "0.5", None, [1, 2], np.zeros(2), 10**400]
    for value in wrong:
        with pytest.raises(UsageError, match="metric 'a': expected a number"):
            set_metrics(at(run, 20), {"a": value})
    for step in (True, "4", -1, 1.5):
        steps: Any = {"a": step}
        with pytest.raises(UsageError, match="the step of 'a' must be"):
            set_metrics(at(run, 20), {"a": 1.0}, steps=steps)
    set_metrics(at(run, 20), {"b": 3}, steps={"b": np.int64(7)})  # type: ignore[dict-item]
    name: Any = {5: 1.0}
    with pytest.raises(UsageError, match="5 is not a valid name"):
        set_metrics(at(run, 20), name)
    note: Any = 5
    with pytest.raises(UsageError, match="text must be a text, got 5"):
        set_note(at(run, 20), note)
    assert at(run, 20).metrics == {"a": 0.5, "b": 3, "c": 2}


def test_what_could_not_be_read_again(run: Path) -> None:
    """Whatever reaches the files of metadata, they stay readable: a value that JSON or the reader lacks is refused."""
    set_metrics(at(run, 20), {"a": 1.0})
    for policy in ({"rules": {1, 2}}, {"keep": float("nan")}):
        with pytest.raises(UsageError, match="this cannot be recorded"):
            annotate.write_policy(open_store(run), policy)
    modes: Any = {"a": 5}
    with pytest.raises(UsageError, match="this cannot be recorded"):
        annotate.write_modes(open_store(run), modes)
    assert at(run, 20).metrics == {"a": 1.0}


def test_modes_and_moved_tags(run: Path) -> None:
    """`mode` declares the better end of metrics; a tag leaves its other versions unless `also` is set."""
    set_metrics(at(run, 20), {"f1": 0.1}, mode="min")
    assert list_versions(run).modes == {"f1": "min"}
    assert add_tag(at(run, 20), "prod") == (9,)
    assert [v.tags for v in list_versions(run).versions] == [(), ("prod",), ()]
    assert add_tag(at(run, 9), "prod", also=True) == ()
    assert [v.tags for v in list_versions(run).versions] == [("prod",), ("prod",), ()]
    with pytest.raises(UsageError, match="mode must be max or min, got 'most'"):
        set_metrics(at(run, 20), {"f1": 1.0}, mode="most")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="mode must be max or min, got 'most'"):
        set_modes(run, {"f1": "most"})  # type: ignore[dict-item]
    assert at(run, 20).metrics == {"f1": 0.1}


def test_metadata_is_read_again_under_the_lock(run: Path) -> None:
    """A tag or metric that another command removed after the listing is not found, and one that it added is."""
    listed = at(run, 9)
    remove_tag(listed, "prod")
    with pytest.raises(NotFoundError, match="no tag 'prod'"):
        remove_tag(listed, "prod")
    set_metrics(listed, {"loss": 1.0})
    remove_metrics(listed, ["loss"])
    assert at(run, 9).metrics == {"auc": 0.5}


def test_policy(run: Path) -> None:
    """A stored policy is read back; an empty one removes it; a location that does not exist is not made."""
    store_policy(run, Policy((Latest(2),), 1000))
    assert read_policy(run) == Policy((Latest(2),), 1000)
    store_policy(run, Policy())
    assert read_policy(run).is_empty
    with pytest.raises(NotFoundError):
        store_policy(run / "nowhere", Policy((Latest(2),)))
    assert not (run / "nowhere").exists()
