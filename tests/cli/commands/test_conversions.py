"""Conversions at the command line: bad input is refused with nothing written, and each way says what it does."""

from __future__ import annotations

import json
import shlex
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from builders import write_unchecked
from checkpoints import at, files_of
from edl_ckpt.core import (
    Table,
    Version,
    convert_version,
    fingerprint_checkpoint,
    list_versions,
    open_checkpoint,
    save_checkpoint,
    verify_version,
)
from edl_ckpt.core.base.errors import UnsupportedError, UsageError
from edl_ckpt.core.converting.name_map import read_map
from edl_ckpt.core.model.versions import State
from edl_ckpt.core.operations.export import Selection, export_version, write_map
from examples import examples
from program import document, edl
from rank_files import joined, tables_in
from system_runs import SYSTEMS, settled, step_run, tree
from torch_files import save

ARRAYS = {
    "w": np.arange(12, dtype=np.float32).reshape(4, 3),
    "ids": np.array([3, 1, 2, 9]),
    "few": np.arange(3),
    "flat": np.ones(5),
    "halves": np.array([0.5, 1, 2, 3]),
}


def table(*ids: int, dim: int = 2) -> Table:
    """Return a table with rows of these ids."""
    return Table(np.array(ids, np.int64), np.arange(len(ids) * dim, dtype=np.float32).reshape(-1, dim))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a version of one server, with arrays that a map can make tables of."""
    place = tmp_path_factory.mktemp("saved") / "run"
    tables = {"user": table(5, 1, 700), "item": table(0, 2, 1), "a.b": table(0), "a_b": table(0), "less": table(-7, 3)}
    save_checkpoint(place, 10, 1, variables=ARRAYS, tables=tables, layout="elasticdl")
    return place


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return where a conversion may write."""
    return tmp_path / "out"


def refused(run: Path, *command: str | Path, code: int, words: str) -> None:
    """Run a command that must be refused: code and words are these, and nothing is written anywhere near."""
    around = {Path(str(word).partition("@")[0]).parent for word in command if str(word).startswith("/")}
    before = {place: files_of(place) for place in {run.parent, *around} if place.is_dir()}
    done = edl(*command)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert {place: files_of(place) for place in before} == before


