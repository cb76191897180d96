"""Checksums that files have of their own values, and random parts of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import torch_items
from edl_ckpt.core import ValueSample, verify_and_seal, verify_version
from edl_ckpt.core.catalog.listing import list_versions
from edl_ckpt.core.state.seal import read_seal
from edl_ckpt.core.storage import Location, open_store
from program import edl
from reporters import Recorder

USER = "model.ebc.embedding_bags.user.weight"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A step of three ranks with one table and one variable."""
    rng = np.random.default_rng(0)
    rows, weight = rng.standard_normal((1003, 16), np.float32), rng.standard_normal((3, 4), np.float32)
    parts = [*torch_items.boxes(USER, rows, [[335, 670], []], 3), *torch_items.boxes("over.weight", weight, [[], []])]
    torch_items.write_step(tmp_path / "run/step_5", parts)
    return tmp_path / "run"


def flip(run: Path, rank: int = 1, at: int = 10_000) -> None:
    """Flip the lowest bit of a byte of a rank's file."""
    path = run / f"step_5/__{rank}_0.distcp"
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_deep_compares_the_checksums_of_the_files(run: Path) -> None:
    """A flipped bit of a value is found without a seal; the finding names the tensor, the rank and the file."""
    sound = verify_version(f"{run}@5", level="deep")
    assert sound.ok
    assert sound.checksums == 4
    flip(run)
    assert verify_version(f"{run}@5").ok, "without --deep no value is read"
    (finding,) = verify_version(f"{run}@5", level="deep").findings
    assert (finding.code, finding.shard, finding.subject) == ("checksum-mismatch", 1, USER)
    assert finding.path == str(run / "step_5/__1_0.distcp")
    assert "crc32" in finding.message
    assert "seal" not in finding.hint
    reporter = Recorder()
    assert not verify_and_seal(f"{run}@5", reporter=reporter).sealed
    assert "a checksum in its files" in reporter.warnings[-1]
    forced = verify_and_seal(f"{run}@5", use_seal=False, reporter=reporter)
    assert forced.sealed
    assert not forced.ok
    seal = read_seal(open_store(Location.of(str(run))), 5)
    assert seal is not None
    assert [USER in decision.why for decision in seal.history] == [True]


def test_a_flipped_method_of_a_zip_is_damage(run: Path) -> None:
    """A bit in the directory of an item's zip makes its tensor unreadable: an error at each level, and no seal."""
    path = run / "step_5/__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.find(b"PK\1\2", data.find(b"PK\1\2") + 4) + 10] ^= 1  # the method of the member with the values
    path.write_bytes(data)
    for level in ("quick", "deep"):
        assert {f.severity for f in verify_version(f"{run}@5", level=level).findings} == {"error"}, level
    assert not verify_and_seal(f"{run}@5", reporter=Recorder()).sealed
    assert edl("verify", f"{run}@5", "--deep").returncode == 3


def test_what_edl_ckpt_cannot_read_is_named(run: Path) -> None:
    """A tensor in a way that is not read (here: compressed) is an error with its name, and the rest stays readable."""
    rng = np.random.default_rng(0)
    parts = [*torch_items.boxes("w", np.ones(4, np.float32), [[]]), *torch_items.boxes("v", rng.random(300), [[]])]
    parts[0].deflated = True
    torch_items.write_step(run / "step_7", parts)
    result = verify_version(f"{run}@7", level="deep")
    assert [(f.severity, f.code, f.subject) for f in result.findings] == [("error", "unsupported-item", "w")]
    assert result.unread == ("w",)
    assert "every" not in edl("verify", f"{run}@7", "--deep").stdout.splitlines()[-2]
    reporter = Recorder()
    assert not verify_and_seal(f"{run}@7", reporter=reporter).sealed
    assert "not every tensor was read" in reporter.warnings[-1]


@pytest.mark.parametrize("sealed", [False, True])
def test_a_sample_finds_what_it_reads(run: Path, sealed: bool) -> None:
    """A sample of everything finds a flipped bit; samples of a part find it with some seeds, each always or never."""
    (version,) = list_versions(run).versions
    if sealed:
        assert verify_and_seal(version).sealed
    assert verify_version(f"{run}@5", sample=ValueSample(100, 1)).ok
    flip(run)
    whole = verify_version(f"{run}@5", sample=ValueSample(100, 1))
    assert {finding.code for finding in whole.findings} == {"checksum-mismatch"}
    assert whole.sample == ValueSample(100, 1)
    some = {seed: verify_version(f"{run}@5", sample=ValueSample(20, seed)).ok for seed in range(12)}
    assert set(some.values()) == {True, False}
    assert some == {seed: verify_version(f"{run}@5", sample=ValueSample(20, seed)).ok for seed in range(12)}


def test_a_sample_without_checksums_looks_at_values(tmp_path: Path) -> None:
    """Where nothing has checksums, a sample finds values that are not finite."""
    from edl_ckpt.core import Table, save_checkpoint

    table = Table(np.arange(100), np.full((100, 4), np.inf, np.float32))
    save_checkpoint(tmp_path, 1, 2, variables={"w": np.ones(3)}, tables={"t": table})
    (tmp_path / ".edl-ckpt-0/meta-0/1.seal.json").unlink()
    found = verify_version(f"{tmp_path}@1", sample=ValueSample(100, 3)).findings
    assert {finding.code for finding in found} == {"inf"}


def test_sample_on_the_command_line(run: Path) -> None:
    """The seed is in the result; other levels, and parts that are none, are errors of usage."""
    done = edl("verify", f"{run}@5", "--sample", "20%", "--json")
    assert json.loads(done.stdout)["sample"]["percent"] == 20
    assert "seed" in json.loads(done.stdout)["sample"]
    for words in (["--sample", "0"], ["--sample", "x"], ["--sample", "5%", "--deep"], ["--seed", "1"]):
        assert edl("verify", f"{run}@5", *words).returncode == 2
