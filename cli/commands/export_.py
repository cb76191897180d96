"""`edl-ckpt export`: a version in a format that other tools open."""

from __future__ import annotations

from typing import Annotated

import typer

from edl_ckpt.cli.options import default_location, is_ref, resolve_ref
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_size
from edl_ckpt.core.errors import UsageError

_FORMATS = (
    "checkpoint, safetensors, npz, npy, parquet, torch, tensorflow; of one table csv, jsonl, word2vec, projector."
)


def export_command(
    out: Output,
    words: Annotated[list[str], typer.Argument(metavar="[REF] OUTPUT", help="The version, and where to write.")],
    kind: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="F",
            help="checkpoint safetensors npz npy csv jsonl word2vec projector parquet torch tensorflow.",
        ),
    ] = None,
    table: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Only such tables.")] = None,
    variable: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="Only such dense variables.")] = None,
    dtype: Annotated[
        str | None, typer.Option(metavar="float16|bfloat16|float32", help="Cast floats; overflows are counted.")
    ] = None,
    dense_rows: Annotated[
        str | None, typer.Option(metavar="N|auto", help="A table as a matrix of N rows, row i that of id i.")
    ] = None,
    fill: Annotated[
        str, typer.Option(metavar="zeros|initializer", help="With --dense-rows: what rows never trained are.")
    ] = "zeros",
    seed: Annotated[int, typer.Option(help="With --fill initializer.")] = 0,
    limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="At most so many rows, in formats of rows.")
    ] = None,
    max_shard_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="safetensors: several files above this, and their index.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there.")] = False,
) -> None:
    """Write a version, whole or in part, as safetensors, numpy, text or one merged checkpoint. Memory stays bounded."""
    from edl_ckpt.cli import render_export
    from edl_ckpt.core.operations.export import Selection, export_version

    if len(words) > 2 or (len(words) == 1 and is_ref(words[0]) and "@" in words[0]):
        raise UsageError("expected [REF] OUTPUT")
    version = resolve_ref(words[0] if len(words) == 2 else default_location(), out)
    if dense_rows is not None and dense_rows != "auto" and not (dense_rows.isascii() and dense_rows.isdigit()):
        raise UsageError(f"--dense-rows takes a number or auto, got {dense_rows!r}")
    rows = int(dense_rows) if dense_rows and dense_rows != "auto" else dense_rows
    result = export_version(
        version,
        words[-1],
        format_name=kind,
        selection=Selection(tuple(table or ()), tuple(variable or ()), dtype, rows, fill, seed),
        limit=limit,
        max_shard_bytes=parse_size(max_shard_size) if max_shard_size else None,
        force=force,
        storage_options=out.storage_options,
        progress=out.progress(),
    )
    out.show(lambda: render_export.document(result), lambda: render_export.human(result))
    if result.overflowed:
        out.warn(f"{result.overflowed} values are too large for {dtype} and became infinite")
