"""Checkpoints of other systems at the command line: listed, inspected, named, compared, and completed."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bundle_files import write_bundle
from edl_ckpt.core.catalog import glance
from edl_ckpt.core.model.systems import System
from edl_ckpt.core.sources.elasticdl.peek import Budget
from edl_ckpt.core.sources.systems import kinds_of, systems
from places import GOLDEN
from program import document, edl
from system_runs import SYSTEMS, bundle_run, settled, step_run

EACH = {
    "dcp": SYSTEMS / "dcp/torchrec",
    "tensorflow": SYSTEMS / "bundle/sharded",
    "safetensors": SYSTEMS / "safetensors",
    "tfra": SYSTEMS / "tfra",
    "dynamicemb": SYSTEMS / "dynamicemb",
}
"""A location of each system."""


def mixed(place: Path) -> Path:
    """Make a location with steps of three systems, one of them torn, and a version of ElasticDL."""
    step_run(bundle_run(place, (50,)), (10, 20))
    shutil.copytree(SYSTEMS / "safetensors/checkpoint-100", place / "checkpoint-100")
    shutil.copytree(GOLDEN / "multi/version-9", place / "version-9")
    (place / "step_20/.metadata").unlink()
    return settled(place)


def test_one_system_is_in_the_head(tmp_path: Path) -> None:
    """Of one system the head says which; there is no column for it, and no word of ElasticDL's layouts and scan."""
    done = edl("list", step_run(tmp_path / "run"))
    assert "3 versions, 464.6 KiB, torch DCP" in done.stdout
    assert "  system" not in done.stdout
    assert "layout" not in done.stdout
    assert done.stderr == ""


def test_several_systems_are_a_column(tmp_path: Path) -> None:
    """Of several systems there is a column; a torn step says what it lacks, as JSON and rows do."""
    run = mixed(tmp_path / "run")
    table = edl("list", run).stdout
    assert "elasticdl layout, TensorFlow, safetensors, torch DCP" in table
    assert [line.split()[:2] for line in table.splitlines()[3:]] == [
        ["9", "ElasticDL"],
        ["10", "torch"],
        ["20", "torch"],
        ["50", "TensorFlow"],
        ["100", "safetensors"],
    ]
    assert "missing or truncated: .metadata" in table
    listed = document("list", run)["locations"][0]["versions"]
    assert [v["system"] for v in listed] == ["elasticdl", "dcp", "dcp", "tensorflow", "safetensors"]
    assert [v["lacks"] for v in listed] == [[], [], [".metadata"], [], []]
    rows = list(csv.DictReader(io.StringIO(edl("list", run, "--csv").stdout)))
    assert [(row["system"], row["lacks"]) for row in rows][2] == ("dcp", ".metadata")


def test_a_system_can_be_chosen(tmp_path: Path) -> None:
    """With --system only its versions count, for lists and references; a name that nobody has is a usage error."""
    run = mixed(tmp_path / "run")
    assert [v["version"] for v in document("list", run, "--system", "dcp")["locations"][0]["versions"]] == [10, 20]
    assert document("inspect", run, "--system", "tensorflow")["ref"] == f"{run}@50"
    assert edl("inspect", f"{run}@50", "--system", "dcp").returncode == 10
    wrong = edl("list", run, "--system", "pickle")
    assert wrong.returncode == 2
    assert "dynamicemb, elasticdl, safetensors" in wrong.stderr


