"""`--cluster`: the same documents as without it, and nothing of Dask where it is not asked for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints import save_mixed, save_small, shards_of
from edl_ckpt.core import __version__
from program import document, edl


def test_verify(tmp_path: Path, processes: Any) -> None:
    """The document of a verification is the same, but for times and what it took to read."""
    save_mixed(tmp_path)
    address = processes.scheduler.address
    here, there = (document("verify", tmp_path, "--deep", *more) for more in ([], ["--cluster", address]))
    for each in (here, there):
        del each["bytes_read"]
        for check in each["checks"]:
            del check["seconds"]
    assert here == there


def test_diff(tmp_path: Path, processes: Any) -> None:
    """The document of a diff is the same."""
    save_small(tmp_path, 7)
    save_mixed(tmp_path / "b")
    here, there = (
        document("diff", f"{tmp_path}@7", f"{tmp_path / 'b'}@7", *more, code=3)
        for more in ([], ["--cluster", processes.scheduler.address])
    )
    assert here == there


def test_verify_from_the_environment(tmp_path: Path, processes: Any) -> None:
    """The variable sets the address, the location may be relative, and -v names the slowest tasks."""
    save_small(tmp_path, 7)
    done = edl("verify", ".", "--all", "-v", cwd=tmp_path, EDL_CKPT_CLUSTER=processes.scheduler.address)
    assert done.returncode == 0, done.stderr
    assert "slow: task " in done.stderr


def test_workers_of_two_kinds(tmp_path: Path) -> None:
    """The threads of the command and the workers of a cluster exclude each other."""
    save_small(tmp_path, 7)
    done = edl("verify", tmp_path, "--workers", "2", "--cluster", "local:1")
    assert done.returncode == 2
    assert "--workers cannot be used with --cluster" in done.stderr


def test_no_scheduler(tmp_path: Path) -> None:
    """A scheduler that is not there is one line, and the code of what is unavailable."""
    save_small(tmp_path, 7)
    done = edl("verify", tmp_path, "--cluster", str(tmp_path / "scheduler.json"))
    assert done.returncode == 10
    assert "no such scheduler file" in done.stderr


def test_without_it(tmp_path: Path) -> None:
    """A command without --cluster imports nothing of Dask."""
    save_small(tmp_path, 7)
    code = (
        "import sys\nfrom edl_ckpt.core import verify_version\n"
        f"verify_version({str(tmp_path)!r} + '@7', level='deep')\n"
        "assert not {'dask', 'distributed', 'tornado', 'asyncio'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def check_cluster(cluster: dict[str, Any], client: Any) -> None:
    """Compare the cluster of a document with what the scheduler knows."""
    info = client.scheduler_info(n_workers=-1)
    assert cluster["address"] == info["address"]
    has_pages = importlib.util.find_spec("bokeh") is not None
    assert cluster["dashboard"] == (client.dashboard_link if has_pages else None)
    assert {worker["address"]: worker for worker in cluster["workers"]} == {
        address: {
            "name": str(worker["name"]),
            "address": address,
            "threads": worker["nthreads"],
            "memory_bytes": worker["memory_limit"] or None,
            "version": __version__,
        }
        for address, worker in info["workers"].items()
    }


def test_reshard(tmp_path: Path, processes: Any) -> None:
    """A reshard on a cluster writes the same files; a dry run writes nothing."""
    save_mixed(tmp_path / "run")
    address = processes.scheduler.address
    dry = document("reshard", tmp_path / "run", "--ps", "5", "--dry-run", "--cluster", address)
    assert dry["to_ps"] == 5
    check_cluster(dry["cluster"], processes)
    assert document("reshard", tmp_path / "run", "--ps", "5", "--dry-run")["cluster"] is None
    shown = edl("reshard", tmp_path / "run", "--ps", "5", "--dry-run", "--cluster", address).stdout
    assert "2 workers of the cluster (0, 1) with batches of" in " ".join(shown.split())
    for name, more in (("here", []), ("there", ["--cluster", address])):
        document("reshard", tmp_path / "run", "--ps", "5", "--output", tmp_path / name, *more)
    assert shards_of(tmp_path / "there") == shards_of(tmp_path / "here")


def test_reshard_to_a_bucket(tmp_path: Path, processes: Any) -> None:
    """What workers cannot write together has the code of what is not supported, with what to do."""
    save_small(tmp_path, 7)
    done = edl("reshard", tmp_path, "--ps", "3", "--output", "memory://x", "--cluster", processes.scheduler.address)
    assert done.returncode == 15
    assert "without --cluster, this machine writes there" in done.stderr


def test_copy(tmp_path: Path, processes: Any) -> None:
    """A copy on a cluster has the same document but for times; a dry run names the workers, and writes nothing."""
    save_mixed(tmp_path / "run")
    there = ["--cluster", processes.scheduler.address]
    shown = edl("copy", tmp_path / "run", tmp_path / "out", "--dry-run", *there).stdout
    assert "by 2 workers of the cluster (0, 1). Nothing was written." in " ".join(shown.split())
    assert not (tmp_path / "out").exists()
    check_cluster(document("copy", tmp_path / "run", tmp_path / "out", "--dry-run", *there)["cluster"], processes)
    done = document("copy", tmp_path / "run", tmp_path / "out", *there)
    assert done["bytes_copied"] == sum(map(len, shards_of(tmp_path / "run").values()))
    assert shards_of(tmp_path / "out") == shards_of(tmp_path / "run")
    refused = edl("copy", tmp_path / "run", "memory://x", "--dry-run", "--cluster", "local:1")
    assert refused.returncode == 15


def test_export(tmp_path: Path, processes: Any) -> None:
    """An export on a cluster has the same document but for times and files, of which it has several; csv has one."""
    save_mixed(tmp_path / "run")
    there = ["--cluster", processes.scheduler.address]
    documents = []
    for name, more in (("here", []), ("there", there)):
        (tmp_path / name).mkdir()
        documents.append(document("export", tmp_path / "run@7", tmp_path / name / "m.safetensors", *more))
    for each, name in zip(documents, ("here", "there"), strict=True):
        assert each.pop("seconds") >= 0
        assert each.pop("output") == str(tmp_path / name / "m.safetensors")
        files = each.pop("files")
        assert all(file["size_bytes"] == Path(file["path"]).stat().st_size > 0 for file in files)
        assert each.pop("size_bytes") == each.pop("bytes_written") == sum(file["size_bytes"] for file in files)
        assert each.pop("bytes_read") > 0  # several files have several headers, and tasks read their own ids
        assert each.pop("peak_memory_bytes") > 0
    assert documents[0] == documents[1]
    assert (tmp_path / "here/m.safetensors").is_file()
    assert (tmp_path / "there/m.safetensors/model.safetensors.index.json").is_file()
    refused = edl("export", tmp_path / "run@7", tmp_path / "t.csv", "--table", "wide", *there)
    assert refused.returncode == 15
    assert "a cluster writes dcp, dynamicemb, parquet, safetensors, tfra, torch-checkpointing" in refused.stderr
    assert not (tmp_path / "t.csv").exists()


def test_import(tmp_path: Path, processes: Any) -> None:
    """An import on a cluster writes the same shards; what must be unpacked is for one machine."""
    save_mixed(tmp_path / "run")
    document("export", tmp_path / "run@7", tmp_path / "m.safetensors")
    there = ["--cluster", processes.scheduler.address]
    for name, more in (("here", []), ("there", there)):
        done = document("import", tmp_path / "m.safetensors", f"{tmp_path / name}@5", "--ps", "4", *more)
        assert done["to_ps"] == 4
    assert shards_of(tmp_path / "there") == shards_of(tmp_path / "here")
    np.savez_compressed(tmp_path / "m.npz", a=np.zeros(3))
    refused = edl("import", tmp_path / "m.npz", f"{tmp_path / 'no'}@5", "--ps", "4", *there)
    assert refused.returncode == 15
    assert "without --cluster, this machine unpacks them" in refused.stderr
    assert not (tmp_path / "no").exists()
