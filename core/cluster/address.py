"""The address of a cluster, and a connection to it.

It is that of a scheduler (`tcp://host:8786`, `tls://host:8786`), the path of its scheduler file, or `local:N`: N worker
processes of this machine, which live as long as the connection. TLS is Dask's: certificates come from its own
configuration (`distributed.comm.tls`, or `DASK_DISTRIBUTED__COMM__TLS__...`).
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from edl_ckpt.core.base.errors import NotFoundError, UnavailableError, UnsupportedError, UsageError
from edl_ckpt.core.base.progress import WARNINGS, Reporter
from edl_ckpt.core.base.words import extra_hint
from edl_ckpt.core.cluster.executor import START_WORKERS, ClusterExecutor
from edl_ckpt.core.state.document import MAX_BYTES, parse_document
from edl_ckpt.core.storage.faults import storage_errors

_LOCAL: Final = "local:"
CONNECT_SECONDS: Final = 10
WORKER_SECONDS: Final = 30
_CERTIFICATES: Final = "certificates come from Dask's configuration, as DASK_DISTRIBUTED__COMM__TLS__CA_FILE"
_EXPECTED: Final = "expected tcp://HOST:PORT, tls://HOST:PORT, a scheduler file, or local:N for N processes"


@contextmanager
def cluster_at(address: str, *, reporter: Reporter = WARNINGS) -> Iterator[ClusterExecutor]:
    """Connect to a cluster by its address; errors as `connected`."""
    with connected(address, reporter) as client:
        executor = ClusterExecutor(client)
        services = executor.identity().get("services", {})
        executor.dashboard = client.dashboard_link if "dashboard" in services else ""
        yield executor
        executor.log_slowest()


@contextmanager
def connected(address: str, reporter: Reporter) -> Iterator[Any]:
    """Connect to a cluster; yield a `distributed.Client`, which has a worker at least.

    Raises UsageError for what is no address, NotFoundError for a scheduler file that is not there, UnsupportedError
    without Dask, UnavailableError when no scheduler answers, or has no worker in time. Warns when whoever can reach the
    scheduler could run code on the workers.
    """
    given = _meaning(address)
    distributed = _dask()
    with ExitStack() as stack:
        try:
            if "n_workers" in given:
                with _without_interrupts():
                    local = distributed.LocalCluster(
                        **given,
                        threads_per_worker=1,
                        processes=True,
                        dashboard_address="127.0.0.1:0",
                        host="127.0.0.1",
                    )
                given = {"address": stack.enter_context(local)}
            settings = {"timeout": CONNECT_SECONDS, "set_as_default": False, "name": "edl-ckpt"}
            client = stack.enter_context(_begun(distributed.Client, given | settings))
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError:
            raise UnavailableError("the scheduler has no worker", path=address, hint=START_WORKERS) from None
        except Exception as error:  # noqa: BLE001 - Dask raises what it likes: TypeError without certificates
            first_line = (str(error).splitlines() or [type(error).__name__])[0]
            hint = _CERTIFICATES if address.startswith("tls:") else "start one: dask scheduler"
            raise UnavailableError(f"no scheduler answers ({first_line})", path=address, hint=hint) from None
        where = urlsplit(str(client.scheduler.address))
        if where.scheme == "tcp" and not is_this_machine(where.hostname or ""):
            danger = "anyone who reaches it can run programs on its workers"
            reporter.warn(f"the scheduler at {where.hostname} has no TLS: {danger}")
        yield client


def _begun(kind: Any, settings: dict[str, Any]) -> Any:
    """Return a client; one that cannot connect is closed at once.

    Otherwise the garbage collector closes it, in any thread. In one that a later client has just started, and waits for
    under the lock that closing needs, both would wait for ever.
    """
    client = kind.__new__(kind)
    try:
        client.__init__(**settings)
    except BaseException:
        with suppress(Exception):
            client.close()
            client._loop_runner.stop()  # noqa: SLF001 - the thread of a client that closed itself goes on
        raise
    return client


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Let processes that begin here not see Ctrl-C, which a terminal sends to all: the command ends them itself."""
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # its start, in the thread that starts processes, would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _dask() -> Any:
    """Return the library; it must not print on the stream of a command."""
    quiet = dict.fromkeys(("distributed", "distributed.client", "distributed.gc", "tornado", "asyncio"), "critical")
    try:
        import dask

        dask.config.set({"logging": {**quiet, **dask.config.get("logging", {})}})
        dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 GB"})
        import distributed
    except ImportError:
        raise UnsupportedError("distributed is not installed", hint=extra_hint("dask")) from None
    return distributed


def _meaning(address: str) -> dict[str, Any]:
    """Return the option of Dask that an address is: `n_workers` of a cluster of this machine, or one of its client.

    Raises UsageError for what is no address, and NotFoundError for a scheduler file that is not there.
    """
    fault = UsageError(f"no address of a cluster: {address!r} ({_EXPECTED})")
    if address.startswith(_LOCAL):
        text = address.removeprefix(_LOCAL)
        if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1024):
            raise fault
        return {"n_workers": int(text)}
    if "://" in address:
        where = urlsplit(address)
        if where.scheme not in {"tcp", "tls"} or not where.hostname or not re.search(r":\d+$", where.netloc):
            raise fault
        return {"address": address}
    if not os.path.isfile(address):
        is_file = os.sep in address or address.endswith(".json")
        raise NotFoundError("no such scheduler file", path=address) if is_file else fault
    try:
        with storage_errors(address), open(address, "rb") as file:
            known = parse_document(file.read(MAX_BYTES + 1), address, foreign=True)
    except UsageError:
        known = {}
    if not isinstance(known.get("address"), str):
        raise UsageError("not a file that `dask scheduler --scheduler-file` wrote", path=address)
    return {"scheduler_file": address}


def is_this_machine(host: str) -> bool:
    """Say whether a host is this machine: only its own addresses can be listened at."""
    try:
        for family, kind, protocol, _, where in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(where)
    except OSError:
        return False
    return True
