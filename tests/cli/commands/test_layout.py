"""Every writer follows the layout at its location, so that ElasticDL's scan never meets a name it crashes on."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import elasticdl_rules
from checkpoints import at, save_small
from edl_ckpt.core import import_arrays, list_versions, reshard_version, save_checkpoint
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import RefusedError
from edl_ckpt.core.operations.reshard.execute import execute_reshard, prepare_reshard
from places import GOLDEN
from program import document, edl
from reporters import Recorder

COMMANDS = ("import", "import of a checkpoint", "reshard", "export")


def names(location: Path) -> list[str]:
    """Return the names that ElasticDL's scan meets, without our own state."""
    return sorted(p.name for p in location.iterdir() if p.name != ".edl-ckpt-0")


def save_as(location: Path, layout: LayoutName | None, *versions: int) -> None:
    """Save versions of one variable in a layout."""
    for version in versions:
        save_checkpoint(location, version, 2, variables={"w": np.ones(3)}, tables={}, layout=layout)


def write(command: str, work: Path, target: Path, *more: str, source: LayoutName = "design") -> CompletedProcess[str]:
    """Write version 20 to a target with one of the commands that make versions."""
    other = work / "other"
    if not other.exists():
        np.savez(work / "m.npz", w=np.ones(3))
        save_as(other, source, 20)
    arguments: dict[str, tuple[str | Path, ...]] = {
        "import": ("import", work / "m.npz", f"{target}@20", "--ps", "2"),
        "import of a checkpoint": ("import", f"{other}@20", f"{target}@20", "--ps", "2"),
        "reshard": ("reshard", f"{other}@20", "--ps", "3", "--output", target),
        "export": ("export", f"{other}@20", target, "--format", "checkpoint"),
        "copy": ("copy", f"{other}@20", target),
    }
    return edl(*arguments[command], *more)


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_made_follows_the_location(tmp_path: Path, command: str) -> None:
    """Beside `version-9` every writer makes `version-20`, beside `version_9` `version_20`; without a warning."""
    expected: dict[LayoutName, list[str]] = {
        "elasticdl": ["version-20", "version-9"],
        "design": ["version_20", "version_9"],
    }
    for layout, wanted in expected.items():
        target = tmp_path / layout
        save_as(target, layout, 9)
        done = write(command, tmp_path, target)
        assert (done.returncode, done.stderr) == (0, "")
        assert names(target) == wanted
    assert elasticdl_rules.latest_valid(tmp_path / "elasticdl") == "version-20"


def test_saving_follows_the_location(tmp_path: Path) -> None:
    """So does the library, and an empty location gets the design layout."""
    save_as(tmp_path / "run", "elasticdl", 9)
    save_as(tmp_path / "run", None, 20)
    save_as(tmp_path / "empty", None, 20)
    assert names(tmp_path / "run") == ["version-20", "version-9"]
    assert names(tmp_path / "empty") == ["version_20"]


@pytest.mark.parametrize("command", ["import", "import of a checkpoint", "reshard"])
def test_empty_location(tmp_path: Path, command: str) -> None:
    """An empty location gets `design` and one line on stderr about what ElasticDL reads; or what is asked."""
    done = write(command, tmp_path, tmp_path / "new")
    assert names(tmp_path / "new") == ["version_20"]
    assert done.stderr.count("\n") == 1
    assert "its scan for the latest one fails here; the layout elasticdl serves both" in done.stderr
    done = write(command, tmp_path, tmp_path / "asked", "--layout", "elasticdl")
    assert (names(tmp_path / "asked"), done.stderr) == (["version-20"], "")


def test_empty_output_keeps_the_layout_that_was_read(tmp_path: Path) -> None:
    """A reshard to an empty location keeps the layout of the version; a merged export is for ElasticDL."""
    done = write("reshard", tmp_path, tmp_path / "new", source="elasticdl")
    assert (names(tmp_path / "new"), done.stderr) == (["version-20"], "")
    done = write("export", tmp_path, tmp_path / "merged")
    assert (names(tmp_path / "merged"), done.stderr) == (["version-20"], "")


def test_an_import_of_a_checkpoint_keeps_its_layout(tmp_path: Path) -> None:
    """ElasticDL's own files stay files that its scan finds, with a map and without one; an edit does the same."""
    done = write("import of a checkpoint", tmp_path, tmp_path / "new", source="elasticdl")
    assert (names(tmp_path / "new"), done.stderr) == (["version-20"], "")


def test_a_location_has_a_layout(tmp_path: Path) -> None:
    """`policy set --layout` stores the layout of the first version; versions that are there go before it."""
    place = tmp_path / "run"
    place.mkdir()
    assert edl("policy", "set", place, "--layout", "elasticdl").returncode == 0
    assert "new versions in the elasticdl layout" in edl("policy", "show", place).stdout
    assert document("policy", "show", place)["layout"] == "elasticdl"
    save_as(place, None, 20)
    assert names(place) == ["version-20"]
    assert edl("policy", "set", place, "--layout", "design", "--keep", "3").returncode == 0
    save_as(place, None, 30)
    assert names(place) == ["version-20", "version-30"]
    assert edl("policy", "clear", place).returncode == 0
    assert document("policy", "show", place)["layout"] is None


