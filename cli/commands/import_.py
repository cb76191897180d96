"""`edl-ckpt import`: makes a version from arrays of other tools, or from another checkpoint."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, TypedDict

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.commands.writing import show_shards
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options.cluster import Cluster, working
from edl_ckpt.cli.options.common import DryRun, ForceSeal, Layout, LockWait, argument, asked_layout, locking, option
from edl_ckpt.cli.options.references import parsed_ref
from edl_ckpt.cli.options.resuming import half_done, resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.cluster.executor import ClusterExecutor


class _How(TypedDict):
    """The arguments of an import of arrays."""

    layout: LayoutName | None
    force: bool
    executor: ClusterExecutor | None


@declared(
    "import model.safetensors run@500 --ranks 4",
    "import arrays.npz run@500 --ranks 4 --map m.toml",
    exits=WRITES,
)
def import_command(
    out: Output,
    source: Annotated[
        str, argument("INPUT", "A file, a directory of .npy or Parquet files, or a checkpoint of any system.")
    ],
    target: Annotated[str, argument("LOCATION@VERSION", "The version to make; it must not exist.")],
    ps: Annotated[
        int, option("N", "The number of ranks, or parameter servers.", "--ranks", "--ps", least=1, most=65535)
    ],
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
    ids, and shows the shards that would be written. A killed import of large files resumes when it is run again.
    """
    import_numpy()
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.base.freed_memory import keep_freed_memory
    from edl_ckpt.core.operations import importing

    keep_freed_memory()
    ref, place = parsed_ref(target, out), out.location(source)
    number = ref.version
    if not isinstance(number, int):
        raise UsageError(f"{target!r}: expected LOCATION@VERSION, where VERSION is a number")
    checkpoint = importing.as_checkpoint(place, reporter=out)
    told = importing.read_map(names) if names else importing.NameMap()
    tables = {**told.tables, **importing.tables_of(table or ())}
    mapped = importing.NameMap(told.rename, tables, id_column, vector_column, key)
    if checkpoint is not None:
        if key or id_column or vector_column:
            raise UsageError(
                "--key, --id-column and --vector-column are for files, not for a checkpoint",
                hint="name its tables and variables with --map and --table",
            )
        show_shards(
            out,
            "import",
            checkpoint,
            ps,
            output=ref.location,
            number=number,
            layout=layout,
            names=mapped,
            cluster=cluster,
            dry_run=dry_run,
            force=force,
            lock_wait=lock_wait,
        )
        return
    chosen = asked_layout(out, layout, ref.location)
    with working(out, cluster, None, target=ref.location) as work, resumable(out, partial(half_done, ref.location)):
        how: _How = {"layout": chosen, "force": force, "executor": work["executor"]}
        if dry_run:
            made, settings = importing.plan_arrays(place, ref.location, number, ps, names=mapped, reporter=out, **how)
            out.warn(*made.warnings, *settings.warnings)
            planned = written.planned_document("import", made, settings, work)
            out.show(lambda: planned, written.planned_human(made, settings, work))
            return
        waiting = locking(out, lock_wait)
        result = importing.import_arrays(place, ref.location, number, ps, names=mapped, **how, **waiting)
    out.show(lambda: written.written_document("import", result), written.written_human(result))
