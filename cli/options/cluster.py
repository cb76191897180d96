"""`--cluster`: the executor of the commands that can do their work on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypedDict

from edl_ckpt.cli.options.common import option
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.cluster.executor import ClusterExecutor
    from edl_ckpt.core.storage.location import Location

Cluster = Annotated[str | None, option("ADDRESS", "Use a Dask cluster: tcp://HOST:PORT, FILE or local:N.")]


class Working(TypedDict):
    """The arguments of every operation that threads or a cluster can do."""

    workers: int | None
    executor: ClusterExecutor | None


@contextmanager
def working(
    out: Output,
    cluster: str | None,
    workers: int | None,
    *,
    target: Location | None = None,
    size_bytes: int | None = None,
) -> Iterator[Working]:
    """Yield who does the work: the cluster at an address, or without one threads of this process.

    Raises UnsupportedError for a `target` that the workers of a cluster cannot write together; with `size_bytes`, which
    will be written there, also for a worker that cannot write them.
    """
    if cluster is None:
        yield {"workers": workers, "executor": None}
        return
    if workers is not None and "workers" not in out.defaulted:
        raise UsageError("--workers cannot be used with --cluster", hint="a cluster has the workers that it has")
    from edl_ckpt.core.cluster.address import cluster_at
    from edl_ckpt.core.cluster.choice import check_shared, check_target
    from edl_ckpt.core.cluster.preflight import ask_workers

    if target is not None:
        check_shared(target)
    with cluster_at(cluster, reporter=out) as executor:
        ask_workers(executor, out)
        if executor.dashboard:
            out.say(f"dashboard: {escaped(executor.dashboard)}")
        out.doing = executor.doing
        if target is not None and size_bytes is not None:
            check_target(executor, target, size_bytes, reporter=out)
        yield {"workers": None, "executor": executor}
