from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

import elasticdl_rules
from checkpoints import at
from edl_ckpt.core import list_versions
from edl_ckpt.core.base.errors import NotFoundError, UsageError
from edl_ckpt.core.catalog.listing import narrowed
from edl_ckpt.core.operations.annotate import (
    add_tag,
    remove_metrics,
    remove_tag,
    set_metrics,
    set_modes,
    set_note,
)
from edl_ckpt.core.operations.prune.plan import store_policy
from edl_ckpt.core.operations.prune.retention import Latest, Policy
from edl_ckpt.core.state.user_entries import check_tag
from places import GOLDEN


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a location with versions 9 and 20 complete, 100 not."""
    shutil.copytree(GOLDEN / "multi", tmp_path / "run")
    return tmp_path / "run"


def test_round_trip(run: Path) -> None:
    """Metrics, tags and a note are read back as written, NaN and infinities too; ElasticDL's scan meets none of it."""
    before = elasticdl_rules.answer(run)
    set_metrics(at(run, "9"), {"auc": 0.5, "out/loss": math.nan, "inf": -math.inf}, steps={"auc": 8})
    add_tag(at(run, "9"), "prod")
    add_tag(at(run, "9"), "Δ-1")
    set_note(at(run, "9"), "line\n\x1b[31m")
    version = at(run, "9")
    assert math.isnan(version.metrics["out/loss"])
    assert {k: v for k, v in version.metrics.items() if k != "out/loss"} == {"auc": 0.5, "inf": -math.inf}
    assert version.tags == ("prod", "Δ-1")
    assert version.note == "line\n\x1b[31m"
    assert elasticdl_rules.answer(run) == before
    document = json.loads((run / ".edl-ckpt-0/meta-0/9.json").read_text())
    assert document["steps"] == {"auc": 8}
    shutil.copytree(run, run.parent / "copy")
    assert at(run.parent / "copy", "9").tags == ("prod", "Δ-1")


def test_nothing_is_left(run: Path) -> None:
    """A metadata file without content is removed, and so are our empty directories."""
    set_metrics(at(run, "9"), {"auc": 0.5})
    add_tag(at(run, "9"), "prod")
    set_note(at(run, "9"), "x")
    remove_tag(at(run, "9"), "prod")
    remove_metrics(at(run, "9"), ["auc"])
    set_note(at(run, "9"), "")
    store_policy(str(run), Policy((Latest(2),)))
    store_policy(str(run), Policy())
    assert not (run / ".edl-ckpt-0").exists()
    with pytest.raises(NotFoundError):
        remove_tag(at(run, "9"), "prod")
    with pytest.raises(NotFoundError):
        remove_metrics(at(run, "9"), ["auc"])


def test_unknown_keys_stay(run: Path) -> None:
    """Keys that another version of the tool wrote beside ours stay."""
    set_note(at(run, "9"), "x")
    path = run / ".edl-ckpt-0/meta-0/9.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"later": [1, 2]}))
    add_tag(at(run, "9"), "prod")
    assert json.loads(path.read_text())["later"] == [1, 2]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"tags": "prod"}', '{"metrics": {"a": "x"}}', '{"metrics": []}', "\x00", "[" * 5000],
)
def test_damaged_files(run: Path, text: str) -> None:
    """A damaged file is reported, the rest of the listing is whole, and nothing overwrites what might be mended."""
    set_note(at(run, "20"), "fine")
    path = run / ".edl-ckpt-0/meta-0/9.json"
    path.write_text(text)
    listing = list_versions(str(run))
    assert [v.version for v in listing.versions] == [9, 20, 100]
    assert listing.versions[1].note == "fine"
    assert listing.versions[0].metadata_fault
    assert "9.json" in listing.problems[0]
    with pytest.raises(UsageError, match="damaged"):
        add_tag(at(run, "9"), "prod")
    assert path.read_text() == text


def test_foreign_files(run: Path) -> None:
    """Files and directories that are not ours are passed over."""
    set_note(at(run, "20"), "fine")
    meta = run / ".edl-ckpt-0/meta-0"
    (meta / "README").write_text("?")
    (meta / "09.json").write_text("{")
    (meta / "9.json").mkdir()
    (meta / "77.json").write_text('{"tags": ["gone"]}')
    listing = list_versions(str(run))
    assert listing.problems == ()
    assert [v.tags for v in listing.versions] == [(), (), ()]


def test_references(run: Path) -> None:
    """`@best:METRIC`, `@best` and `@TAG` name versions; NaN, missing and incomplete never win; ties go to the newer."""
    for ref in ("best", "best:auc", "prod"):
        with pytest.raises(NotFoundError):
            at(run, ref)
    set_metrics(at(run, "9"), {"auc": 0.5})
    set_metrics(at(run, "100"), {"auc": 0.9})
    assert at(run, "best:auc").version == 9
    set_metrics(at(run, "20"), {"auc": math.nan})
    assert at(run, "best").version == 9
    set_metrics(at(run, "20"), {"auc": 0.5, "loss": 3.0})
    assert at(run, "best:auc").version == 20
    with pytest.raises(UsageError, match="best by which metric"):
        at(run, "best")
    set_metrics(at(run, "9"), {"f1": 0.1})
    with pytest.raises(UsageError, match="better"):
        at(run, "best:f1")
    set_modes(str(run), {"f1": "min"})
    assert at(run, "best:f1").version == 9
    add_tag(at(run, "9"), "prod")
    assert at(run, "prod").version == 9
    add_tag(at(run, "20"), "prod", also=True)
    with pytest.raises(UsageError, match="2 versions have the tag"):
        at(run, "prod")
    with pytest.raises(NotFoundError) as error:
        at(run, "none")
    assert error.value.hint == "tags there: prod"


def test_narrowed(run: Path) -> None:
    """Sorting puts the best first and those without a value last; --best and --tag leave what they name."""
    set_metrics(at(run, "9"), {"auc": 0.9})
    set_metrics(at(run, "20"), {"auc": 0.1})
    add_tag(at(run, "20"), "prod")
    listing = list_versions(str(run))
    assert [v.version for v in narrowed(listing, sort="auc").versions] == [9, 20, 100]
    assert [v.version for v in narrowed(listing, sort="auc", mode="min").versions] == [20, 9, 100]
    assert [v.version for v in narrowed(listing, best="auc").versions] == [9]
    assert [v.version for v in narrowed(listing, tags=["prod"]).versions] == [20]
    assert narrowed(listing, tags=["none"]).versions == ()


@pytest.mark.parametrize("tag", ["", "7", "latest", "best", "best:auc", "a@b", "a/b", "a b", "a\nb", "x" * 201])
def test_no_tags(tag: str) -> None:
    """A tag that a reference could not name is refused."""
    with pytest.raises(UsageError, match="is not a valid tag"):
        check_tag(tag)
