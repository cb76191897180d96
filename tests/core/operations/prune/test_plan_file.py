"""Plan files that someone has changed: they are refused, or delete nothing beyond what their reader permits."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import at, numbers, save_small
from edl_ckpt.core import Guards, Latest, Policy, plan_prune
from edl_ckpt.core.base.errors import EdlCkptError, UsageError
from edl_ckpt.core.operations.annotate import add_tag
from edl_ckpt.core.operations.prune.execute import execute_prune
from edl_ckpt.core.operations.prune.plan_file import read_plan, write_plan
from examples import UNCHECKED, examples
from pruning import NOW, check_whole

VALUES = st.one_of(
    st.sampled_from([10**400, -(10**400), 1 << 63, -1, 0, 1.5, True, False, None, "", "..", "/", "/\0", "\ud800"]),
    st.sampled_from(["foo://x", "file://", "~", "keep", "delete", "complete", "writing", "version-3", [], {}, [[]]]),
    st.integers(),
    st.text(max_size=8),
)


@pytest.fixture
def file(run: Path, tmp_path: Path) -> Path:
    """Return the file of a plan that deletes 1 (tagged), 2, 3 and 4, and keeps 5."""
    guards = Guards(drop_tags=("prod",))
    write_plan(tmp_path / "plan.json", plan_prune([run], Policy((Latest(1),)), guards=guards, now=NOW))
    return tmp_path / "plan.json"


def apply(file: Path, document: Any, guards: Guards) -> None:
    """Write a plan, read it and execute it; an error of ours may end this."""
    file.write_text(json.dumps(document))
    with suppress(EdlCkptError):
        execute_prune(read_plan(file, guards), now=NOW)


def mutated(data: st.DataObject, document: Any) -> Any:
    """Return a plan with some changes: values, keys, entries that are swapped, doubled, dropped or turned round."""
    entries = document["entries"]
    for _ in range(data.draw(st.integers(1, 3))):
        entry = data.draw(st.sampled_from(entries)) if entries else document
        match data.draw(st.integers(0, 5)):
            case 0:
                entry[data.draw(st.sampled_from(sorted(entry)))] = data.draw(VALUES)
            case 1 if "action" in entry:
                entry["action"] = "keep" if entry["action"] == "delete" else "delete"
            case 2:
                entries.append(dict(entry))
            case 3 if entry in entries:
                entries.remove(entry)
            case 4 if "path" in entry:
                key = data.draw(st.sampled_from(["path", "identity", "location", "version", "state"]))
                entry[key] = data.draw(st.sampled_from(entries))[key]
            case _:
                target = data.draw(st.sampled_from([document, document["guards"]]))
                target[data.draw(st.sampled_from(sorted(target)))] = data.draw(VALUES)
        if not all(isinstance(each, dict) and each for each in (document["guards"], *entries)):
            break
    return document


@settings(examples(10), suppress_health_check=UNCHECKED)
@given(data=st.data())
def test_changed_plans(file: Path, run: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Whatever a plan file says, there is no other error than ours, and nothing guarded goes."""
    whole = tmp_path / "whole"
    if not whole.exists():
        shutil.copytree(run, whole)
        shutil.copy(file, tmp_path / "original.json")
    elif numbers(run) != numbers(whole):
        shutil.rmtree(run)
        shutil.copytree(whole, run)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir() if path not in {run, file}}
    document = mutated(data, json.loads((tmp_path / "original.json").read_text()))
    apply(file, document, Guards())
    assert {1, 5} <= set(numbers(run))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    check_whole(run)


@pytest.mark.parametrize("key", ["version", "size_bytes", "modified"])
@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 1 << 63, True, "1"], ids=["huge", "far below 0", "2**63", "true", "text"]
)
def test_numbers_are_bounded(file: Path, run: Path, key: str, number: Any) -> None:
    """A number beyond its bounds, or none, is a usage error before anything is deleted."""
    document = json.loads(file.read_text())
    document["entries"][1][key] = number
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match=f"{key} must be a"):
        read_plan(file)
    for text in ("NaN", "Infinity", "1e999", "-1", "1.5"):
        file.write_text(json.dumps(document).replace(json.dumps(number), text, 1))
        if key != "modified" or text[0] in "NI" or "e" in text:
            with pytest.raises(UsageError):
                read_plan(file)
    assert numbers(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("place", ["", ".", "run", "/", "/a/../b", "/x\0y", "/\ud800", "foo://x", "s3://u:p@b/x"])
def test_hostile_locations(file: Path, run: Path, place: str) -> None:
    """A location that no plan of ours has is refused; nothing is deleted."""
    document = json.loads(file.read_text())
    for entry in document["entries"]:
        entry["location"] = place
    file.write_text(json.dumps(document))
    with pytest.raises(EdlCkptError):
        execute_prune(read_plan(file), now=NOW)
    assert numbers(run) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("key", ["location", "version", "state", "size_bytes"])
def test_an_entry_is_about_its_version(file: Path, run: Path, tmp_path: Path, key: str) -> None:
    """An entry that shows another version than the one that it would delete makes the plan stale."""
    save_small(tmp_path / "other", 7)
    document = json.loads(file.read_text())
    other = {"location": str(tmp_path / "other"), "version": 9, "state": "incomplete", "size_bytes": 1}
    document["entries"][0]["action"] = "keep"
    document["entries"][1][key] = other[key]
    before = numbers(run)
    apply(file, document, Guards())
    assert numbers(run) == before
    check_whole(run)


def test_the_same_version_twice(file: Path, run: Path) -> None:
    """A plan that keeps and deletes one version is none: it would hide that no complete version remains."""
    document = json.loads(file.read_text())
    document["entries"] += [{**entry, "action": "delete"} for entry in document["entries"]]
    file.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="a version twice"):
        read_plan(file, Guards(everything=True, drop_tags=("prod",)))
    assert numbers(run) == [1, 2, 3, 4, 5]


def test_the_reader_permits(file: Path, run: Path) -> None:
    """The guards in the file change nothing: those of the reader count, and with them the plan is executed."""
    add_tag(at(run, 5), "new")
    document = json.loads(file.read_text())
    apply(file, document, Guards())
    assert numbers(run) == [1, 2, 3, 4, 5]
