"""`edl-ckpt export`: writes a version in a format that other tools read."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options.arguments import looks_like_ref, pair_of
from edl_ckpt.cli.options.cluster import Cluster, working
from edl_ckpt.cli.options.common import DryRun, argument, flag, option
from edl_ckpt.cli.options.references import resolve_ref
from edl_ckpt.cli.options.resuming import resumable
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_size
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import counted

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.operations.export import ExportResult
    from edl_ckpt.core.storage.location import Location

_FORMATS = (
    "checkpoint, safetensors, npz, npy, parquet, torch, tensorflow, dcp, tfra, dynamicemb, torch-checkpointing; for "
    "one table csv, jsonl, word2vec, projector. Default: by OUTPUT's name."
)


def _again(goal: Location) -> str:
    """Return how to go on after a failure: a file is whole or not there, and what went into a stream is lost."""
    from edl_ckpt.core.storage.streams import is_stream

    if goal.local_path is not None and is_stream(goal.local_path):
        return f"what {escaped(goal.url)} got is not whole: run the same export again"
    return "nothing was left behind: run the same export again"


@declared(
    "export run@100 model.safetensors --dry-run", "export run - --format csv --table user_embedding", exits=WRITES
)
def export_command(
    out: Output,
    words: Annotated[
        list[str], argument("[REF] OUTPUT", "The version, and the file or directory to write; - is stdout.")
    ],
    kind: Annotated[str | None, option("F", _FORMATS, "--format")] = None,
    table: Annotated[list[str] | None, option("GLOB", "Only tables with such names; may be repeated.")] = None,
    variable: Annotated[list[str] | None, option("GLOB", "Only variables with such names; may be repeated.")] = None,
    dtype: Annotated[str | None, option("DTYPE", "Convert floats to float16, bfloat16 or float32.")] = None,
    quantize: Annotated[
        str | None, option("int8-fbgemm|int8-f16|int4-fbgemm", "Store rows in 8 or 4 bits, each with its scale.")
    ] = None,
    dense_rows: Annotated[str | None, option("N|auto", "Write tables as matrices of N rows, id i in row i.")] = None,
    remap: Annotated[
        bool,
        flag("Write tables as matrices of their rows, and the ids.", "--remap"),
    ] = False,
    fill: Annotated[str, option("zeros|initializer[:SEED]", "For rows without an id.")] = "zeros",
    order: Annotated[str, option("id|stored", "Order of rows; stored is faster.")] = "id",
    limit: Annotated[int | None, option("N", "Write at most N rows of a text format.", least=0)] = None,
    max_shard_size: Annotated[str | None, option("SIZE", "safetensors: files of at most SIZE, and an index.")] = None,
    ps: Annotated[
        int | None,
        option("N", "Ranks, or parts, of a checkpoint of another system.", "--ranks", "--ps", least=1, most=65535),
    ] = None,
    names: Annotated[str | None, option("FILE", "Names, in TOML: see --map-template.", "--map")] = None,
    map_template: Annotated[bool, flag("Write a template for --map to OUTPUT.", "--map-template")] = False,
    rename: Annotated[list[str] | None, option("OLD=NEW", "Rename; * stands for any text; may be repeated.")] = None,
    digests: Annotated[str | None, option("FILE", "Write the digest of each name of the version to FILE.")] = None,
    dry_run: DryRun = False,
    cluster: Cluster = None,
    force: Annotated[bool, flag("Replace an existing OUTPUT.", "--force")] = False,
    partial: Annotated[bool, flag("Export the readable part of a damaged version.", "--partial")] = False,
    ignore_seal: Annotated[bool, flag("Proceed despite a seal that does not match.", "--ignore-seal")] = False,
) -> None:
    """Write a version in a format other tools read.

    The command needs little memory, whatever the size of the version. A pipe or a device is written, never replaced. If
    OUTPUT is stdout, the report goes to stderr.
    """
    import_numpy()
    from edl_ckpt.cli.render import exports
    from edl_ckpt.core.converting.name_map import read_map
    from edl_ckpt.core.operations.export import requested, run_export, write_map
    from edl_ckpt.core.operations.export.interface import ExportRequest, Selection
    from edl_ckpt.core.proof.digests import save_digests
    from edl_ckpt.core.storage.streams import is_stream

    if map_template and (dry_run or table or variable or digests):
        raise UsageError("--map-template cannot be used with --dry-run, --table, --variable or --digests")
    version, goal = _ends(words, out)
    if digests:
        _check_digests(digests, goal)
    out.streams = goal.local_path is not None and is_stream(goal.local_path)
    tables = tuple(table or ())
    variables = tuple(variable or ())
    rows = _rows(dense_rows)
    if map_template:
        _show(out, write_map(version, goal, force=force))
        return
    request = ExportRequest(
        version,
        goal,
        Selection(tables, variables, dtype, rows, *_fill(fill), order, quantize, remap),
        limit=limit,
        max_shard_bytes=parse_size(max_shard_size) if max_shard_size else None,
        reporter=out,
        use_seal=not ignore_seal,
        force=force,
        ranks=ps,
        names=read_map(names) if names else None,
        rename=tuple(pair_of(word, "--rename", "OLD=NEW") for word in rename or ()),
        partial=partial,
        digests=bool(digests),
    )
    with working(out, cluster, None, target=goal) as work, resumable(out, _again(goal)):
        if dry_run:
            plan = requested(request, kind, work["executor"]).plan()
            out.show(lambda: exports.planned_document(plan, work), exports.planned_human(plan, work))
            return
        result = run_export(request, kind, work["executor"])
    if digests and result.content is not None:
        save_digests(digests, result.content)
    _show(out, result, dtype)


def _show(out: Output, result: ExportResult, dtype: str | None = None) -> None:
    """Print the report, on stderr where stdout has the export, and a warning of casts to `dtype` that overflowed."""
    from edl_ckpt.cli.render import exports
    from edl_ckpt.core.storage.streams import descriptor_of

    show = out.show_aside if descriptor_of(result.output) == 1 else out.show
    show(lambda: exports.document(result), exports.human(result))
    if result.overflowed:
        out.warn(f"{counted(result.overflowed, 'value')} became infinite: too large for {dtype}")


def _fill(word: str) -> tuple[str, int]:
    """Return the content of rows without an id, and the seed that `initializer` draws it with."""
    name, colon, seed = word.partition(":")
    if colon and not (name == "initializer" and seed.isascii() and seed.isdigit()):
        raise UsageError(f"--fill expects zeros, initializer or initializer:SEED, got {word!r}")
    return name, int(seed or 0)


def _check_digests(file: str, goal: Location) -> None:
    """Raise UsageError unless a file of digests can be written once the export is in place."""
    from edl_ckpt.core.storage.user_files import check_target, is_directory

    check_target(file)
    output = None if goal.local_path is None else os.path.realpath(goal.local_path)
    folder = os.path.dirname(os.path.realpath(file))
    if output is not None and os.path.realpath(file) == output:
        raise UsageError("--digests and OUTPUT name one file", path=file)
    if is_directory(file) or not (is_directory(folder) or folder == output):
        raise UsageError("--digests expects a file in a directory that exists", path=file)


def _rows(word: str | None) -> int | str | None:
    if word is None or word == "auto":
        return word
    if not (word.isascii() and word.isdigit()):
        raise UsageError(f"--dense-rows expects a number or auto, got {word!r}")
    return int(word)


def _ends(words: list[str], out: Output) -> tuple[Version, Location]:
    """Return the version, and what to write, - for stdout; UsageError for a stdout that the caller has closed."""
    from edl_ckpt.core.storage.location import Location
    from edl_ckpt.core.storage.streams import STDOUT

    if len(words) == 1 and looks_like_ref(words[0], out) and "@" in words[0]:
        raise UsageError("OUTPUT is missing, the file or directory to write", hint="expected [REF] OUTPUT")
    if len(words) > 2:
        raise UsageError("expected [REF] OUTPUT")
    version = resolve_ref(words[0] if len(words) == 2 else None, out)
    if words[-1] != "-":
        return version, out.location(words[-1])
    if getattr(sys.stdout, "absent", False):
        raise UsageError("stdout is closed", hint="name a file as OUTPUT, or open stdout")
    return version, Location(STDOUT)
