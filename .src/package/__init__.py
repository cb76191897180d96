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

* look: `list_versions`, `open_checkpoint`, `look_up`, `diff_versions`, `verify_version`
* write: `save_checkpoint` with `Table`, `import_arrays`, `reshard_version`, `convert_version`, `export_version`
* keep: `prune` with `Policy`, `Latest`, `Best`; `add_tag`, `set_metrics`
* in a job: `CheckpointSaver`
* `Location` carries storage options, and every error is an `EdlCkptError`

`edl_ckpt.core` has all other names, `help` of a function its details, and docs/library.md the manual.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from edl_ckpt.core import Best as Best
    from edl_ckpt.core import CheckpointSaver as CheckpointSaver
    from edl_ckpt.core import EdlCkptError as EdlCkptError
    from edl_ckpt.core import Latest as Latest
    from edl_ckpt.core import Location as Location
    from edl_ckpt.core import Policy as Policy
    from edl_ckpt.core import Table as Table
    from edl_ckpt.core import __version__ as __version__
    from edl_ckpt.core import add_tag as add_tag
    from edl_ckpt.core import convert_version as convert_version
    from edl_ckpt.core import diff_versions as diff_versions
    from edl_ckpt.core import export_version as export_version
    from edl_ckpt.core import import_arrays as import_arrays
    from edl_ckpt.core import list_versions as list_versions
    from edl_ckpt.core import look_up as look_up
    from edl_ckpt.core import open_checkpoint as open_checkpoint
    from edl_ckpt.core import prune as prune
    from edl_ckpt.core import reshard_version as reshard_version
    from edl_ckpt.core import save_checkpoint as save_checkpoint
    from edl_ckpt.core import set_metrics as set_metrics
    from edl_ckpt.core import verify_version as verify_version
else:
    _NAMES = [
        "__version__",
        "Best",
        "CheckpointSaver",
        "EdlCkptError",
        "Latest",
        "Location",
        "Policy",
        "Table",
        "add_tag",
        "convert_version",
        "diff_versions",
        "export_version",
        "import_arrays",
        "list_versions",
        "look_up",
        "open_checkpoint",
        "prune",
        "reshard_version",
        "save_checkpoint",
        "set_metrics",
        "verify_version",
    ]
    del TYPE_CHECKING

    def __getattr__(name):
        if name not in _NAMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}; edl_ckpt.core may have it")
        from edl_ckpt import core

        return getattr(core, name)

    def __dir__():  # without `__all__`, help() shows this page and not every class
        return sorted([*globals(), *_NAMES])
