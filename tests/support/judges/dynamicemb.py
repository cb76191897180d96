"""Random tables that the functions of dynamicemb write and read again: dynamicemb.py CHECKOUT OUT FIRST COUNT [LOADS].

It runs under a Python that has torch, as a program. CHECKOUT is a git directory of NVIDIA/recsys-examples: dynamicemb
itself needs a GPU to be imported, so the functions that write and read files are taken out of its source one by one.
Table K is `OUT/step_K`; what its loader reads is `OUT/K.npz`. With LOADS, `OUT/loads_K.npz` has what each rank of a job
of one to so many ranks keeps, as `W_R`; every fifth table has a file of another save beside it.
"""

import ast
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import torch
import torch.distributed as dist

CHECKOUT, OUT, FIRST, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
FOLDER = "corelib/dynamicemb/dynamicemb"
EvictStrategy = Enum("EvictStrategy", ["KLru", "KLfu", "KCustomized"])


def lifted(file: str, names: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return functions and constants of a file of the checkout, which use what is given."""
    command = ["git", f"--git-dir={CHECKOUT}", "show", f"HEAD:{FOLDER}/{file}"]
    tree = ast.parse(subprocess.run(command, check=True, capture_output=True).stdout)
    wanted = [node for node in tree.body if getattr(node, "name", None) in names or _assigned(node) in names]
    scope = dict(given)
    exec(compile(ast.Module(wanted, []), file, "exec"), scope)
    return scope


def _assigned(node: ast.stmt) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


BASE = {
    "os": os, "json": json, "np": np, "torch": torch, "dist": dist, "Tensor": torch.Tensor, "partial": partial,
    "Any": Any, "Dict": dict, "List": list, "Optional": Optional, "Tuple": tuple, "Iterator": Iterator,
    "EvictStrategy": EvictStrategy, "DynamicEmbTableState": Any, "Type": type,
    "torch_dtype_to_np_dtype": {torch.int64: np.int64, torch.float32: np.float32},
    "truncate_optimizer_states_for_checkpoint": lambda _optimizer, _dim, states: states,
}  # fmt: skip
BASE |= lifted("types.py", ["KEY_TYPE", "EMBEDDING_TYPE", "SCORE_TYPE", "OPT_STATE_TYPE"], BASE)
PATHS = lifted(
    "batched_dynamicemb_tables.py",
    [
        "encode_meta_json_file_path",
        "encode_checkpoint_file_path",
        "encode_counter_checkpoint_file_path",
        "find_files",
        "get_loading_files",
    ],
    BASE,
)
FILES = lifted(
    "key_value_table.py", ["_dump_table", "_iter_batches_from_files", "save_to_json", "load_from_json"], BASE
)
torch.cuda.current_device = lambda: 0


def dump(folder: str, rank: int, ranks: int, table: dict[str, Any], rows: dict[str, torch.Tensor]) -> None:
    """Let the writer of dynamicemb write a rank of a table in two batches."""
    optimizer = SimpleNamespace(get_opt_args=lambda: {"opt_type": "adam", "lr": 0.1})
    options = [SimpleNamespace(dist_type=table["dist_type"])]
    state = SimpleNamespace(
        optimizer=optimizer,
        evict_strategy=table["evict"],
        options_list=options,
        table_emb_dims_cpu=[table["dim"]],
    )
    half = len(rows["keys"]) // 2
    batches = [
        tuple(None if rows[kind] is None else rows[kind][part] for kind in ("keys", "values", "opt_values", "scores"))
        for part in (slice(half), slice(half, None))
    ]
    FILES["export_keys_values_iter"] = lambda *_, **__: iter(batches)
    paths = [
        PATHS["encode_checkpoint_file_path"](folder, table["name"], rank, ranks, item)
        for item in ("keys", "values", "scores", "opt_values")
    ]
    meta = PATHS["encode_meta_json_file_path"](folder, table["name"])
    FILES["_dump_table"](state, 0, meta, *paths, table["optim"], rank == 0, 1000)


def save(number: int) -> None:
    """Save one table of some ranks, by a seed, and read it again as a loader does."""
    rng = np.random.default_rng(number)
    ranks, dim, count = number % 4 + 1, int(rng.integers(1, 17)), int(rng.integers(0, 200))
    scores, optim, evict = int(rng.integers(1, 3)), bool(rng.integers(2)), list(EvictStrategy)[number % 3]
    rule = ("roundrobin", "continuous")[number % 2]
    table = {"name": "user", "dim": dim, "dist_type": rule, "evict": evict, "optim": optim}
    folder = f"{OUT}/step_{number}/dynamicemb/model.ebc"
    os.makedirs(folder)
    keys = np.unique(rng.integers(-(2**63), 2**63, count))
    owners = (keys.view(np.uint64) % np.uint64(ranks)).astype(int) if rule == "roundrobin" else keys & 1023
    for rank in range(ranks):
        own = torch.from_numpy(rng.permutation(keys[owners % ranks == rank]))
        rows = {"keys": own, "values": torch.randn(len(own), dim), "opt_values": torch.randn(len(own), 2 * dim)}
        shape = (len(own),) if scores == 1 else (len(own), scores)
        rows["scores"] = torch.randint(0, 1 << 40, shape)
        dump(folder, rank, ranks, table, rows if optim else {**rows, "opt_values": None})
    paths = {}
    for kind in ("emb_keys", "emb_values", "emb_scores", "opt_values"):
        with contextlib.suppress(RuntimeError):
            paths[kind] = PATHS["find_files"](folder, "user", kind)[0]
    np.savez(f"{OUT}/{number}.npz", **read(paths, dim, scores, optim=optim))


def read(paths: dict[str, list[str]], dim: int, scores: int, *, optim: bool) -> dict[str, Any]:
    """Return what the loader of dynamicemb reads, sorted by key."""
    parts = []
    for number, keys in enumerate(paths["emb_keys"]):
        others = [
            paths["emb_values"][number],
            paths["emb_scores"][number],
            paths["opt_values"][number] if optim else None,
        ]
        batches = FILES["_iter_batches_from_files"](keys, *others, dim, 2 * dim, torch.device("cpu"), 64, scores)
        parts += [[part for part in batch if part is not None] for batch in batches]
    joined = [torch.cat(kind).numpy() for kind in zip(*parts, strict=True)] or [np.empty(0)] * (3 + optim)
    order = np.argsort(joined[0])
    return dict(zip(("ids", "vectors", "scores", "opt_values"), (kind[order] for kind in joined), strict=False))


def keep(number: int, most: int) -> None:
    """Let each rank of jobs of up to `most` ranks load a table, and write the keys that it keeps."""
    (folder,) = (path for path, _, files in os.walk(f"{OUT}/step_{number}") if files)
    if number % 5 == 4:
        for kind in ("keys", "values"):
            older = f"{folder}/user_emb_{kind}.rank_0.world_size_9"
            with open(older, "wb"):
                os.utime(older, (1e9, 1e9))
    kept: dict[str, Any] = {}
    for ranks in range(1, most + 1):
        for rank in range(ranks):
            FILES["dist"] = SimpleNamespace(
                is_initialized=lambda: True,
                get_world_size=lambda ranks=ranks: ranks,
                get_rank=lambda rank=rank: rank,
            )
            with contextlib.suppress(RuntimeError):
                keys, values, *_ = PATHS["get_loading_files"](folder, "user", rank, ranks)
                kept[f"{ranks}_{rank}"] = np.concatenate(
                    [np.empty(0, np.int64), *(part for pair in zip(keys, values, strict=True) for part in _kept(*pair))]
                )
    np.savez(f"{OUT}/loads_{number}.npz", **kept)


def _kept(keys: str, values: str) -> Iterator[Any]:
    rows = os.path.getsize(keys) // 8
    dim = os.path.getsize(values) // 4 // rows if rows else 1
    for batch in FILES["_iter_batches_from_files"](keys, values, None, None, dim, 0, torch.device("cpu"), 64):
        yield batch[0].numpy()


for each in range(FIRST, FIRST + COUNT):
    save(each)
    if len(sys.argv) > 5:
        keep(each, int(sys.argv[5]))
