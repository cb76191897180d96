"""Before any work: an address, an executor, and workers that can do the work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from certificates import make_certificate
from checkpoints import only, save_small
from cluster_tasks import exchange, not_mounted, without_kernel
from edl_ckpt.core import NotFoundError, UnavailableError, UnsupportedError, UsageError, verify_version
from edl_ckpt.core.base.progress import SILENT, Progress
from edl_ckpt.core.cluster import address as addresses
from edl_ckpt.core.cluster import messages, worker
from edl_ckpt.core.cluster.address import cluster_at, connected
from edl_ckpt.core.cluster.executor import ClusterExecutor


@contextmanager
def changed(client: Any, name: str, value: Any) -> Iterator[str]:
    """Let a name in the first worker's module have another value; yield the address of that worker."""
    address = min(client.scheduler_info(n_workers=-1)["workers"])
    old = client.run(exchange, name, value, workers=[address])[address]
    try:
        yield address
    finally:
        client.run(exchange, name, old, workers=[address])


def test_another_version(tmp_path: Path, processes: Any) -> None:
    """A worker with another edl-ckpt is named, before any work."""
    save_small(tmp_path, 7)
    with changed(processes, "VERSION", "0.0.9") as address, pytest.raises(UnsupportedError) as caught:
        verify_version(only(tmp_path), executor=processes)
    assert address in caught.value.message
    assert "has edl-ckpt 0.0.9" in caught.value.message


def test_a_late_worker_of_another_version(tmp_path: Path, processes: Any) -> None:
    """A worker that came after the others were asked refuses its first task."""
    save_small(tmp_path, 7)
    executor = ClusterExecutor(processes)
    assert verify_version(only(tmp_path), executor=executor).ok
    executor.client.run(exchange, "VERSION", "0.0.9")
    try:
        with pytest.raises(UnsupportedError, match=r"which came during the work, has edl-ckpt 0\.0\.9"):
            verify_version(only(tmp_path), executor=executor)
    finally:
        executor.client.run(exchange, "VERSION", messages.VERSION)


def test_another_volume(tmp_path: Path, processes: Any) -> None:
    """A worker that does not see the location is named, with what to do."""
    save_small(tmp_path, 7)
    with changed(processes, "open_store", not_mounted) as address, pytest.raises(UnsupportedError) as caught:
        verify_version(only(tmp_path), executor=processes)
    assert address in caught.value.message
    assert caught.value.hint == "mount the volume with the checkpoints at the same path on every worker"


def test_no_kernel(tmp_path: Path, processes: Any) -> None:
    """A worker without the compiled kernel is slow, and right: that is a warning."""
    if not worker.look().has_kernel:
        pytest.skip("no kernel here either")
    save_small(tmp_path, 7)
    progress = Progress()
    processes.run(without_kernel, True)
    try:
        assert verify_version(only(tmp_path), level="deep", executor=processes, reporter=progress).ok
    finally:
        processes.run(without_kernel, False)
    assert any("no compiled kernel there" in text for text in progress.warnings)


@pytest.mark.parametrize(
    "address",
    [
        *("local:0", "local:many", "local:", "scheduler", "local:9999", "", "http://host:80", "tcp://host"),
        *("tcp://:8786", "tls://", "inproc://x"),
    ],
)
def test_no_address(address: str) -> None:
    """What is no address of a cluster is a wrong value, and the message says what is one."""
    with pytest.raises(UsageError, match="expected tcp://HOST:PORT"), connected(address, SILENT):
        pass


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"address": 3}', "\0"])
def test_no_scheduler_file(tmp_path: Path, text: str) -> None:
    """A file that no scheduler wrote is a wrong value."""
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageError, match="not a file that"), connected(str(tmp_path / "file"), SILENT):
        pass


def test_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """TLS without certificates says where they come from."""
    with pytest.raises(UnavailableError) as caught, connected("tls://127.0.0.1:9", SILENT):
        pass
    assert caught.value.hint is not None
    assert "DASK_DISTRIBUTED__COMM__TLS__CA_FILE" in caught.value.hint


