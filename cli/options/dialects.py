"""The words of other programs for our options: of ElasticDL, torch, TensorFlow, Hugging Face, dvc, aws and restic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "--keep": (
        "keep-checkpoint-max", "max-to-keep", "save-total-limit", "keep-last", "keep-latest", "keep-n", "keep-last-n",
        "keep-n-latest", "keep-max", "max-checkpoints", "num-to-keep", "k",
    ),
    "--keep-best": ("keep-best-n", "save-top-k", "keep-top"),
    "--metric": ("metric-name", "monitor", "key-metric", "metric-for-best-model"),
    "--ranks": (
        "num-ps-pods", "ps-num", "num-ps", "ps-pods", "num-ranks", "num-shards", "shards", "nproc", "nproc-per-node",
        "parts", "num-parts", "world-size", "ps", "n", "np", "to", "into",
    ),
    "--table": ("table-name", "embedding", "embedding-table"),
    "--variable": ("name", "key", "tensor", "tensor-name", "weight", "param", "parameter"),
    "--id": ("ids", "row", "row-id", "row-ids"),
    "--rows": ("num-rows", "limit", "lines"),
    "--recursive": ("r",),
    "--dry-run": ("dryrun", "simulate", "n"),
    "--format": ("fmt", "to-format"),
    "--deep": ("checksum", "checksums", "full", "read-data", "values", "thorough"),
    "--quick": ("fast", "headers", "headers-only"),
    "--sample": ("read-data-subset", "subset"),
    "--all": ("every", "each"),
    "--version-ge": ("min-version", "step", "global-step", "version"),
    "--output": ("out", "output-dir", "out-dir", "dest"),
}  # fmt: skip
"""The words of other programs, by our options; the first of these that a command has is meant."""
PERIODS: Final[Mapping[str, str]] = {"keep-hourly": "h", "keep-daily": "d", "keep-weekly": "w"}
"""The rules of restic, by the units of `--keep-within`, which keeps no less."""
PLACES: Final = frozenset({
    "checkpoint", "checkpoint-dir", "checkpoint-dir-for-init", "checkpoint-path", "ckpt", "ckpt-dir", "dir",
    "directory", "file-name", "input", "location", "path", "ref", "repo",
})  # fmt: skip
"""The words of other programs for a location, which is an argument here."""
TARGETS: Final = frozenset({"o", "out", "output", "output-dir", "dest", "destination", "target", "to"})
"""The words of other programs for a target, which is the last argument of `export` and `copy`."""
VERSIONS: Final = frozenset({"version", "step", "global-step", "checkpoint-version"})
SUPERFLUOUS: Final = frozenset({
    "-a", "-f", "-h", "-l", "-lh", "-la", "-p", "-r", "-s", "--all", "--human-readable", "--long", "--recursive",
    "--summarize",
})  # fmt: skip
"""Options of other programs that change nothing here: what they ask for is what our command does."""