def test_another_layout_must_be_asked_for(tmp_path: Path) -> None:
    """`--layout` may mix layouts, with a warning; in a mixed location nothing is written without it (16)."""
    save_as(tmp_path / "run", "elasticdl", 9)
    done = write("import", tmp_path, tmp_path / "run", "--layout", "design")
    assert done.returncode == 0
    assert "ElasticDL's scan for the latest version crashes" in done.stderr
    assert names(tmp_path / "run") == ["version-9", "version_20"]
    os.rename(tmp_path / "run" / "version_20", tmp_path / "run" / "version_8")
    for command in COMMANDS:
        done = write(command, tmp_path, tmp_path / "run")
        assert done.returncode == 16
        assert "--layout design or --layout elasticdl" in done.stderr
        assert names(tmp_path / "run") == ["version-9", "version_8"]
    assert write("reshard", tmp_path, tmp_path / "run", "--layout", "elasticdl").returncode == 0
    assert names(tmp_path / "run") == ["version-20", "version-9", "version_8"]


def test_any_version_directory_counts(tmp_path: Path) -> None:
    """An incomplete version, or one of 2019 (`version-9` with .chkpt), shows the layout; other entries do not."""
    (tmp_path / "begun" / "version-9").mkdir(parents=True)
    (tmp_path / "old" / "version-9").mkdir(parents=True)
    (tmp_path / "old" / "version-9" / "variables-0-of-1.chkpt").write_bytes(b"")
    (tmp_path / "foreign" / "tmp-30").mkdir(parents=True)
    for place, wanted in (("begun", "version-20"), ("old", "version-20"), ("foreign", "version_20")):
        assert write("import", tmp_path, tmp_path / place).returncode == 0
        assert wanted in names(tmp_path / place)
    assert (tmp_path / "old" / "version-20" / "variables-0-of-2.ckpt").exists()


def test_copy_into_another_layout(tmp_path: Path) -> None:
    """A copy keeps names, so it is refused (16); its hint is a command that does the work in any directory."""
    run = tmp_path / "it's a run"
    save_as(run, "elasticdl", 9)
    done = write("copy", tmp_path, run)
    assert done.returncode == 16
    assert names(run) == ["version-9"]
    hint = done.stderr.splitlines()[-1].strip()
    assert hint.startswith("try: edl-ckpt ")
    assert edl(*shlex.split(hint.removeprefix("try: edl-ckpt "))).returncode == 0
    assert names(run) == ["version-20", "version-9"]


def test_copy_of_all_versions_of_a_mixed_location(tmp_path: Path) -> None:
    """The first version gives the copy its layout; versions of another are refused, and the code is 16."""
    save_as(tmp_path / "mixed", "elasticdl", 9, 20)
    save_as(tmp_path / "mixed", "design", 30)
    done = edl("copy", tmp_path / "mixed", tmp_path / "new", "--all")
    assert done.returncode == 16
    assert "@30: not copied" in done.stderr
    assert names(tmp_path / "new") == ["version-20", "version-9"]


def test_undo_beside_another_layout(tmp_path: Path) -> None:
    """Undo is refused (16) when the location has another layout by now; its hint brings the version back."""
    run = tmp_path / "run"
    save_as(run, "design", 9)
    assert edl("prune", run, "--delete", "9", "--keep", "1", "--even-newest", "--trash", "--yes").returncode == 0
    save_as(run, "elasticdl", 20)
    done = edl("undo", run)
    assert done.returncode == 16
    assert names(run) == ["version-20"]
    hint = done.stderr.splitlines()[-1].strip()
    assert edl(*shlex.split(hint.removeprefix("try: edl-ckpt "))).returncode == 0
    assert names(run) == ["version-20", "version-9"]


def test_layout_that_appears_meanwhile(tmp_path: Path) -> None:
    """The layout is compared again under the lock: a version of another one, written since, stops the command."""
    save_as(tmp_path / "other", "design", 20)
    plan, settings = prepare_reshard(at(tmp_path / "other"), 3, output=tmp_path / "new")
    save_as(tmp_path / "new", "elasticdl", 9)
    with pytest.raises(RefusedError, match="another command wrote versions in the elasticdl layout"):
        execute_reshard(plan, settings)
    assert names(tmp_path / "new") == ["version-9"]


