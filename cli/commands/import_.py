"""`edl-ckpt import`: makes a version from arrays of other tools, or from another checkpoint."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from edl_ckpt.cli.help import examples
from edl_ckpt.cli.options import LockWait, parsed_ref
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_duration
from edl_ckpt.core.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.format.model import Version
    from edl_ckpt.core.operations.reshard.execute import ReshardResult
    from edl_ckpt.core.storage.location import Location


@examples(
    "import model.safetensors run@500 --ps 4",
    "import arrays.npz run@500 --ps 4 --map names.toml",
)
def import_command(
    out: Output,
    source: Annotated[
        str,
        typer.Argument(
            metavar="INPUT", help="A .safetensors or .npz file, a directory of .npy files, or a checkpoint."
        ),
    ],
    target: Annotated[str, typer.Argument(metavar="LOCATION@VERSION", help="The version to make; it must not exist.")],
    ps: Annotated[int, typer.Option("--ps", metavar="N", help="The number of parameter servers.")],
    names: Annotated[
        str | None,
        typer.Option("--map", metavar="FILE", help="A TOML file: [rename] old = 'new'; [tables.NAME] ids, vectors."),
    ] = None,
    layout: Annotated[str, typer.Option(metavar="design|elasticdl", help="Names of directories and files.")] = "design",
    lock_wait: LockWait = "10s",
) -> None:
    """Make a version from arrays of other tools.

    Each row goes to the parameter server that ElasticDL expects. The fingerprint proves the result.
    """
    from edl_ckpt.cli import render_import
    from edl_ckpt.core.operations.importing import import_arrays, read_map

    ref = parsed_ref(target, out)
    if not isinstance(ref.version, int):
        raise UsageError(f"{target!r}: expected LOCATION@VERSION, where VERSION is a number")
    wait = parse_duration(lock_wait)
    checkpoint = _checkpoint(source, ref.version, out)
    if checkpoint is not None:
        if names:
            raise UsageError("--map cannot be used with a checkpoint, which has names of its own")
        done = _import_checkpoint(checkpoint, ref.location, ref.version, ps, layout, wait, out)
        out.show(lambda: render_import.document(done), lambda: render_import.human(done))
        return
    result = import_arrays(
        out.location(source),
        ref.location,
        ref.version,
        ps,
        names=read_map(names) if names else None,
        layout=layout,
        reporter=out.reporter(),
        wait_seconds=wait,
    )
    out.show(lambda: render_import.document(result), lambda: render_import.human(result))


def _checkpoint(source: str, number: int, out: Output) -> Version | None:
    """Return the input as a version, None if it is not a checkpoint."""
    from edl_ckpt.cli.options import resolve_ref
    from edl_ckpt.core.checkpoint.catalog import list_versions, split_version_dir
    from edl_ckpt.core.operations.importing import as_checkpoint_file

    place = out.location(source)
    if os.path.isfile(source) and source.endswith((".ckpt", ".chkpt")) and not split_version_dir(place):
        return as_checkpoint_file(source, number)
    if "@" in source or split_version_dir(place) or _is_remote_location(place):
        return resolve_ref(source, out)
    return resolve_ref(source, out) if os.path.isdir(source) and list_versions(place).versions else None


def _is_remote_location(place: Location) -> bool:
    """Return True if a URL is a checkpoint_dir rather than files of another tool."""
    from edl_ckpt.core.format.names import parse_version_dir
    from edl_ckpt.core.storage import open_store

    return place.local_path is None and any(map(parse_version_dir, open_store(place).names("")))


def _import_checkpoint(
    version: Version, location: Location, number: int, ps: int, layout: str, wait: float, out: Output
) -> ReshardResult:
    from dataclasses import replace

    from edl_ckpt.core.operations.reshard.execute import execute_reshard
    from edl_ckpt.core.operations.reshard.prepare import prepare_reshard

    plan, settings = prepare_reshard(
        version,
        ps,
        output=location,
        layout=layout,
        number=number,
        reporter=out.reporter(),
    )
    for warning in (*plan.warnings, *settings.warnings):
        out.warn(warning)
    return replace(
        execute_reshard(plan, settings, reporter=out.reporter(), wait_seconds=wait), ref=f"{location}@{number}"
    )
