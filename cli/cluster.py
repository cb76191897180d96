"""`--cluster`: the executor of the commands that can do their work on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from edl_ckpt.cli.output import Output
from edl_ckpt.core.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.cluster.executor import ClusterExecutor
    from edl_ckpt.core.storage.location import Location

Cluster = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Work on a Dask cluster: tcp://HOST:PORT, its scheduler file, or local:N processes."
    ),
]


class Working(TypedDict):
    """The arguments of every operation that threads or a cluster can do."""

    workers: int | None
    executor: ClusterExecutor | None


@contextmanager
def working(
    out: Output, cluster: str | None, workers: int | None, *, target: Location | None = None
) -> Iterator[Working]:
    """Yield who does the work: the cluster at an address, or without one threads of this process.

    Raises UnsupportedError for a `target` that the workers of a cluster cannot write together.
    """
    if cluster is None:
        yield {"workers": workers, "executor": None}
        return
    if workers is not None and "workers" not in out.defaulted:
        raise UsageError("--workers cannot be used with --cluster", hint="a cluster has the workers that it has")
    from edl_ckpt.core.cluster.choice import check_shared, cluster_at

    if target is not None:
        check_shared(target)
    with cluster_at(cluster, reporter=out.reporter()) as executor:
        if executor.dashboard:
            out.say(f"dashboard: {executor.dashboard}")
        out.doing = executor.doing
        yield {"workers": None, "executor": executor}


def workers_of(work: Working) -> str:
    """Return the workers of a cluster in words; '' for threads."""
    executor = work["executor"]
    return "" if executor is None else executor.named()