MAPS = {
    "names nothing": ('[rename]\nnothing = "x"\n', 10, "no table or variable matches 'nothing'"),
    "two of one name": (
        '[rename]\nuser = "x"\nitem = "x"\n',
        2,
        "two of the version's tables or variables would be named",
    ),
    "all of one name": ('[rename]\n"*" = "x"\n', 2, "would all be named 'x'"),
    "no TOML": ("= [", 2, "not a TOML file"),
    "no text": ("\udcff\udcfe", 2, "not a TOML file"),
    "deep": (f"a = {'[' * 20000}", 2, "not a TOML file"),
    "section": ("[renames]\n", 2, "no section 'renames'; expected [rename] and [tables.NAME]"),
    "key": ('[tables.x]\nids = "ids"\nvectors = "w"\nsize = "3"\n', 2, "[tables.x] takes ids, vectors and initializer"),
    "number": ("[rename]\nuser = 3\n", 2, '[rename] takes old = "new"'),
    "numbers": ("[tables.x]\nids = 1\nvectors = 2\n", 2, "[tables.x] takes strings"),
    "large": (f"# {'x' * (10 << 20)}\n", 2, "larger than 8 MiB"),
    "flat": ('[tables.x]\nids = "rows"\nvectors = "flat"\n', 2, "vectors must be [rows, dim], 'flat' has [5]"),
    "few": ('[tables.x]\nids = "few"\nvectors = "w"\n', 2, "ids must be whole numbers [4], 'few' has int64 [3]"),
    "halves": (
        '[tables.x]\nids = "halves"\nvectors = "w"\n',
        2,
        "ids must be whole numbers [4], 'halves' has float64 [4]",
    ),
    "there": ('[tables.user]\nids = "rows"\nvectors = "w"\n', 2, "the version has a table 'user' already"),
    "no array": ('[tables.x]\nids = "rows"\nvectors = "nope"\n', 10, "no variable 'nope'"),
    "no ids": ('[tables.x]\nids = "nope"\nvectors = "w"\n', 10, "no variable 'nope'"),
    "twice": (
        '[tables.x]\nids = "rows"\nvectors = "w"\n[tables.y]\nids = "rows"\nvectors = "w"\n',
        2,
        "table 'y': 'w' or its ids belong to another table of the map",
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_a_bad_map_is_refused_before_anything_is_written(run: Path, tmp_path: Path, out: Path, name: str) -> None:
    """An export and an import refuse the same maps with the same words."""
    text, code, words = MAPS[name]
    path = tmp_path / "map.toml"
    path.write_text(text, errors="surrogateescape")
    refused(run, "export", run, out, "--format", "tfra", "--ranks", "2", "--map", path, code=code, words=words)
    refused(run, "import", f"{run}@10", f"{out}@3", "--ps", "2", "--map", path, code=code, words=words)


@examples(6)
@given(name=st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
@example(name="..")
@example(name="x/../../y")
@example(name="/x")
@example(name="y" * 300)
def test_any_name_is_kept_whole_or_refused(run: Path, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """A table of any name leaves no file outside of the output, and the files have it whole."""
    place = tmp_path_factory.mktemp("names")
    only = Selection(tables=("item",))
    for kind in ("tfra", "dynamicemb"):
        goal = place / kind
        try:
            export_version(at(run, 10), goal, format_name=kind, ranks=2, selection=only, rename=(("item", name),))
        except (UnsupportedError, UsageError) as error:
            refusal = str(error)
        else:
            assert joined(tables_in(goal, kind)[name])[0].tolist() == [0, 1, 2]
            continue
        assert "name of a" in refusal or "needs a name" in refusal
        assert not goal.exists()
    assert {entry.name for entry in place.iterdir()} <= {"tfra", "dynamicemb"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../x", "'../x' cannot be the name of a table of tfra"),
        ("a\0b", "cannot be the name of a table of tfra"),
        ("y" * 300, "the name of a file would have over 255 bytes"),
        ("ü" * 130, "the name of a file would have over 255 bytes"),
    ],
)
def test_a_hostile_name_is_no_name_of_a_file(run: Path, tmp_path: Path, out: Path, name: str, reason: str) -> None:
    """A name that would leave the directory, or that no disk takes, is refused; the hint renames the table as it is."""
    path = tmp_path / "map.toml"
    path.write_text(f"[rename]\nuser = {json.dumps(name)}\n")
    export = ("export", run, out, "--format", "tfra", "--ranks", "2", "--table", "user", "--map", path)
    refused(run, *export, code=15, words=reason)
    assert "--rename" in edl(*export).stderr
    assert edl(*export, "--rename", "user=good").returncode == 0
    assert set(tables_in(out, "tfra")) == {"good"}


@pytest.mark.parametrize(
    ("chosen", "kind", "code", "words"),
    [
        ("less", "dynamicemb", 15, "table 'less' has id -7, and dynamicemb has no key below 0"),
        ("less", "tensorflow", 15, "table 'less' has id -7, and DeepRec has no part for negative keys"),
        ("less", "dcp", 15, "table 'less' has 2 rows with ids -7 to 3; a matrix has ids 0 to 1"),
        ("user", "dcp", 15, "table 'user' has 3 rows with ids 1 to 700; a matrix has ids 0 to 2"),
        ("a*b", "dcp", 2, "would be named 'embedding_bags.a_b.weight'"),
        ("nobody", "tfra", 10, "no table matches 'nobody'"),
    ],
)
def test_tables_that_a_system_cannot_hold(run: Path, out: Path, chosen: str, kind: str, code: int, words: str) -> None:
    """Ids and names that a system would read wrongly are refused, with the table and the numbers."""
    refused(run, "export", run, out, "--format", kind, "--ranks", "2", "--table", chosen, code=code, words=words)


def test_ids_that_occur_twice_are_refused(tmp_path: Path, out: Path) -> None:
    """An id that a table has twice is refused for every system, in one shard or in two."""
    run = tmp_path / "source/run"
    write_unchecked(run, 10, 2, {"t": table(4, 2, 4)})
    for kind in ("tfra", "dynamicemb", "tensorflow"):
        refused(run, "export", run, out, "--format", kind, "--ranks", "3", code=5, words="occurs twice")


def test_ids_of_uint64(tmp_path: Path, out: Path) -> None:
    """Ids of uint64 from 2^63 on are refused: none of them becomes a negative number."""
    path = tmp_path / "map.toml"
    path.write_text('[tables.t]\nids = "keys"\nvectors = "rows"\n')
    keys, rows = np.array([1, 2**63 + 5], np.uint64), np.ones((2, 2), np.float32)
    save_checkpoint(tmp_path / "run", 1, 1, variables={"keys": keys, "rows": rows}, tables={}, layout="elasticdl")
    for kind in ("tfra", "dynamicemb", "tensorflow"):
        export = ("export", tmp_path / "run", out, "--format", kind, "--ranks", "2", "--map", path)
        refused(tmp_path / "run", *export, code=15, words="table 't' has ids of uint64 from 2^63 on, and ids are int64")
    new = f"{out}@3"
    refused(tmp_path / "run", "import", f"{tmp_path / 'run'}@1", new, "--ps", "2", "--map", path, code=15, words="2^63")


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ODD = ["a[0]", "a*", "*", "?", "a\x7fb", "a\nb", '"', "\\", "#", "a.b", "a"]


@examples(4)
@given(names=st.lists(NAMES | st.sampled_from(ODD), unique=True, min_size=1, max_size=4))
@example(names=ODD)
def test_the_map_of_a_version_changes_nothing(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    """Whatever the names are, `--map-template` writes a map that leaves them, and the fingerprint, as they are."""
    place = tmp_path_factory.mktemp("template")
    half = len(names) // 2
    variables = {name: np.full((2, 3), number) for number, name in enumerate(names[half:])}
    tables = {name: table(5, number) for number, name in enumerate(names[:half], 7)}
    version = save_checkpoint(place / "run\nX", 10, 2, variables=variables, tables=tables)
    write_map(version, place / "map.toml")
    result = convert_version(version, 3, output=place / "out", system="elasticdl", names=read_map(place / "map.toml"))
    assert result.fingerprint == version.fingerprint
    assert set(result.untouched) == set(names)


@pytest.mark.parametrize("number", ["0", "-1", "70000", "x", "1.5"])
def test_numbers_of_ranks(run: Path, out: Path, number: str) -> None:
    """A number of ranks is from 1 to 65,535."""
    refused(run, "export", run, out, "--format", "tfra", "--ranks", number, code=2, words=number)
    refused(run, "import", f"{run}@10", f"{out}@1", "--ps", number, code=2, words=number)
    refused(run, "reshard", run, "--ranks", number, code=2, words=number)


def test_places_that_an_export_does_not_take(run: Path, tmp_path: Path, out: Path) -> None:
    """What exists, the source itself, what is in it or around it, and a stream are refused, with --force too."""
    export = ("export", f"{run}@10", "--format", "tfra", "--table", "user")
    assert edl(*export, out).returncode == 0
    refused(run, *export, out, code=16, words="exists already; nothing was changed")
    refused(run, *export, out, "--dry-run", code=16, words="exists already; nothing was changed")
    refused(run, *export, run / "version-10/sub", code=16, words="is among checkpoints")
    for place in (run, run / "version-10", run.parent):
        refused(run, *export, place, "--force", code=16, words="the version to read is there")
    refused(run, *export, "-", code=2, words="a stream takes one")
    torch = step_run(tmp_path / "torch", (2,))
    for name in ("step_2/sub", "step_2"):
        refused(run, "export", torch, torch / name, "--format", "dcp", "--force", code=16, words="is there")
    inside = torch / "step_2/sub"
    refused(run, "reshard", torch, "--ranks", "3", "--output", inside, code=16, words="is there")
    refused(run, "import", f"{torch}@2", f"{inside}@3", "--ps", "3", code=16, words="is there")
    assert verify_version(at(torch, 2), level="deep").ok


STEPS = {
    "dcp": ("dcp/torchrec/step_2", 2),
    "tfra": ("tfra/step_3", 3),
    "dynamicemb": ("dynamicemb/step_2", 2),
    "collisions": ("dcp/mch/step_6", 6),
}
"""Steps that are directories: where they are, and their numbers."""


def copied(tmp_path: Path, name: str) -> tuple[Path, int]:
    """Copy a step into a location of its own, with a file of the job beside its files; return it with the number."""
    folder, number = STEPS[name]
    step = Path(shutil.copytree(SYSTEMS / folder, tmp_path / "run" / Path(folder).name))
    (step / "job.txt").write_text("the job's own")
    return settled(tmp_path / "run"), number


def content(version: Version) -> dict[str, bytes]:
    """Return the fingerprints of tables and variables."""
    with open_checkpoint(version) as checkpoint:
        parts = fingerprint_checkpoint(checkpoint)
        return {**parts.tables, **parts.variables}


@pytest.mark.parametrize(("name", "ranks"), [("dcp", 1), ("dcp", 8), ("tfra", 3), ("dynamicemb", 5), ("collisions", 3)])
def test_a_reshard_in_place_and_its_undo(tmp_path: Path, name: str, ranks: int) -> None:
    """A step keeps its metrics, its tags and the job's files; undo brings the old bytes back."""
    run, number = copied(tmp_path, name)
    assert edl("metrics", "set", f"{run}@{number}", "auc=0.5").returncode == 0
    assert edl("tag", "add", f"{run}@{number}", "serving").returncode == 0
    (step,), before, parts = run.glob(f"step_{number}"), tree(run), content(at(run, number))
    more = ("--ranks", str(ranks), *["--force"] * (name == "collisions"))  # it has as many as can be, so nothing to do
    planned, there = document("reshard", run, *more, "--dry-run"), 2 if name == "collisions" else ranks
    assert (planned["to_ps"], planned["dry_run"], tree(run)) == (there, True, before)  # boxes of raw ids stay two
    done = document("reshard", run, *more, "--keep-old")
    assert (done["to_ps"], done["dropped"], done["size_bytes"]) == (there, [], planned["size_bytes"])
    assert edl("verify", run, "--deep").returncode == 0
    version = at(run, number)
    assert content(version) == parts
    there = 2 if name == "collisions" else ranks  # a raw id stays in its box, and there are two
    assert (version.ps_num, version.metrics, version.tags) == (there, {"auc": 0.5}, ("serving",))
    assert version.fingerprint == done["fingerprint"]
    assert (step / "job.txt").read_text() == "the job's own"
    (row,) = document("list", run)["locations"][0]["versions"]
    assert (row["version"], row["ps_num"], row["state"]) == (number, there, "complete")
    assert sorted({shard["path"] for shard in done["shards"]}) == sorted(shard.path for shard in version.shards)
    again = tree(run)
    assert "nothing to do" in edl("reshard", run, "--ranks", str(there), "--if-needed").stdout
    assert tree(run) == again
    assert edl("undo", run).returncode == 0
    assert tree(run) == before
    version = at(run, number)
    assert (version.metrics, version.tags, content(version)) == ({"auc": 0.5}, ("serving",), parts)
    assert verify_version(version, level="deep").ok


def test_files_side_by_side_go_to_an_output(tmp_path: Path) -> None:
    """A bundle's files lie side by side: in place they are refused; at an output each table keeps its fingerprint."""
    run = settled(Path(shutil.copytree(SYSTEMS / "bundle/deeprec", tmp_path / "run")))
    refused(run, "reshard", run, "--ranks", "3", code=16, words="files side by side are not replaced together")
    done = document("reshard", run, "--ranks", "3", "--output", tmp_path / "out")
    assert (done["to_ps"], done["rows"], done["system"]) == (3, 1200, "tensorflow")
    assert edl("verify", tmp_path / "out", "--deep").returncode == 0
    with open_checkpoint(at(run, 100)) as one, open_checkpoint(at(tmp_path / "out", 100)) as other:
        assert fingerprint_checkpoint(one).tables == fingerprint_checkpoint(other).tables
    refused(run, "reshard", run, "--ranks", "2", "--output", tmp_path / "out", code=16, words="exists there already")


@pytest.mark.parametrize(("size", "files"), [("200B", 5), ("1KB", 3), ("1GB", 1)])
def test_files_of_a_bounded_size(tmp_path: Path, size: str, files: int) -> None:
    """A set of safetensors is cut again: no file has two tensors that are larger together, and the index names all."""
    run = tmp_path / "run"
    shutil.copytree(SYSTEMS / "safetensors/checkpoint-200", run / "checkpoint-200")
    settled(run)
    before = content(at(run, 200))
    planned = document("reshard", run, "--max-shard-size", size, "--dry-run")
    done = document("reshard", run, "--max-shard-size", size)
    assert planned["to_ps"] == done["to_ps"] == len(done["shards"]) == files
    sets = sorted((run / "checkpoint-200").glob("*.safetensors"))
    assert len(sets) == files
    most, names = {"200B": 200, "1KB": 1000, "1GB": 10**9}[size], dict[str, str]()
    for path in sets:
        data = path.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        header.pop("__metadata__", None)
        sizes = [one["data_offsets"][1] - one["data_offsets"][0] for one in header.values()]
        assert sum(sizes) <= most or sum(map(bool, sizes)) == 1
        names |= dict.fromkeys(header, path.name)
    for index in (run / "checkpoint-200").glob("*.index.json"):
        assert json.loads(index.read_text())["weight_map"] == names
    assert all(Path(shard["path"]) in sets for shard in done["shards"])
    assert content(at(run, 200)) == before
    assert verify_version(at(run, 200), level="deep").ok


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--ranks", "2"), "files of safetensors have no ranks"),
        (("--max-shard-size", "0"), "files have at least 1 byte"),
        (("--max-shard-size", "many"), "is not a size"),
        ((), "--ranks N is missing"),
        (("--max-shard-size", "1KB", "--layout", "design"), "are for versions of ElasticDL"),
    ],
)
def test_sizes_of_files_that_cannot_be(tmp_path: Path, options: tuple[str, ...], words: str) -> None:
    """Ranks are not for sets of safetensors, and a size must be one."""
    run = tmp_path / "run"
    shutil.copytree(SYSTEMS / "safetensors/checkpoint-200", run / "checkpoint-200")
    refused(run, "reshard", settled(run), *options, code=2, words=words)
    torch = step_run(tmp_path / "torch", (2,))
    refused(torch, "reshard", torch, "--max-shard-size", "1KB", code=2, words="--max-shard-size is for safetensors")


def test_files_of_at_most_a_size_of_other_systems(tmp_path: Path) -> None:
    """What is not safetensors cannot have files of a size: one refusal, whose line makes safetensors of it."""
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    save(folder / "pytorch_model.bin", {"w": np.arange(400, dtype=np.float32)})
    for ref in ("checkpoint-5/pytorch_model.bin", "checkpoint-5"):
        done = edl("reshard", ref, "--max-shard-size", "1KB", cwd=tmp_path)
        assert done.returncode == 2
        (way,) = (line for line in done.stderr.splitlines() if line.startswith("  try: edl-ckpt export "))
        line = way.removeprefix("  try: edl-ckpt ").replace("OUT", folder.name + ref[-3:])
        done = edl(*shlex.split(line), cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_what_was_not_compared_is_named(tmp_path: Path) -> None:
    """Values that do not go out are not read, so their checksums say nothing: some names, and how many more."""
    run = step_run(tmp_path / "torch", (2,))
    table = document("inspect", run)["tables"][0]["name"]
    result = document("export", run, tmp_path / "out", "--format", "dcp", "--table", table)["checksums"]
    assert 0 < len(result["names"]) <= min(8, result["not_compared"])
    said = edl("export", run, tmp_path / "again", "--format", "dcp", "--table", table).stdout
    (line,) = (line for line in said.splitlines() if "not compared with" in line)
    assert all(name in line for name in result["names"][:3])
    assert (" and others" in line) == (len(result["names"]) > 3)


@pytest.mark.parametrize("kind", ["dcp", "tfra", "dynamicemb", "tensorflow"])
def test_an_export_says_what_it_writes(run: Path, out: Path, kind: str) -> None:
    """A dry run names the files and sizes that the export then writes; text and JSON say the same."""
    export = ("export", run, out, "--format", kind, "--ranks", "3", "--table", "item", "--variable", "w")
    planned = document(*export, "--dry-run")
    assert not out.exists()
    assert "Nothing was written" in edl(*export, "--dry-run").stdout
    done = document(*export)
    files = {file["path"]: file["size_bytes"] for file in done["files"]}
    assert {file["path"]: file["size_bytes"] for file in planned["files"]} == files
    assert files == {str(path): path.stat().st_size for path in out.rglob("*") if path.is_file()}
    assert (done["format"], done["tables"], done["rows"]) == (kind, 1, 3)
    shutil.rmtree(out)
    text = edl(*export)
    assert ("w is left out: " in text.stderr) == (kind in {"tfra", "dynamicemb"})
    assert f"exported as {kind}" in text.stdout
    same = files_of(out)
    assert edl(*export, "--force").returncode == 0
    assert files_of(out) == same


@pytest.mark.parametrize("name", STEPS)
def test_a_template_of_another_system_changes_nothing(tmp_path: Path, name: str) -> None:
    """The map that `--map-template` writes for a step leaves its import as it is."""
    run, number = copied(tmp_path, name)
    path = tmp_path / "map.toml"
    assert edl("export", run, path, "--map-template").returncode == 0
    refused(run, "export", run, path, "--map-template", code=16, words="exists already")
    for place, options in (("plain", ()), ("mapped", ("--map", path))):
        assert edl("import", f"{run}@{number}", f"{tmp_path / place}@7", "--ps", "3", *options).returncode == 0
    one, other = (at(tmp_path / place, 7) for place in ("plain", "mapped"))
    assert content(one) == content(other)
    assert one.fingerprint == other.fingerprint


def test_a_matrix_becomes_a_table_by_a_map(tmp_path: Path) -> None:
    """With `ids = "rows"` a matrix of any system is a table, and with an array of ids it has those."""
    run, path = tmp_path / "run", tmp_path / "map.toml"
    rows, ids = np.arange(20, dtype=np.float32).reshape(5, 4), np.array([9, 4, 7, 1, 2**40])
    save_checkpoint(run, 1, 1, variables={"rows": rows, "ids": ids, "more": rows + 1}, tables={}, layout="elasticdl")
    path.write_text('[tables.a]\nids = "ids"\nvectors = "rows"\n[tables.b]\nids = "rows"\nvectors = "more"\n')
    assert edl("export", run, tmp_path / "out", "--format", "tfra", "--ranks", "2", "--map", path).returncode == 0
    found = tables_in(tmp_path / "out", "tfra")
    order = np.argsort(ids)
    assert np.array_equal(joined(found["a"])[0], ids[order])
    assert np.array_equal(joined(found["a"])[1], rows[order])
    assert np.array_equal(joined(found["b"])[0], np.arange(5))
    assert np.array_equal(joined(found["b"])[1], rows + 1)
    done = document("import", f"{run}@1", f"{tmp_path / 'new'}@2", "--ps", "3", "--map", path)
    assert (done["rows"], done["to_ps"]) == (10, 3)
    with open_checkpoint(at(tmp_path / "new", 2)) as checkpoint:
        assert (checkpoint.table_names, checkpoint.variable_names) == (["a", "b"], [])
        assert np.array_equal(checkpoint.table("a").to_numpy()[1], rows[order])
    assert verify_version(at(tmp_path / "new", 2), level="deep").ok


def test_lists_beside_a_reshard_in_place(tmp_path: Path) -> None:
    """While a step is rewritten again and again, each list shows it alone and complete; at the end it is whole."""
    run, number = copied(tmp_path, "dcp")
    parts = content(at(run, number))

    def rewrite() -> None:
        for ranks in (3, 1, 8, 2):
            convert_version(at(run, number), ranks)

    writer = threading.Thread(target=rewrite)
    writer.start()
    shown = set()
    while writer.is_alive():
        shown |= {(row.version, row.state) for row in list_versions(str(run)).versions}
    writer.join()
    assert shown == {(number, State.COMPLETE)}
    assert content(at(run, number)) == parts
    for command in ("list", "verify", "inspect"):
        assert edl(command, run).returncode == 0
    assert verify_version(at(run, number), level="deep").ok


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_import_with_and_without_a_map(tmp_path: Path, *, dry_run: bool) -> None:
    """A map that changes no name changes nothing: neither rows, what is left out, warnings and keys, nor bytes."""
    (tmp_path / "same.toml").write_text('[rename]\n"*" = "*"\n')
    found = []
    mapped = ("--map", str(tmp_path / "same.toml"))
    for name, words in (("plain", ()), ("mapped", mapped)):
        flags = ("--ps", "3", *words, *(("--dry-run",) if dry_run else ()), "--json")
        done = edl("import", f"{SYSTEMS}/dcp/torchrec@2", f"{name}@5", *flags, cwd=tmp_path)
        assert done.returncode == 0
        assert "left out: step (1 value; not in elasticdl)" in done.stderr
        timed = {"seconds": 0, "peak_memory_bytes": 0}
        found.append((json.loads(done.stdout.replace(name, "new")) | timed, done.stderr.replace(name, "new")))
    assert found[0] == found[1]
    assert found[0][0]["rows"] == 2428
    if not dry_run:
        shards = [[path.read_bytes() for path in sorted(tmp_path.glob(f"{n}/*/*.chkpt"))] for n in ("plain", "mapped")]
        assert (len(shards[0]), shards[0]) == (3, shards[1])
