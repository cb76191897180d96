"""The figures of a version of 4,000 objects: the share of what the server gives that each command reaches.

The server is to give 10 Gbit/s in total, 1,250 MB/s. A share is of the bytes that it has sent or taken, in the time of
the whole process with its start-up. What reads names and headers alone is compared by its time and its requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from disk_figures import Bench, seal
from measure import EDL, Figure, Run, remove, run
from s3_figures import counted
from s3_server import Server
from shapes import Shape, make, size_of

GIVEN: Final = 1.25e9
"""The bytes a second that the server gives."""


def object_figures(bench: Bench) -> Iterator[Figure]:
    """Look at, check, copy, export and compare a version of 4,000 shards on S3, beside obstore."""
    server = Server.named()
    if server is None:
        return
    shards, work = max(int(4000 * bench.scale), 4), bench.work
    source = make(work / "source", Shape(shards, ((bench.rows(16_000_000) + 10 * shards, 16),), 40))
    seal(bench, source)
    down, here, array = work / "down", work / "here", work / "out.safetensors"
    for prefix in ("objects", "raw-objects"):
        run(server.obstore("put", prefix, source), work)
    away = server.url("objects")
    listing, get = server.obstore("list", "objects"), server.obstore("get", "raw-objects", down)
    clean = remove(here, array, down)

    def before() -> None:
        """Let each run write new files."""
        clean()
        down.mkdir()

    size = f"{shards:,} objects of {size_of(source) / shards / 1e6:.2g} MB"
    for words, reference in (
        (["list", away], listing),
        (["inspect", away], listing),
        (["verify", away, "--quick"], listing),
        (["prune", away, "--keep", "1", "--dry-run"], listing),
        (["diff", away, away], get),
        (["verify", away, "--deep"], get),
        (["copy", away, str(here)], get),
        (["export", away, str(array)], get),
    ):
        name = " ".join(word for word in words if word.startswith("--") or word in {words[0], "1"})
        against = "obstore list" if reference is listing else "obstore get"
        figure = Figure(f"{name} of {size}", against)
        yield shared(counted(server, bench, figure, [*EDL, *words, "--quiet"], reference, before, warm=False))
    server.forget("objects")
    server.forget("raw-objects")
    clean()
    remove(source)()


def shared(figure: Figure) -> Figure:
    """Return a figure that names the share of what the server gives, of both; a share of little is not named."""
    moved = figure.traffic.get("bytes_out", 0) + figure.traffic.get("bytes_in", 0)
    if moved / GIVEN < 0.1:
        return figure
    ours, theirs = (_share(moved, runs) for runs in (figure.ours, figure.reference))
    figure.name += f": {ours:.0%} of 10 Gbit/s, obstore {theirs:.0%}"
    return figure


def _share(moved: int, runs: list[Run]) -> float:
    return moved / GIVEN / sorted(run.wall for run in runs)[len(runs) // 2]
