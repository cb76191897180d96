"""Variables that only describe the parts of tables stay in TensorFlow: its own exports read back clean."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edl_ckpt.core import (
    convert_version,
    diff_versions,
    export_version,
    import_arrays,
    list_versions,
    open_checkpoint,
    reshard_version,
    save_checkpoint,
)
from edl_ckpt.core.base.choices import FormatName
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.export.interface import Selection
from edl_ckpt.core.reading.part_records import records_of
from foreign import SYSTEMS
from program import document
from reporters import Recorder


def _only(place: Path) -> Version:
    (version,) = list_versions(str(place)).versions
    return version


@pytest.fixture
def run(tmp_path: Path) -> Version:
    """A version of ElasticDL with two tables and a variable."""
    rng = np.random.default_rng(3)
    tables = {name: (np.arange(n), rng.standard_normal((n, 4), np.float32)) for name, n in (("T", 20), ("E", 1))}
    save_checkpoint(
        str(tmp_path / "run"), 7, 2, variables={"w": np.ones((2, 3), np.float32)}, tables=tables, layout="elasticdl"
    )
    return _only(tmp_path / "run")


@pytest.fixture(params=[1, 2])
def bundle(run: Version, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The same as a bundle of one part a table, or of two."""
    export_version(run, str(tmp_path / "tf"), format_name="tensorflow", ranks=request.param, reporter=Recorder())
    return str(tmp_path / "tf")


def _records(bundle: str) -> list[str]:
    with open_checkpoint(bundle) as checkpoint:
        return sorted(records_of(checkpoint))


def _reshard(bundle: str, out: Path) -> object:
    return reshard_version(bundle, 3, output=str(out), number=7, reporter=Recorder())


def _import(bundle: str, out: Path) -> object:
    return import_arrays(bundle, str(out), 7, 3, reporter=Recorder())


def _convert(bundle: str, out: Path) -> object:
    return convert_version(bundle, 3, output=str(out), number=7, system="elasticdl", reporter=Recorder())


@pytest.mark.parametrize("way", [_import, _convert, _reshard])
def test_a_bundle_of_ours_is_read_back_clean(
    run: Version, bundle: str, tmp_path: Path, way: Callable[[str, Path], object]
) -> None:
    """Each way back to ElasticDL has the fingerprint of the beginning, and names the records that it leaves out."""
    result = way(bundle, tmp_path / "back")
    assert diff_versions(run, _only(tmp_path / "back")).fingerprint_a == result.fingerprint  # type: ignore[attr-defined]
    assert len(_records(bundle)) > 2


@pytest.mark.parametrize("name", ["safetensors", "npz", "dcp"])
def test_no_export_of_a_bundle_has_them(bundle: str, tmp_path: Path, name: FormatName) -> None:
    """Exports have the variables and tables alone; the result and a warning name the rest."""
    reporter = Recorder()
    result = export_version(bundle, str(tmp_path / "out"), format_name=name, reporter=reporter)
    records = _records(bundle)
    assert sorted(one.name for one in result.left_out) == records
    assert {(one.kind, one.reason) for one in result.left_out} == {("partition record", f"not in {name}")}
    assert (result.variables, result.tables) == (1, 2)
    assert f"{len(records)} partition records; not in {name}" in " ".join(reporter.warnings)


def test_one_that_is_named_is_exported(bundle: str, tmp_path: Path) -> None:
    """Nothing is left out that its name asks for."""
    record = _records(bundle)[0]
    result = export_version(
        bundle,
        str(tmp_path / "out.npz"),
        format_name="npz",
        reporter=Recorder(),
        selection=Selection(variables=(record,)),
    )
    assert result.left_out == ()
    assert record in np.load(tmp_path / "out.npz").files


def test_a_comparison_passes_over_them(run: Version, bundle: str, tmp_path: Path) -> None:
    """Tables cut into other parts are equal; the records are named as not compared, and compared where parts agree."""
    diff = diff_versions(run, bundle)
    assert diff.equal
    assert list(diff.not_compared) == _records(bundle)
    shutil.copytree(bundle, tmp_path / "copy")
    same = diff_versions(bundle, str(tmp_path / "copy"))
    assert (same.equal, same.not_compared) == (True, ())
    assert {one.name for one in same.variables} >= set(_records(bundle))
    found = document("diff", run.ref, bundle)
    assert (found["equal"], found["not_compared"]) == (True, _records(bundle))


def test_a_reshard_of_a_bundle_makes_them_anew(bundle: str, tmp_path: Path) -> None:
    """Files of the same system have the records of their own parts, and nothing is called left out."""
    done = convert_version(bundle, 3, output=str(tmp_path / "again"), number=7, reporter=Recorder())
    assert done.dropped == ()
    (version,) = list_versions(str(tmp_path / "again")).versions
    assert {name.partition("/")[2].partition("-")[0] for name in _records(version.ref)} == {
        "part_0",
        "part_1",
        "part_2",
    }
    assert diff_versions(bundle, version).equal


def test_keys_that_wait_are_named(tmp_path: Path) -> None:
    """DeepRec's keys that were not admitted yet are left out by name, in each direction."""
    shutil.copytree(SYSTEMS / "bundle/deeprec", tmp_path / "in")
    (version,) = list_versions(str(tmp_path / "in")).versions
    with open_checkpoint(version) as checkpoint:
        waiting = {name for name in records_of(checkpoint) if name.endswith("_filtered")}
    gone = export_version(version, str(tmp_path / "out.npz"), format_name="npz", reporter=Recorder()).left_out
    reasons = {one.name: one.reason for one in gone}
    assert {name for name, reason in reasons.items() if "admitted" in reason} == waiting
