"""Checkpoints of models whose embedding tables are spread over machines: list, read, verify, reshard, prune, export.

A *location* is a directory or a URL that holds *versions*, one for each saved step. A version has one *shard* for each
parameter server. A function takes a location as a path, a URL or a `Location`, and a version as a `Version` of a
listing or as a reference: `"run@100"`, `"run@latest"`, `"run@best:auc"`, `"run@TAG"`.

Save, list, verify and read:

>>> import numpy as np
>>> import edl_ckpt
>>> rows = edl_ckpt.Table(np.arange(4), np.ones((4, 2), np.float32))
>>> version = edl_ckpt.save_checkpoint("run", 100, ps_num=2, variables={"bias": np.zeros(3)}, tables={"user": rows})
>>> [(version.ref, str(version.state)) for version in edl_ckpt.list_versions("run").versions]
[('run@100', 'complete')]
>>> edl_ckpt.verify_version("run@latest").ok
True
>>> with edl_ckpt.open_checkpoint("run@100") as checkpoint:
...     checkpoint.table("user").to_numpy([3]).vectors.tolist(), checkpoint["bias"].shape
([[1.0, 1.0]], (3,))

The names here, which are imported when they are first used:

* look: `list_versions`, `latest`, `open_checkpoint`, `look_up`, `diff_versions`, `verify_version`
* write: `save_checkpoint` with `Table`, `import_arrays`, `reshard_version`, `convert_version`, `export_version`
* keep: `prune` with `Policy`, `Latest`, `Best`; `add_tag`, `set_metrics`
* in a job: `CheckpointSaver`, `restore`
* `Location` carries storage options, and every error is an `EdlCkptError`

`edl_ckpt.core` has all other names, `help` of a function its details, and docs/library.md the manual.
"""

_NAMES = (
    "__version__ Best CheckpointSaver EdlCkptError Latest Location Policy Table add_tag convert_version diff_versions "
    "export_version import_arrays latest list_versions look_up open_checkpoint prune reshard_version restore "
    "save_checkpoint set_metrics verify_version"
)


def __getattr__(name: str) -> object:
    if name not in {"core", *_NAMES.split()}:
        near = [known for known in _NAMES.split() if known.split("_")[0] == name]  # `verify` of verify_version
        way = f"did you mean {' or '.join(near)}?" if near else "edl_ckpt.core may have it"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {way}")
    from importlib import import_module

    core = import_module(f"{__name__}.core")
    return core if name == "core" else getattr(core, name)


def __dir__() -> list[str]:  # without `__all__`, help() shows this page and not every class
    return sorted([*globals(), *_NAMES.split()])
