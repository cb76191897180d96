"""The benchmarks run, at a small size, and measure what they say; nothing here asserts a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TABLES = ("reshard", "verify", "copy", "export", "import", "diff", "list", "inspect", "save_checkpoint", "restore")
PLACES = "".join(f"<!-- figures: {name} -->\n| an old row |\n<!-- end -->\n" for name in TABLES)
PAGE = f"Before\n\n{PLACES}\n<!-- figures: machines -->\n<!-- end -->\n\nBehind\n"


def measure(tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark at a small size, with its results below a directory."""
    script = Path(__file__).with_name("run.py")
    command = [sys.executable, str(script), "--runs", "1", "--scale", "0.002", "--work", str(tmp_path / "work")]
    command += ["--memory", str(tmp_path / "memory"), "--json", str(tmp_path / "out.json"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.bench
def test_bench_runs(tmp_path: Path) -> None:
    """Every figure is measured against its reference, kept as JSON with the machine, and written into its table."""
    page, short = tmp_path / "page.md", tmp_path / "short.md"
    page.write_text(PAGE)
    short.write_text("<!-- figures: short -->\n<!-- end -->\n")
    measure(tmp_path, "--large", "--page", str(page), "--page", str(short))
    found = json.loads((tmp_path / "out.json").read_text())
    assert set(found) >= {"reshard", "verify", "copy", "export", "many", "inspect", "start", "restore", "save"}
    figures = {name: group["figures"] for name, group in found.items()}
    for group in found.values():
        assert "cores of" in group["machine"]
        assert group["figures"]
        for figure in group["figures"]:
            assert len(figure["ours"]) == len(figure["reference"]) >= 1
            assert figure["ours"][0]["wall"] > 0
    assert 0 < int(figures["inspect"][0]["note"].split()[1]) < 1 << 20
    assert not (tmp_path / "work").exists()
    written = page.read_text()
    assert written.startswith("Before\n\n<!-- figures: reshard -->\n| work | time | against | memory |")
    assert " cores of " in written
    assert written.endswith("<!-- end -->\n\nBehind\n")
    assert "an old row" not in written
    assert short.read_text().count("\n* ") >= len({"verify", "export"})
    assert "MiB of memory\n" in short.read_text()
    tables = [part.partition("<!-- end")[0] for part in written.split("<!-- figures: ")[1:-1]]
    assert min(table.count("\n| ") for table in tables) >= 2


@pytest.mark.bench
def test_peers_run_or_say_why_not(tmp_path: Path) -> None:
    """Each peer is measured, or the reason is printed; what was measured before stays in the results."""
    (tmp_path / "out.json").write_text('{"verify": {"machine": "m", "figures": []}}')
    done = measure(tmp_path, "--only", "peers")
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["verify"] == {"machine": "m", "figures": []}
    measured = {figure["against"].split()[0].strip(",") for name in found for figure in found[name]["figures"]}
    left_out = {line.split()[0] for line in done.stderr.splitlines() if "is left out: " in line}
    assert measured | left_out >= {"PyTorch", "safetensors", "np.save", "restic", "borg"}


@pytest.mark.bench
def test_times_by_workers(tmp_path: Path) -> None:
    """The table has the least seconds by workers, and what the server counted with the most of them."""
    traffic = {"requests": {"GET": 1200, "PUT": 34}, "bytes_in": 2_000_000, "bytes_out": 5_000_000}
    rows = {"`copy` to S3": {"1": {"seconds": [9, 2, 3], "traffic": {}}, "4": {"seconds": [1.25], "traffic": traffic}}}
    (tmp_path / "out.json").write_text(json.dumps({"rows": rows, "bytes": 3e8}))
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- figures: to S3 -->\nold\n<!-- end -->\nb\n")
    script = Path(__file__).with_name("cluster_s3.py")
    command = [sys.executable, str(script), "--no-run", "--json", str(tmp_path / "out.json"), "--page", str(page)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    written = page.read_text()
    assert "\n| `copy` to S3 | 2.0 s |  | 1.2 s | 1,234 | 5 MB, 2 MB |\n" in written
    assert "| 300 MB, workers of one thread | 1 | 2 | 4 |" in written
    assert "old" not in written