def test_layout_for_good(tmp_path: Path) -> None:
    """EDL_CKPT_LAYOUT and a file set the layout of empty locations, and never mix layouts in others."""
    save_as(tmp_path / "run", "design", 9)
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    arguments = (tmp_path / "m.npz", f"{tmp_path / 'run'}@20", "--ps", "2")
    assert edl("import", *arguments, EDL_CKPT_LAYOUT="elasticdl").stderr == ""
    assert names(tmp_path / "run") == ["version_20", "version_9"]
    assert edl("reshard", tmp_path / "run", "--ps", "3", EDL_CKPT_LAYOUT="elasticdl").returncode == 0
    done = edl("import", tmp_path / "m.npz", f"{tmp_path / 'a'}@20", "--ps", "2", EDL_CKPT_LAYOUT="elasticdl")
    assert (names(tmp_path / "a"), done.stderr) == (["version-20"], "")
    (tmp_path / "config" / "edl-ckpt").mkdir(parents=True)
    (tmp_path / "config" / "edl-ckpt" / "edl-ckpt.toml").write_text("layout = 'elasticdl'\n")
    config = str(tmp_path / "config")
    done = edl("reshard", tmp_path / "run@20", "--ps", "2", "--output", tmp_path / "b", XDG_CONFIG_HOME=config)
    assert (names(tmp_path / "b"), done.stderr) == (["version-20"], "")
    assert edl("demo", tmp_path / "d", XDG_CONFIG_HOME=config).returncode == 0
    assert elasticdl_rules.latest_valid(tmp_path / "d") == "version-300"
    done = edl("import", *arguments[:1], f"{tmp_path / 'c'}@20", "--ps", "2", EDL_CKPT_LAYOUT="elastic")
    assert done.returncode == 2
    assert not (tmp_path / "c").exists()


def test_warnings_where_the_scan_crashes(tmp_path: Path) -> None:
    """List and verify name what the scan crashes on, our own names too; a location wholly `design` has none."""
    save_as(tmp_path / "run", "design", 9, 10)
    assert edl("list", tmp_path / "run").stderr == ""
    assert document("verify", tmp_path / "run")["findings"] == []
    save_as(tmp_path / "run", "elasticdl", 20)
    assert "stops at version_10, version_9" in edl("list", tmp_path / "run").stderr
    findings = document("verify", f"{tmp_path / 'run'}@20")["findings"]
    assert [(f["severity"], f["code"], f["subject"]) for f in findings] == [
        ("warning", "scan-crash", "version_10"),
        ("warning", "scan-crash", "version_9"),
    ]
    results = document("verify", tmp_path / "run", "--all")["results"]
    assert [len(r["findings"]) for r in results] == [2, 0, 0]
    assert edl("verify", tmp_path / "run", "--strict").returncode == 3


def test_verify_names_foreign_entries(tmp_path: Path) -> None:
    """`notes.txt` beside the versions crashes ElasticDL's scan: a warning, whatever the layout."""
    for layout in ("design", "elasticdl"):
        save_as(tmp_path / layout, layout, 9)
        (tmp_path / layout / "notes.txt").touch()
        findings = document("verify", tmp_path / layout)["findings"]
        assert [(f["code"], f["subject"]) for f in findings] == [("scan-crash", "notes.txt")]


def test_model_v_as_a_directory(tmp_path: Path) -> None:
    """`model_v9` with shards is version 9, and keeps its name; the scan crashes on it as on `version_9`."""
    run = tmp_path / "run"
    save_as(run, "design", 9)
    os.rename(run / "version_9", run / "model_v9")
    (run / "model_v3").mkdir()
    (run / "model_v3" / "saved_model.pb").touch()
    assert [(v.version, v.layout.name) for v in list_versions(run).versions] == [(9, "model_v")]
    assert edl("verify", run / "model_v9", "--deep").returncode == 0
    reshard_version(at(run), 3)
    assert names(run / "model_v9") == [f"variables-{i}-of-3.chkpt" for i in range(3)]
    save_as(run, None, 20)
    assert names(run) == ["model_v20", "model_v3", "model_v9"]
    save_as(run, "elasticdl", 30)
    assert "stops at model_v20, model_v3, model_v9" in edl("list", run).stderr


def test_hint_for_a_single_file(tmp_path: Path) -> None:
    """What cannot be done with one file without shards can be done as its hint says."""
    shutil.copytree(GOLDEN / "legacy" / "v0d", tmp_path / "old")
    number = at(tmp_path / "old").version
    save_small(tmp_path / "run", number + 1)
    assert edl("reshard", tmp_path / "old", "--ps", "2").stderr.splitlines()[-1] == "  try: --output LOCATION"
    assert edl("reshard", tmp_path / "old", "--ps", "2", "--output", tmp_path / "run").returncode == 0
    assert names(tmp_path / "run") == [f"version-{number}", f"version-{number + 1}"]
    done = edl("copy", tmp_path / "old", tmp_path / "new")
    assert done.returncode == 16
    assert edl(*shlex.split(done.stderr.splitlines()[-1].strip().removeprefix("try: edl-ckpt "))).returncode == 0
    assert names(tmp_path / "new") == [f"version_{number}"]


def test_the_library_reports_the_line(tmp_path: Path) -> None:
    """Functions of the library warn through their reporter, once for a location."""
    recorder = Recorder()
    np.savez(tmp_path / "m.npz", w=np.ones(3))
    for number in (1, 2):
        import_arrays(tmp_path / "m.npz", tmp_path / "run", number, 2, reporter=recorder)
    assert len(recorder.warnings) == 1
