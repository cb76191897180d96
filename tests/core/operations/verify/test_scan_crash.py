"""ElasticDL's scan of a location raises an exception exactly where `verify` and `list` say so."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import example, given
from hypothesis import strategies as st

import elasticdl_rules
from checkpoints import save_small
from edl_ckpt.core import list_versions, verify_version
from edl_ckpt.core.sources.elasticdl.loader import listed_crashes
from examples import examples
from program import document, edl

SHARDS = [f"variables-{i}-of-{n}.ckpt" for n in (1, 2) for i in range(n)]
OTHERS = ["notes.txt", "backup-2", ".nfs0001", "variables-0-of-2.ckpt.tmp"]
VERSIONS = ["version-1", "version-2", "version-30"]
contents = st.lists(st.sampled_from([*SHARDS, *OTHERS]), unique=True, max_size=4)
directories = st.dictionaries(st.sampled_from([*VERSIONS, "tmp-20", "version_9"]), contents, max_size=4)
files = st.lists(st.sampled_from(["model-4", "model-99", "metrics.json"]), unique=True, max_size=1)


def may_raise(place: Path) -> bool:
    """Return whether ElasticDL's scan raises an exception in any order in which directories can be listed."""
    inside = list({frozenset(os.listdir(each)) for each in place.iterdir() if each.is_dir()} - {frozenset()})
    for firsts in product(*inside):
        first = dict(zip(inside, firsts, strict=True))

        def order(names: Sequence[str], first: dict[frozenset[str], str] = first) -> list[str]:
            return sorted(names, key=lambda name: name != first.get(frozenset(names)))

        try:
            elasticdl_rules.latest_valid(place, order)
        except (ValueError, NotADirectoryError):
            return True
    return False


@given(directories, files)
@example({"version-1": [SHARDS[0], "notes.txt"], "version-2": SHARDS[1:]}, [])
@example({"version-1": SHARDS[:1], "version-2": [*SHARDS[1:], "backup-2"]}, [])
@example({"version-1": ["notes.txt"]}, [])
@example({"version-1": SHARDS[:1], "version-2": ["notes.txt", SHARDS[1]]}, [])
@examples(20)
def test_scan_raises_where_verify_says_so(directories: dict[str, list[str]], files: list[str]) -> None:
    """`verify` of any version reports scan-crash exactly where the scan can raise an exception, in all orders of names.

    So does a listing, which does not look into directories that are no versions: of another name, or without a shard.
    """
    with TemporaryDirectory() as top:
        place = Path(top)
        for directory, names in {"version-1": [], **directories}.items():
            (place / directory).mkdir()
            for name in names:
                (place / directory / name).touch()
        for name in files:
            (place / name).touch()
        listing, expected = list_versions(place), may_raise(place)
        for version in listing.versions:
            found = [f.subject for f in verify_version(version, level="quick").findings if f.code == "scan-crash"]
            assert bool(found) == expected, (version.path, found)
            assert all((place / name).exists() for name in found)
        others = {name for name, names in directories.items() if names and not {*names} & {*SHARDS}}
        if "tmp-20" not in directories and not others:
            assert bool(listed_crashes(listing)) == expected


def test_a_file_in_a_version_is_named_for_the_whole_location(tmp_path: Path) -> None:
    """A file in one version, which ends the scan of the location, is named so at every version and in the list."""
    save_small(tmp_path, 10, 20)
    (tmp_path / "version-20" / "notes.txt").touch()
    findings = document("verify", f"{tmp_path}@10")["findings"]
    assert [(f["code"], f["subject"], f["severity"]) for f in findings] == [
        ("scan-crash", "version-20/notes.txt", "warning")
    ]
    assert "when it looks for the newest version" in findings[0]["message"]
    assert (
        "ElasticDL cannot start from this directory: it stops at version-20/notes.txt" in edl("list", tmp_path).stderr
    )
    (tmp_path / "version-20" / "notes.txt").unlink()
    assert document("verify", tmp_path, "--all")["ok"]
    assert edl("list", tmp_path).stderr == ""


def test_what_elasticdl_takes_for_whole(tmp_path: Path) -> None:
    """Half a version whose other file makes the count right is named: ElasticDL may restore it."""
    save_small(tmp_path, 10, 20)
    kept, lost = (tmp_path / f"version-20/variables-{i}-of-2.ckpt" for i in range(2))
    lost.rename(kept.with_name(f"{kept.name}.bak"))
    (extra,) = [f for f in document("verify", f"{tmp_path}@20", code=3)["findings"] if f["code"] == "extra-file"]
    assert "may take this version for whole" in extra["message"]
    assert "refuses" not in extra["hint"]
    assert "version 20" not in edl("list", tmp_path).stdout
    assert f"{tmp_path}@20: ElasticDL may take it for whole" in edl("list", tmp_path).stderr
    (tmp_path / "version-20/third-2").touch()
    (extra, _) = [f for f in document("verify", f"{tmp_path}@20", code=3)["findings"] if f["code"] == "extra-file"]
    assert "may take" not in extra["message"]
    assert "refuses" in extra["hint"]
