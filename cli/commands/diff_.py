"""`edl-ckpt diff`: the changes from one version to another."""

from __future__ import annotations

from typing import Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.manual.marks import READS, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import references
from edl_ckpt.cli.options.cluster import Cluster, working
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.errors import UsageError


@declared(
    "diff run@100 @200",
    "diff run@100 run@200 --top 10",
    exits=READS,
    c0="the content is equal",
    c3="the content differs",
    rows=True,
)
def diff_command(
    out: Output,
    a: Annotated[str, o.argument("REF", "The old version.")],
    b: Annotated[str, o.argument("REF", "The new version.")],
    tolerance: Annotated[float, o.option("X", "Treat elements that differ by at most X as equal.")] = 0.0,
    top: Annotated[int, o.option("K", "Name the K rows of each table that changed most.", least=0)] = 0,
    rows: Annotated[
        bool,
        o.flag("Name every row that differs; needs --json, --jsonl or --csv."),
        o.CommandLineOnly(),  # EDL_CKPT_ROWS is the number of rows of `head`, `sample` and `ids`
    ] = False,
    names: Annotated[
        str | None, o.option("FILE", "Pairs of names, in TOML: those of the new version by those of the old.", "--map")
    ] = None,
    workers: o.Workers = None,
    cluster: Cluster = None,
    every: o.Every = False,
) -> None:
    """Compare the content of two versions.

    The versions may differ in shard count, generation and system; --map pairs names that differ. A second reference
    that begins with @ is in the location of the first. Exit code 3 means that their content differs.
    """
    import_numpy()
    from edl_ckpt.cli.render import diff as render
    from edl_ckpt.core.operations.diff import diff_versions, read_pairs

    if not tolerance >= 0:
        raise UsageError(f"tolerance must be 0 or more, got {tolerance}")
    if rows and not (out.json or out.jsonl or out.csv):
        raise UsageError("--rows can only be used with --json, --jsonl or --csv")
    if b.startswith("@"):  # in the location of the first
        b = f"{a.rpartition('@')[0] if '@' in a.rpartition('/')[2] else a}{b}"
    old, new = references.looked_at_each((a, b), out)
    pairs = read_pairs(names) if names else None
    with working(out, cluster, workers) as work:
        result = diff_versions(old, new, tolerance=tolerance, top=top, rows=rows, names=pairs, **work, reporter=out)
    out.show(
        lambda: render.document(result, rows=rows),
        render.human(result, every=out.shows_all(every)),
        lambda: render.changed_rows(result) if rows else render.rows(result),
    )
    out.conclude(ok=result.equal)