@pytest.mark.parametrize("system", EACH)
def test_reading_commands_know_every_system(system: str, tmp_path: Path) -> None:
    """Each command that reads takes a version of each system, and none says a word that is ElasticDL's."""
    shutil.copytree(EACH[system], tmp_path / "run", ignore=shutil.ignore_patterns("step_900"))  # a bundle
    run = settled(tmp_path / "run")
    summary = document("inspect", run)
    assert summary["system"] == system
    own = [t["name"] for t in summary["tables"] if not t["companion_of"] and t["rows"]]
    commands = [["inspect"], ["inspect", "--stats"], ["du"], ["verify"], ["wait", "--timeout", "1s"]]
    commands += [[name, "--table", table] for table in own[:1] for name in ("head", "sample", "ids")]
    for name, *options in commands:
        done = edl(name, run, *options)
        assert done.returncode == 0, done.stderr
        assert not any(word in done.stdout for word in (" PS", "layout", "generation", "ElasticDL"))
    assert edl("diff", f"{run}@latest", "@latest").returncode == 0
    assert edl("export", run, tmp_path / "all.npz").returncode == 0


def test_tables_and_their_companions(tmp_path: Path) -> None:
    """Inspect has companions below their tables; commands take ends of names, and slots behind a colon."""
    run = step_run(tmp_path / "run")
    shown = edl("inspect", run).stdout
    assert "2 ranks, 154.9 KiB, 17,761 parameters, torch DCP" in shown
    assert shown.count("  :momentum1 ") == 2
    tables = document("inspect", run)["tables"]
    assert [t["slot"] for t in tables] == ["", "momentum1"] * 2
    assert tables[1]["companion_of"] == tables[0]["name"]
    assert document("inspect", run)["items"] == [{"name": "step", "kind": "value", "size_bytes": 1261, "shard": 1}]
    slot = document("inspect", run, "--table", "user:momentum1")["tables"]
    assert [t["name"] for t in slot] == [tables[3]["name"]]
    assert document("get", run, "--table", "user", "--id", "1002")["table"] == tables[2]["name"]
    assert document("get", run, "--variable", "over.weight")["shape"] == [1, 24]
    assert "which table?" in edl("head", run).stderr
    assert edl("get", run, "--table", "weight", "--id", "1").returncode == 2
    chosen = edl("export", run, tmp_path / "user.npz", "--table", "user")
    assert "0 variables, 1 table, 1,003 rows" in chosen.stdout


def test_checkpoints_by_themselves(tmp_path: Path) -> None:
    """A directory, a file or a prefix that is one checkpoint is a reference; what records refuses it."""
    model = tmp_path / "model"
    shutil.copytree(SYSTEMS / "dcp/torchrec/step_2", model)
    shutil.copytree(SYSTEMS / "bundle/objects", tmp_path / "objects")
    shutil.copy(SYSTEMS / "safetensors/checkpoint-100/model.safetensors", tmp_path)
    places = [model, tmp_path / "model.safetensors", *(tmp_path / "objects" / n for n in ("ckpt-1", "ckpt-1.index"))]
    for place in places:
        assert document("inspect", place)["ref"] == str(place)
        assert document("du", place)["ref"] == str(place)
        assert edl("verify", place).returncode == 0
        refused = edl("tag", "add", f"{place}@latest" if place == model else place, "t")
        assert refused.returncode in {2, 16}
    assert "1 version, 154.8 KiB, torch DCP" in edl("list", model).stdout


def test_differences_between_systems(tmp_path: Path) -> None:
    """Equal values of two systems differ by name alone; with the map they are equal."""
    run = step_run(tmp_path / "run", (10,))
    arrays, saved = tmp_path / "all.npz", tmp_path / "saved"
    assert edl("export", run, arrays).returncode == 0
    (tmp_path / "import.toml").write_text('[rename]\n"model.over.bias" = "bias"\n')
    assert edl("import", arrays, f"{saved}@1", "--ps", "2", "--map", tmp_path / "import.toml").returncode == 0
    assert edl("diff", run, saved).returncode == 3
    names = tmp_path / "names.toml"
    names.write_text('[variables]\n"over.bias" = "bias"\n')
    done = edl("diff", run, saved, "--map", names, "--json")
    found = json.loads(done.stdout)
    assert {entry["status"] for entry in (*found["variables"], *found["tables"])} == {"equal"}
    assert [(item["name"], item["status"]) for item in found["items"]] == [("step", "removed")]  # no array can hold it
    for text, code in (
        ('[variables]\n"over.bias" = "nothing"\n', 10),
        ('[variables]\n"over.weight" = "bias"\n"over.bias" = "bias"\n', 2),
        ('[variables]\n"over.weight" = "bias"\n', 2),
        ("[names]\n", 2),
        ("[tables]\na = 1\n", 2),
        ("[tables\n", 2),
    ):
        names.write_text(text)
        assert edl("diff", run, saved, "--map", names).returncode == code, text


