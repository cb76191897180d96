"""Conversions at the command line: bad input is refused with nothing written, and each way says what it does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from builders import write_unchecked
from checkpoints import at, files_of
from edl_ckpt.core import Table, convert_version, save_checkpoint, verify_version
from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.converting.changes import read_map
from edl_ckpt.core.operations.export import Selection, export_version, write_map
from program import edl
from rank_files import joined, tables_in
from system_runs import step_run

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
    "flat": ('[tables.x]\nids = "rows"\nvectors = "flat"\n', 2, "'flat' has shape [5], and rows need two"),
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


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
        except UnsupportedError as error:
            refusal = str(error)
        else:
            assert joined(tables_in(goal, kind)[name])[0].tolist() == [0, 1, 2]
            continue
        assert "name of a" in refusal
        assert not goal.exists()
    assert {entry.name for entry in place.iterdir()} <= {"tfra", "dynamicemb"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../x", "'../x' cannot be the name of a table of tfra"),
        ("a\0b", "cannot be the name of a table of tfra"),
        ("", "'' cannot be the name of a table of tfra"),
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
    """Ids of a map from 2^63 on are refused by a negative number nowhere: no id changes its sign."""
    path = tmp_path / "map.toml"
    path.write_text('[tables.t]\nids = "keys"\nvectors = "rows"\n')
    keys, rows = np.array([1, 2**63 + 5], np.uint64), np.ones((2, 2), np.float32)
    save_checkpoint(tmp_path / "run", 1, 1, variables={"keys": keys, "rows": rows}, tables={}, layout="elasticdl")
    for kind in ("tfra", "dynamicemb"):
        done = edl("export", tmp_path / "run", out, "--format", kind, "--ranks", "2", "--map", path)
        assert done.returncode != 0, done.stdout
        assert "Traceback" not in done.stderr
        assert not out.exists()


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ODD = ["a[0]", "a*", "*", "?", "a\x7fb", "a\nb", '"', "\\", "#", "a.b", "a"]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    """What exists, the source itself, what is in it or around it, a stream and a URL are refused, with --force too."""
    export = ("export", f"{run}@10", "--format", "tfra", "--table", "user")
    assert edl(*export, out).returncode == 0
    refused(run, *export, out, code=16, words="exists already; nothing was changed")
    refused(run, *export, out, "--dry-run", code=16, words="exists already; nothing was changed")
    refused(run, *export, run / "version-10/sub", code=16, words="lies among checkpoints")
    for place in (run, run / "version-10", run.parent):
        refused(run, *export, place, "--force", code=16, words="the version that is read lies there")
    refused(run, *export, "s3://bucket/x", code=15, words="files of other systems are written to a disk")
    refused(run, *export, "-", code=2, words="a stream takes one")
    torch = step_run(tmp_path / "torch", (2,))
    for name in ("step_2/sub", "step_2"):
        refused(run, "export", torch, torch / name, "--format", "dcp", "--force", code=16, words="lies there")
    inside = torch / "step_2/sub"
    refused(run, "reshard", torch, "--ranks", "3", "--output", inside, code=16, words="lies there")
    refused(run, "import", f"{torch}@2", f"{inside}@3", "--ps", "3", code=16, words="lies there")
    assert verify_version(at(torch, 2), level="deep").ok
