"""`edl-ckpt demo`: makes small checkpoints of two systems, and runs commands on them."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated, Any

from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options.common import Layout, argument
from edl_ckpt.cli.terminal.output import Output

if TYPE_CHECKING:
    from edl_ckpt.core.base.progress import Reporter

_PS_NUM = 4
_VERSIONS = (100, 200, 300, 400)
_RANKS = 2
_STEPS = (100, 200, 300)
_TORCH = "-torch"
"""The directory with the steps of torch has this ending."""
_NAMES = {
    "user": "model.ebc.embedding_bags.user.weight",
    "item": "model.ebc.embedding_bags.item.weight",
    "weight": "model.over.weight",
    "bias": "model.over.bias",
}
"""The names that a TorchRec model gives its tables and variables."""
_FINAL = (70, 129, 130, 141, 143)


@declared("demo", "demo my-checkpoints", exits=WRITES)
def demo_command(
    out: Output,
    directory: Annotated[str, argument("[DIR]", "The directory to make.")] = "edl-ckpt-demo",
    layout: Layout = None,
) -> None:
    """Make small checkpoints to try commands on.

    DIR-torch gets steps of a TorchRec job, one of them damaged. DIR gets versions of an ElasticDL job, one of them
    incomplete. The demo runs commands on them and shows their output.
    """
    from edl_ckpt.core.base.errors import RefusedError, UsageError

    if "://" in directory or directory.startswith("-"):
        raise UsageError(f"expected a directory, got {directory!r}")
    torch = f"{directory.rstrip('/')}{_TORCH}"
    for each in (directory, torch):
        if (os.path.isdir(each) and os.listdir(each)) or os.path.isfile(each):
            raise RefusedError("exists and is not empty", path=each, hint="try: edl-ckpt demo OTHER_DIR")
    make_torch_steps(torch)
    make_checkpoints(directory, layout=layout or "design", reporter=out)
    if out.json:
        ran = [captured(arguments, out) for arguments in (*_torch_walk(torch), *_walk(directory))]
        document = {"schema": "edl-ckpt/demo/1", "location": directory, "ps_num": _PS_NUM, "versions": list(_VERSIONS)}
        out.print_json({**document, "torch_location": torch, "torch_steps": list(_STEPS), "commands": ran})
        return
    out.say(f"A TorchRec job with {_RANKS} ranks saved {len(_STEPS)} steps. The disk damaged the last one.")
    for arguments in _torch_walk(torch):
        show_command(arguments, out)
    servers = f"An ElasticDL job with {_PS_NUM} parameter servers (PS)"
    out.say(f"\n{servers} saved {len(_VERSIONS)} versions. The last save was interrupted.")
    for arguments in _walk(directory):
        show_command(arguments, out)
    out.say(f"You can try more commands on the checkpoints in {torch} and {directory}.")


def _torch_walk(directory: str) -> list[list[str]]:
    """Return the commands that find the step from which a job with other ranks can resume."""
    return [
        ["list", directory],
        ["inspect", f"{directory}@200"],
        ["verify", directory, "--newest", "--deep"],
        ["list", directory],
        ["diff", f"{directory}@100", "@200", "--top", "2"],
    ]


def _walk(directory: str) -> list[list[str]]:
    """Return the commands for a job whose shards have to fit the number of its servers."""
    return [
        ["list", directory],
        ["inspect", f"{directory}@latest"],
        ["inspect", f"{directory}@300", "--table", "user_embedding", "--stats"],
        ["verify", f"{directory}@300", "--deep"],
        ["verify", f"{directory}@400"],
        ["verify", f"{directory}@200", "--seal"],
        ["reshard", f"{directory}@300", "--ranks", "8", "--dry-run"],
        ["reshard", f"{directory}@300", "--ranks", "3"],
        ["metrics", "set", f"{directory}@100", "auc=0.71"],
        ["metrics", "set", f"{directory}@200", "auc=0.78"],
        ["metrics", "set", f"{directory}@300", "auc=0.76"],
        ["tag", "add", f"{directory}@best:auc", "serving"],
        ["list", directory],
        ["prune", directory, "--keep", "1", "--trash", "--yes"],
        ["undo", directory],
    ]


def show_command(arguments: list[str], out: Output) -> None:
    """Print a command line, run it in this process, and print its exit code unless it is 0."""
    out.write(f"\n$ edl-ckpt {' '.join(map(shlex.quote, arguments))}\n")
    code = _run([*arguments, *(["--no-color"] if out.no_color else [])], out)
    if code:
        out.write(f"(exit code {code})\n")


def captured(arguments: list[str], out: Output) -> dict[str, Any]:
    """Run a command line with --json in this process; return it with its exit code and its document."""
    import io
    import json
    from contextlib import redirect_stdout

    printed = io.StringIO()
    with redirect_stdout(printed):
        code = _run([*arguments, "--json"], out)
    return {"arguments": arguments, "exit_code": code, "document": json.loads(printed.getvalue() or "null")}


def _run(arguments: list[str], out: Output) -> int:
    """Run a command line in this process and return its exit code; a signal or a bug ends the demo too."""
    from edl_ckpt.cli.options.program import run

    try:
        run([*arguments, "--progress", out.progress])
    except SystemExit as end:
        if end.code in _FINAL:
            raise
        return int(end.code or 0)
    return 0


def make_checkpoints(directory: str, *, layout: Layout = None, reporter: Reporter | None = None) -> None:
    """Write the versions of the demo; a shard of the last one is missing."""
    import numpy as np

    from edl_ckpt.core.base.progress import SILENT
    from edl_ckpt.core.operations.save import Table, save_checkpoint
    from edl_ckpt.core.state.paths import seal_file

    random = np.random.default_rng(7)
    users = np.unique(random.integers(0, 2**40, 20_000))
    items = np.arange(5_000, dtype=np.int64)
    for version in _VERSIONS:
        scale = np.float32(1 / version)
        saved = save_checkpoint(
            directory,
            version,
            _PS_NUM,
            variables={
                "dense/kernel:0": random.standard_normal((64, 32), np.float32) * scale,
                "dense/bias:0": np.zeros(32, np.float32),
                "dense_1/kernel:0": random.standard_normal((32, 1), np.float32) * scale,
                "global_step:0": np.array(version, np.int64),
            },
            tables={
                "user_embedding": Table(users, random.standard_normal((len(users), 16), np.float32) * scale),
                "item_embedding": Table(items, random.standard_normal((len(items), 8), np.float32) * scale, "zeros"),
            },
            layout=layout,
            reporter=reporter or SILENT,
        )
        os.remove(os.path.join(directory, seal_file(version)))  # a job saves without a seal
    os.remove(saved.shards[-1].path)


def make_torch_steps(directory: str) -> None:
    """Write the steps of the demo's TorchRec job; a bit of the last one is wrong."""
    import tempfile

    import numpy as np

    from edl_ckpt.core.base.progress import SILENT
    from edl_ckpt.core.operations.export import export_version
    from edl_ckpt.core.operations.save import Table, save_checkpoint

    random = np.random.default_rng(7)
    users, items = np.arange(3000, dtype=np.int64), np.arange(1000, dtype=np.int64)
    user = random.standard_normal((len(users), 16), np.float32)
    item = random.standard_normal((len(items), 8), np.float32)
    os.makedirs(directory, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="edl-ckpt-demo-") as arrays:
        for step in _STEPS:
            user[step : step + 100] *= np.float32(1.25)
            saved = save_checkpoint(
                arrays,
                step,
                1,
                variables={
                    "weight": random.standard_normal((1, 24), np.float32) / np.float32(step),
                    "bias": np.zeros(1, np.float32),
                },
                tables={"user": Table(users, user), "item": Table(items, item)},
                reporter=SILENT,
            )
            output = os.path.join(directory, f"step_{step}")
            names = tuple(_NAMES.items())
            export_version(saved, output, format_name="dcp", ranks=_RANKS, rename=names, reporter=SILENT)
    with open(os.path.join(output, "__1_0.distcp"), "r+b") as damaged:
        damaged.seek(20_000)
        byte = damaged.read(1)[0]
        damaged.seek(20_000)
        damaged.write(bytes([byte ^ 0x10]))