def test_locations_below_have_versions(tmp_path: Path) -> None:
    """A recursive list has directories of steps, and goes on into directories that only have such names."""
    step_run(tmp_path / "a/run")
    bundle_run(tmp_path / "b", (50,))
    shutil.copytree(GOLDEN / "multi/version-9", tmp_path / "c/7/version-9")
    (tmp_path / "c/8").mkdir()
    listed = document("list", tmp_path, "--recursive")["locations"]
    assert [(place["location"], len(place["versions"])) for place in listed] == [
        (f"{tmp_path}/a/run", 3),
        (f"{tmp_path}/b", 1),
        (f"{tmp_path}/c/7", 1),
    ]


def test_completion_goes_by_names(tmp_path: Path) -> None:
    """A shell is offered steps and prefixes by their names; a directory of numbers alone is no location."""
    run = step_run(bundle_run(tmp_path / "run", (50,)), (10, 20))
    (tmp_path / "numbers/7").mkdir(parents=True)
    assert glance.versions(str(run)) == ([50, 20, 10], [])
    assert glance.has_versions(str(run))
    assert not glance.has_versions(str(tmp_path / "numbers"))
    assert glance.may_be_whole("dir/model.safetensors")
    assert list(glance.in_trash(str(run), Budget.of(1.0))) == []


def test_completion_goes_by_names_without_numbers(tmp_path: Path) -> None:
    """Bundles and directories of other names are offered by these, and two of one number by theirs."""
    for name in ("weights.01-0.71", "weights.10-0.32", "ckpt-0"):
        write_bundle(tmp_path / name, {"w": np.zeros(3, "<f4")})
    for name in ("step_5", "checkpoint-5", "best", "step_6", ".hidden"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/events.out").touch()
    names = ["checkpoint-5", "step_5", "weights.01-0.71", "weights.10-0.32", "best"]
    assert glance.versions(str(tmp_path)) == ([6, 0], names)


def test_prune_says_that_it_deletes_no_names(tmp_path: Path) -> None:
    """A name behind --delete is refused with the reason, and nothing changes."""
    for name in ("weights.01-0.71", "weights.10-0.32"):
        write_bundle(tmp_path / name, {"w": np.zeros(3, "<f4")})
    before = sorted(tmp_path.iterdir())
    done = edl("prune", tmp_path, "--delete", "weights.01-0.71", "--yes")
    assert done.returncode == 2
    assert "prune deletes versions by their numbers" in done.stderr
    by_rule = edl("prune", tmp_path, "--keep", "1", "--yes")
    assert by_rule.returncode == 0
    assert f"{tmp_path}  no numbered version" in by_rule.stdout
    assert sorted(tmp_path.iterdir()) == before


def test_systems_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`systems` has every system, with those that packages bring; only ElasticDL's files are written."""
    assert [(s["name"], s["writes"]) for s in document("systems")["systems"]] == [
        ("elasticdl", True),
        *((name, True) for name in ("dcp", "tensorflow", "safetensors", "tfra", "dynamicemb")),
        ("torch-checkpointing", True),
        ("torch", True),
    ]
    other = type("Other", (), {"systems": ("other",)})
    monkeypatch.setattr("edl_ckpt.core.sources.registry.others", lambda: (other,))
    assert systems()[-1] == System("other", "other")
    assert kinds_of([]) == ""
