"""The figures on S3: each command beside obstore, which moves the same bytes on the same server without any proof."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from disk_figures import Bench, seal
from measure import EDL, Figure, Target, elsewhere, nothing, remove, run
from s3_server import Server
from shapes import Shape, make, size_of, write_versions

SEAL_BYTES = 188_000


def counted(
    server: Server,
    bench: Bench,
    figure: Figure,
    ours: list[str],
    reference: list[str],
    before: Callable[[], None] = nothing,
    *,
    warm: bool = True,
) -> Figure:
    """Run both commands in turn, and keep what the server counted in the last run of ours."""
    for turn in range(bench.few + warm):
        before()
        server.reset()
        first = run(ours, bench.work)
        figure.traffic = server.counters()
        second = run(reference, bench.work)
        if turn >= warm:
            figure.ours.append(first)
            figure.reference.append(second)
    print(f"{figure.line()}\n  CPU of the reference {figure.median('cpu', reference=True):.2f} s", flush=True)
    return figure


def transfer_figures(bench: Bench) -> Iterator[Figure]:
    """Copy, verify, inspect, reshard and export 8 large shards, and copy, verify and inspect 200 small ones."""
    server = Server.named()
    if server is None:
        return
    work = bench.work
    big = make(work / "big", Shape(8, ((bench.rows(16_000_000), 16),), 40, 50))
    small = make(work / "small", Shape(200, ((bench.rows(500_000) + 400, 16),), 40, 50))
    for source, name, most in ((big, "big", Target(1.5)), (small, "small", Target(seconds=2))):
        seal(bench, source)
        shards = 8 if name == "big" else 200
        what = f"{shards} shards, {size_of(source) / 1e6:,.0f} MB"
        yield from both_ways(server, bench, source, name, what, most)
        get = server.obstore("get", f"raw-{name}", work / "down")
        steps = [
            (f"inspect of {what}", ["inspect", server.url(name)], Target(seconds=0.6 if name == "big" else 1.5)),
            (f"verify --deep of {what}", ["verify", server.url(name), "--deep"], Target(1.5)),
        ]
        for title, words, target in steps:
            yield counted(server, bench, Figure(title, "obstore get", target), [*EDL, *words, "--quiet"], get)
        if name == "big":
            yield from rewritten(server, bench, what)
        for prefix in (name, f"raw-{name}", f"raw-{name}-turned"):
            server.forget(prefix)
        remove(source, work / "down")()


def both_ways(server: Server, bench: Bench, source: Path, name: str, what: str, target: Target) -> Iterator[Figure]:
    """Copy up and down, and the same by awscli; the copy stays there, and obstore's beside it."""
    work, away, raw = bench.work, server.url(name), f"raw-{name}"
    here, down, aws = work / "here", work / "down", work / "aws"

    def clean() -> None:
        """Let obstore write new files too: over old ones it takes two thirds of the time."""
        remove(here, down)()
        down.mkdir()

    clean()
    put, get = server.obstore("put", raw, source), server.obstore("get", raw, down)
    up = ["copy", str(source), away, "--quiet"]
    figure = Figure(f"copy of {what}, up", "obstore put", target)
    yield counted(server, bench, figure, [*EDL, *up], put, partial(server.forget, name))
    figure = Figure(f"copy of {what}, down", "obstore get", target)
    yield counted(server, bench, figure, [*EDL, "copy", away, str(here), "--quiet"], get, clean)
    remove(here)()
    for title, ways, reference in (
        ("up", server.awscli(str(source), server.url(f"aws-{name}")), put),
        ("down", server.awscli(server.url(f"aws-{name}"), str(aws)), get),
    ):
        if ways is None:
            print("awscli is left out: it is not installed", file=sys.stderr)
            return
        figure = Figure(
            f"awscli, not edl-ckpt: copy of {what}, {title}", f"obstore {'put' if title == 'up' else 'get'}"
        )
        yield counted(server, bench, figure, ways, reference, remove(aws), warm=False)
    remove(aws)()
    server.forget(f"aws-{name}")


def rewritten(server: Server, bench: Bench, what: str) -> Iterator[Figure]:
    """Reshard from S3 to S3, and export from it and to it."""
    work, source = bench.work, server.url("big")
    turn = server.obstore("turn", "raw-big", work / "down")
    for to_ps, most in ((4, 9), (16, 10), (32, 12)):
        out = f"out-{to_ps}"
        figure = Figure(f"reshard of {what}, 8 -> {to_ps}", "obstore get, put, get", Target(seconds=most))
        ours = [*EDL, "reshard", source, "--ps", str(to_ps), "--output", server.url(out), "--quiet"]
        yield counted(server, bench, figure, ours, turn, partial(server.forget, out), warm=False)
        server.forget(out)
    local, away = work / "m.safetensors", server.url("exported.safetensors")
    figure = Figure(f"export of {what} from S3 to the disk", "obstore get", Target(seconds=10, mib=400))
    ours = [*EDL, "export", source, str(local), "--quiet"]
    get = server.obstore("get", "raw-big", work / "down")
    yield counted(server, bench, figure, ours, get, remove(local), warm=False)
    figure = Figure(f"export of {what} from the disk to S3", "obstore put", Target(seconds=8, mib=400))
    ours = [*EDL, "export", str(work / "big"), away, "--force", "--quiet"]
    put = server.obstore("put", "raw-big", work / "big")
    yield counted(server, bench, figure, ours, put, warm=False)
    remove(local)()
    server.forget("exported.safetensors")


def version_figures(bench: Bench) -> Iterator[Figure]:
    """List a thousand versions of 8 shards with metrics and seals, inspect the latest, and prune all but five."""
    server = Server.named()
    if server is None:
        return
    count = max(int(1000 * bench.scale), 10)
    source = bench.work / "many"
    elsewhere(write_versions, source, count, SEAL_BYTES)
    fill = server.obstore("put", "many", source)
    listing = server.obstore("list", "many")
    what = f"{count:,} x 8 shards with metrics and seals"
    run(fill, bench.work)
    without = Figure(f"list of {what}, without the index of metadata", "obstore list")
    yield counted(server, bench, without, [*EDL, "list", server.url("many"), "--quiet"], listing)
    run([*EDL, "recover", server.url("many"), "--quiet"], bench.work)  # this makes the index whole
    for title, words in (
        (f"list of {what}", ["list", server.url("many")]),
        (f"inspect @latest of {what}", ["inspect", f"{server.url('many')}@latest"]),
    ):
        yield counted(server, bench, Figure(title, "obstore list"), [*EDL, *words, "--quiet"], listing)
    figure = Figure(f"prune of {count - 5:,} of {what}", "obstore list", Target(seconds=5))
    ours = [*EDL, "prune", server.url("many"), "--keep", "5", "--yes", "--quiet"]
    yield counted(server, bench, figure, ours, listing, partial(fill_again, bench, fill), warm=False)
    server.forget("many")
    remove(source)()


def fill_again(bench: Bench, fill: list[str]) -> None:
    """Put back what a prune has removed."""
    run(fill, bench.work)
