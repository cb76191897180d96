"""What the program runs with: the kernel, the libraries, the processors, and the extras that are there or missing."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

from edl_ckpt.cli import __version__
from edl_ckpt.core.base.words import counted
from edl_ckpt.core.storage.facts import Fact, Verdict

EXTRAS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "s3": (("botocore", "google_crc32c"), "S3 as a location"),
    "watch": (("watchfiles",), "`wait` and `watch` hear of changes from the kernel"),
    "tensorboard": (("tensorboard",), "`metrics import` from TensorBoard's event files"),
    "arrow": (("pyarrow",), "Parquet"),
    "pandas": (("pandas",), "tables as data frames, in the library"),
    "torch": (("torch",), "states of PyTorch"),
    "tensorflow": (("tensorflow",), "checkpoints of TensorFlow"),
    "report": (("jinja2", "vl_convert"), "`report`: a page of charts"),
    "tui": (("textual",), "`browse`: a checkpoint in the terminal"),
    "dask": (("distributed",), "--cluster: work on several machines"),
}
"""The extras of the package: the modules that each brings, and what it gives."""


def program_facts() -> Iterator[Fact]:
    """Yield what the program runs with."""
    import google.protobuf
    import numpy as np
    from google.protobuf.internal import api_implementation

    from edl_ckpt.core.kernel import bulk

    yield Fact("edl-ckpt", __version__)
    if bulk.kernel is not None:
        yield Fact("kernel", "compiled")
    else:
        slower = "reshard, verify, diff and export take up to five times as long"
        why = f"numpy does its work, and {slower}; install edl-ckpt again, with a C compiler"
        yield Fact("kernel", "not compiled", Verdict.WEAKER, why)
    yield Fact("Python", f"{platform.python_version()}, {platform.system()} {platform.machine()}")
    yield Fact("numpy", np.__version__)
    kind = api_implementation.Type()
    slow = kind == "python"
    why = "its compiled form is missing: versions in old formats are read more slowly" if slow else ""
    yield Fact("protobuf", f"{google.protobuf.__version__} ({kind})", Verdict.WEAKER if slow else Verdict.FINE, why)
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    why = "one thread does all the work: --workers gives no more" if usable == 1 else ""
    yield Fact("processors", counted(usable, "core"), Verdict.WEAKER if why else Verdict.FINE, why)


def extra_facts() -> Iterator[Fact]:
    """Yield for each extra whether it is installed; one that is missing is no fault."""
    for extra, (modules, gives) in EXTRAS.items():
        missing = [name for name in modules if find_spec(name) is None]
        if missing:
            yield Fact(extra, "missing", Verdict.UNKNOWN, gives)
        else:
            yield Fact(extra, "installed", Verdict.FINE, gives)
