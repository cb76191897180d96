"""`edl-ckpt import`: makes a version from arrays of other tools, or from another checkpoint."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from edl_ckpt.cli.commands.edit_ import show_converted
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options.cluster import Cluster, working
from edl_ckpt.cli.options.common import DryRun, ForceSeal, Layout, LockWait, argument, asked_layout, option, parsed_ref
from edl_ckpt.cli.options.hints import half_done, resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.text import parse_duration
from edl_ckpt.core.base.errors import UsageError


@declared(
    "import model.safetensors run@500 --ps 4",
    "import arrays.npz run@500 --ps 4 --map names.toml --dry-run",
    exits=WRITES,
)
def import_command(
    out: Output,
    source: Annotated[
        str, argument("INPUT", "A file, a directory of .npy or Parquet files, or a checkpoint of any system.")
    ],
    target: Annotated[str, argument("LOCATION@VERSION", "The version to make; it must not exist.")],
    ps: Annotated[int, option("N", "The number of parameter servers.", "--ps", least=1, most=65535)],
    names: Annotated[
        str | None, option("FILE", "A TOML file: [rename] old = 'new'; [tables.NAME] ids, vectors.", "--map")
    ] = None,
    table: Annotated[
        list[str] | None, option("NAME=IDS,VECTORS|NAME=MATRIX", "Make a table; repeatable. A matrix has ids 0 to n-1.")
    ] = None,
    id_column: Annotated[str | None, option("NAME", "The column of ids. Default: by its name.")] = None,
    vector_column: Annotated[str | None, option("NAME|GLOB", "The column of vectors, or one for each element.")] = None,
    key: Annotated[str | None, option("KEY", "The dict of tensors in a .pt, such as model or a.b.")] = None,
    layout: Layout = None,
    dry_run: DryRun = False,
    cluster: Cluster = None,
    force: ForceSeal = False,
    lock_wait: LockWait = "10s",
) -> None:
    """Make a version from arrays of other tools.

    INPUT is safetensors, .npz, .npy, PyTorch (.pt), Parquet, CSV, JSON lines (.jsonl), word2vec (.vec), or a checkpoint
    of TensorFlow or any other system.

    Each row goes to the parameter server that ElasticDL expects. The fingerprint proves the result. --dry-run reads the
    ids, and shows the shards that would be written.
    """
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.base.memory import keep_freed_memory
    from edl_ckpt.core.operations import importing
    from edl_ckpt.core.sources.systems import ELASTICDL

    keep_freed_memory()
    ref, place = parsed_ref(target, out), out.location(source)
    if not isinstance(ref.version, int):
        raise UsageError(f"{target!r}: expected LOCATION@VERSION, where VERSION is a number")
    wait = parse_duration(lock_wait)
    acting: dict[str, Any] = {"layout": asked_layout(out, layout, ref.location), "reporter": out}
    checkpoint = importing.as_checkpoint(place, reporter=out)
    told = importing.read_map(names) if names else importing.NameMap()
    tables = {**told.tables, **importing.tables_of(table or ())}
    mapped = importing.NameMap(told.rename, tables, id_column, vector_column, key)
    if checkpoint is not None and mapped != importing.NameMap():
        if cluster or key or id_column or vector_column:
            raise UsageError("a checkpoint goes with --map and --table, and then without --cluster")
        acting |= {"dry_run": dry_run, "force": force, "wait_seconds": wait, "names": mapped, "system": ELASTICDL}
        show_converted(out, "import", checkpoint, ps, output=ref.location, number=ref.version, **acting)
        return
    kind = "checkpoint" if checkpoint else "arrays"
    acting |= {"force": force} if checkpoint else {"force": force, "names": mapped}
    where = checkpoint or place, ref.location, ref.version, ps
    with working(out, cluster, None, target=ref.location) as work, resumable(out, partial(half_done, ref.location)):
        acting["executor"] = work["executor"]
        if dry_run:
            made, settings = getattr(importing, f"plan_{kind}")(*where, **acting)
            out.warn(*made.warnings, *settings.warnings)
            planned = written.planned_document("import", made, settings, work)
            out.show(lambda: planned, written.plan_import_human(made, settings, work))
            return
        result = getattr(importing, f"import_{kind}")(*where, wait_seconds=wait, **acting)
    out.show(lambda: written.written_document("import", result), written.import_human(result))
