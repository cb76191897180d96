"""Two processes write the same version at once; one does it, and the other ends with 11 or 16."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import pytest

import elasticdl_rules
from checkpoints import only, save_small
from edl_ckpt.core import export_version, verify_version
from racers import Racers
from s3_fixtures import Bucket
from s3_proxy import DIALECTS, Fault

WRITERS = {
    "reshard": ["reshard", "{run}@7", "--ps", "{ps}", "--output", "{to}"],
    "import": ["import", "{npz}", "{to}@7", "--ps", "{ps}", "--layout", "elasticdl"],
    "copy": ["copy", "{run}@7", "{to}"],
    "export": ["export", "{run}@7", "{to}", "--format", "checkpoint"],
    "save": ["save", "{to}", "7", "{ps}"],
}
"""Every way to write a version to a location that does not have it."""
QUICK = {("reshard", "reshard"), ("import", "import"), ("save", "save"), ("reshard", "copy"), ("import", "export")}
PAIRS = [
    pytest.param(pair, marks=[] if pair in QUICK else [pytest.mark.slow], id="-".join(pair))
    for pair in combinations_with_replacement(WRITERS, 2)
]
"""Each pair of them; the suite runs some."""


@pytest.fixture(scope="module")
def racers() -> Iterator[Racers]:
    """Return the process that forks the commands."""
    with Racers() as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a version of two shards, and the same values in an .npz."""
    folder = tmp_path_factory.mktemp("source")
    save_small(folder / "run", 7)
    export_version(only(folder / "run"), str(folder / "m.npz"))
    return folder


def race(racers: Racers, source: Path, to: str, one: str, other: str) -> list[int]:
    """Run two writers at once, for 3 and for 5 servers where they choose; return their exit codes."""
    values = {"run": str(source / "run"), "npz": str(source / "m.npz"), "to": to}
    commands = [[word.format(**values, ps=ps) for word in WRITERS[name]] for name, ps in ((one, 3), (other, 5))]
    return racers.run(*commands)


def check_one(to: str, codes: list[int], pair: tuple[str, str]) -> None:
    """One version is there, whole, sealed, with the values of the source; one writer said that it wrote it."""
    version = only(to)
    check = verify_version(version, level="deep")
    assert (version.state.value, version.extra, check.findings, check.sealed) == ("complete", (), (), True), codes
    allowed = {0, 11, 16} if "copy" in pair else {11, 16}  # a copy that comes second may find the same content
    assert min(codes) == 0
    assert max(codes) in allowed, codes


@pytest.mark.parametrize("pair", PAIRS)
def test_on_s3(racers: Racers, source: Path, s3: Bucket, pair: tuple[str, str]) -> None:
    """On S3, where each shard appears by itself, there is one whole version and never a mixture."""
    check_one(s3.url, race(racers, source, s3.url, *pair), pair)
    assert s3.open_uploads() == []
    assert [key for key in s3.objects() if ".edl-ckpt-0/" in key and "/meta-0/" not in key] == []


@pytest.mark.parametrize("pair", [("reshard", "import"), ("save", "save")], ids="-".join)
def test_without_conditional_writes(racers: Racers, source: Path, s3: Bucket, pair: tuple[str, str]) -> None:
    """One of two writers wins on a service that ignores conditions: only the lock keeps the two apart there."""
    s3.proxy.fail(Fault(DIALECTS["ignores If-None-Match"], times=None))
    check_one(s3.url, race(racers, source, s3.url, *pair), pair)


@pytest.mark.parametrize("pair", PAIRS)
def test_on_disk(racers: Racers, source: Path, tmp_path: Path, pair: tuple[str, str]) -> None:
    """On a disk one of two processes publishes the version, and the other leaves nothing."""
    to = tmp_path / "to"
    check_one(str(to), race(racers, source, str(to), *pair), pair)
    assert elasticdl_rules.leftovers(to) == []


def test_in_place_at_once(racers: Racers, source: Path, s3: Bucket) -> None:
    """Two reshards of one version in place: each that says so did it, and what stays is one whole set."""
    s3.upload(source / "run")
    codes = racers.run(*(["reshard", f"{s3.url}@7", "--ps", str(ps)] for ps in (3, 5)))
    assert 0 in codes
    assert set(codes) <= {0, 11, 16}
    check_one(s3.url, [0, 11], ("reshard", "reshard"))
    assert only(s3.url).ps_num in {3, 5}


def test_a_tag_and_a_prune_at_once(racers: Racers, s3: Bucket, tmp_path: Path) -> None:
    """A version that was tagged while a prune ran is there with its tag, or the tag was refused."""
    save_small(tmp_path / "four", 1, 2, 3)
    s3.upload(tmp_path / "four")
    prune, tag = racers.run(["prune", s3.url, "--keep", "1", "--yes"], ["tag", "add", f"{s3.url}@1", "good"])
    assert prune in {0, 11, 16}
    kept = [key for key in s3.objects() if key.startswith("run/version-1/")]
    assert (tag == 0) == (len(kept) == 2)
