"""What the program runs with, and what the storage of a location can do, as text and as JSON.

With a location, `doctor` says too what its storage can do.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli import __version__
from edl_ckpt.cli.terminal.documents import picked
from edl_ckpt.cli.terminal.tables import Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.base.words import counted, extra_hint
from edl_ckpt.core.storage.facts import Fact, Verdict

if TYPE_CHECKING:
    from edl_ckpt.core import StorageReport

EXTRAS: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "s3": (("botocore", "google_crc32c"), "S3 as a location"),
    "watch": (("watchfiles",), "`wait` and `watch` react at once (inotify)"),
    "tensorboard": (("tensorboard",), "`metrics import` from TensorBoard's event files"),
    "arrow": (("pyarrow",), "Parquet"),
    "pandas": (("pandas",), "tables as data frames, in the library"),
    "torch": (("torch",), "states of PyTorch"),
    "tensorflow": (("tensorflow",), "variables of Keras, in the library"),
    "report": (("jinja2", "vl_convert"), "`report`: a page of charts"),
    "tui": (("textual",), "`browse`: a checkpoint in the terminal"),
    "dask": (("distributed",), "--cluster: work on several machines"),
}
"""The extras of the package: the modules that each brings, and what it gives."""
_STYLES: Final[Mapping[Verdict, Cell]] = {
    Verdict.FINE: Cell("ok", "green"),
    Verdict.WEAKER: Cell("weaker", "yellow"),
    Verdict.BROKEN: Cell("broken", "bold red"),
    Verdict.UNKNOWN: Cell("-", "dim"),
}
_VERDICT: Final = Column("verdict", worth=9, title="")


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
        is_there = all(find_spec(name) is not None for name in modules)
        state = ("installed", Verdict.FINE) if is_there else ("missing", Verdict.UNKNOWN)
        yield Fact(extra, *state, gives)


def doctor_document(program: Iterable[Fact], extras: Iterable[Fact], storage: StorageReport | None) -> dict[str, Any]:
    """Return `edl-ckpt/doctor/1`; `storage` is null without a location."""
    facts = list(program)
    found = storage and {"location": storage.location.url, "wrote": storage.wrote, "facts": _objects(storage.facts)}
    return {
        "schema": "edl-ckpt/doctor/1",
        "ok": is_sound(facts, storage),
        "program": _objects(facts),
        "extras": [{"name": e.name, "installed": e.verdict is Verdict.FINE, "gives": e.why} for e in extras],
        "storage": found,
    }


def is_sound(program: Iterable[Fact], storage: StorageReport | None) -> bool:
    """Say whether nothing is broken."""
    return (storage is None or storage.is_sound) and all(fact.verdict is not Verdict.BROKEN for fact in program)


def _objects(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    return [picked(fact, "name value verdict why") for fact in facts]


def doctor_human(program: Sequence[Fact], extras: Sequence[Fact], storage: StorageReport | None) -> Lines:
    """Yield a table of the program, of its extras, and of the storage, and what all of it comes to."""
    yield styled("program", "bold")
    yield _facts(program)
    yield styled("extras", "bold")
    value, gives = Column("value", worth=7, title=""), Column("gives", "prose", worth=8, title="")
    columns = _VERDICT, Column("extra", "name", worth=10, title=""), value, gives
    yield Table(*columns, rows=((_STYLES[f.verdict], f.name, f.value, Cell(f.why, "dim")) for f in extras))
    if missing := next((extra for extra in extras if extra.verdict is not Verdict.FINE), None):
        yield styled(f"for example: {extra_hint(missing.name)}", "dim")
    if storage is not None:
        yield head(storage.location.url, "" if storage.wrote else "the write tests were skipped")
        yield _facts(storage.facts)
    every = [*program, *(storage.facts if storage is not None else ())]
    broken, weaker = (sum(fact.verdict is kind for fact in every) for kind in (Verdict.BROKEN, Verdict.WEAKER))
    if broken:
        yield styled(f"{broken} broken", "bold red")
    summary = "" if broken else "No problems found."
    yield styled(f"{weaker} slower or weaker" if weaker else summary, "dim")


def _facts(facts: Sequence[Fact]) -> Table:
    """Return a table of facts. A reason stands behind the value: in a column of its own it would be the first to go."""
    columns = Column("fact", "name", worth=10, title=""), Column("value", "prose", worth=8, title="")
    rows = ((_STYLES[f.verdict], f.name, f"{f.value}: {f.why}" if f.why else f.value) for f in facts)
    return Table(_VERDICT, *columns, rows=rows)