@pytest.fixture
def silent() -> Iterator[str]:
    """Return a host and a port that is taken, and at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["tls", "tcp"])
def test_nothing_is_left_of_a_failed_connection(protocol: str, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that could not connect is closed at once: the garbage collector would do it in the wrong thread."""
    monkeypatch.setattr(addresses, "CONNECT_SECONDS", 0.2)
    before = {*threading.enumerate()}
    with pytest.raises(UnavailableError) as caught, connected(f"{protocol}://{silent}", SILENT):
        pass
    left = {*threading.enumerate()} - before  # other clusters of this process may begin threads of their own meanwhile
    assert not [thread for thread in left if thread.name == "IO loop"], caught  # which keeps the frames, and the client


def test_nobody_there(tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler file that is not there is not found; a port where nobody listens is unavailable."""
    with pytest.raises(NotFoundError), connected(str(tmp_path / "scheduler.json"), SILENT):
        pass
    monkeypatch.setattr(addresses, "CONNECT_SECONDS", 0.2)
    with pytest.raises(UnavailableError, match="no scheduler answers"), cluster_at(f"tcp://{silent}"):
        pass


def test_no_executor(tmp_path: Path) -> None:
    """What is neither a client nor an executor is refused."""
    save_small(tmp_path, 7)
    with pytest.raises(UsageError, match=r"expected a distributed\.Client or an executor"):
        verify_version(only(tmp_path), executor="tcp://127.0.0.1:8786")


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the certificates of Dask's configuration a cluster with TLS works; without them it does not answer."""
    dask, distributed = (pytest.importorskip(name) for name in ("dask", "distributed"))
    save_small(tmp_path / "run", 7)
    made = make_certificate(tmp_path)
    sides = {f"tls_{side}_{part}": made for side in ("client", "worker", "scheduler") for part in ("cert", "key")}
    security = distributed.Security(tls_ca_file=made, require_encryption=True, **sides)
    options = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": "127.0.0.1:0"}
    with distributed.LocalCluster(protocol="tls", host="127.0.0.1", security=security, **options) as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tls://")
        monkeypatch.setattr(addresses, "CONNECT_SECONDS", 0.5)
        with pytest.raises(UnavailableError), connected(address, SILENT):
            pass
        monkeypatch.setattr(addresses, "CONNECT_SECONDS", 60)
        own = {f"distributed.comm.tls.{key}": made for key in ("ca-file", "client.cert", "client.key")}
        with dask.config.set(own), cluster_at(address) as executor:
            assert verify_version(only(tmp_path / "run"), level="deep", executor=executor).ok


@pytest.mark.parametrize("here", [True, False])
def test_no_tls_elsewhere(processes: Any, monkeypatch: pytest.MonkeyPatch, here: bool) -> None:
    """A scheduler of another machine without TLS is one line of warning; one of this machine is none."""
    progress = Progress()
    monkeypatch.setattr(addresses, "is_this_machine", lambda host: here)
    with connected(processes.scheduler.address, progress):
        pass
    told = "the scheduler at 127.0.0.1 has no TLS: anyone who reaches it can run programs on its workers"
    assert progress.warnings == ([] if here else [told])


def test_this_machine() -> None:
    """Only a scheduler elsewhere needs TLS."""
    assert addresses.is_this_machine("127.0.0.1")
    assert addresses.is_this_machine("localhost")
    assert not addresses.is_this_machine("192.0.2.1")


@pytest.mark.parametrize(("total_bytes", "task_mib"), [(4 << 30, 8), (1 << 40, 85), (10 << 40, 640)])
def test_the_size_of_a_task(monkeypatch: pytest.MonkeyPatch, total_bytes: int, task_mib: int) -> None:
    """There are enough tasks for every thread of a large cluster, and few enough for its scheduler."""
    monkeypatch.setattr(ClusterExecutor, "all_threads", 1024)
    assert ClusterExecutor(None).task_bytes(total_bytes) >> 20 == task_mib
