"""The program itself, as text, as JSON and as rows: what it runs with, its settings, and the systems that it knows.

With a location, `doctor` says too what its storage can do.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli import __version__
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import Several, document_of, picked, rows_of
from edl_ckpt.cli.terminal.tables import Cell, Column, Lines, Table, head, styled
from edl_ckpt.core.base.words import counted, extra_hint
from edl_ckpt.core.storage.facts import Fact, Verdict

if TYPE_CHECKING:
    from edl_ckpt.cli.options.settings import Setting, Settings
    from edl_ckpt.core import StorageReport
    from edl_ckpt.core.sources.systems import System


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
        yield head(storage.location.url, "" if storage.wrote else "nothing was written, so less is known")
        yield _facts(storage.facts)
    every = [*program, *(storage.facts if storage is not None else ())]
    broken, weaker = (sum(fact.verdict is kind for fact in every) for kind in (Verdict.BROKEN, Verdict.WEAKER))
    if broken:
        yield styled(f"{broken} broken", "bold red")
    summary = "" if broken else "Nothing is slower or weaker."
    yield styled(f"{weaker} slower or weaker" if weaker else summary, "dim")


def _facts(facts: Sequence[Fact]) -> Table:
    """Return a table of facts. A reason stands behind the value: in a column of its own it would be the first to go."""
    columns = Column("fact", "name", worth=10, title=""), Column("value", "prose", worth=8, title="")
    rows = ((_STYLES[f.verdict], f.name, f"{f.value}: {f.why}" if f.why else f.value) for f in facts)
    return Table(_VERDICT, *columns, rows=rows)


def config_document(found: Settings) -> dict[str, Any]:
    """Return `edl-ckpt/config/1`, with every setting, and where it comes from."""
    settings = [picked(each, "name value source origin? variable commands fault") for each in found.settings]
    return document_of("config", found, "files settings warnings", settings=settings)


def config_rows(found: Settings) -> list[list[Any]]:
    """Return a header and a row for each setting."""
    keys = "name value source origin commands"
    return rows_of(keys, (picked(e, keys, value=_worded(e), commands=" ".join(e.commands)) for e in found.settings))


def config_human(found: Settings, *, origin: bool, every: bool) -> Lines:
    """Yield the files, and a row for each setting that somebody chose or that is more than a flag that is off.

    With `every`, there is a row for all.
    """
    for file in found.files:
        yield head(file.path, "" if file.trusted else "only how output looks and what a command may use")
    if not found.files:
        yield styled("no configuration file", "dim")
    table = Table(
        Column("setting", "name", worth=10), Column("value", "name", worth=9),
        *([Column("origin", "name", worth=8)] if origin else []), Column("commands", "prose", worth=5),
    )  # fmt: skip
    for each in found.settings:
        if every or each.source != "default" or each.value not in (None, False, [], ()):
            value = (text.escaped(_worded(each)), "red" if each.fault else "")
            source = [text.escaped(each.origin) or "default"] if origin else []
            table.add(each.name, value, *source, ", ".join(each.commands))
    yield table
    for each in found.settings:
        if each.fault:
            yield styled(f"{text.escaped(each.origin)}: {each.fault}", "red")


def _worded(setting: Setting) -> str:
    """Return a value as it stands on the command line; '' for one that is not set."""
    if isinstance(setting.value, list):
        return " ".join(map(str, setting.value))
    if setting.value is None:
        return ""
    return str(setting.value).lower() if isinstance(setting.value, bool) else str(setting.value)


_SYSTEM_KEYS = "name title reads writes judged_with"


def systems_document(systems: Sequence[System]) -> dict[str, Any]:
    """Return `edl-ckpt/systems/1`."""
    return {"schema": "edl-ckpt/systems/1", "systems": [picked(system, _SYSTEM_KEYS) for system in systems]}


def systems_rows(systems: Sequence[System]) -> list[list[Any]]:
    """Return a header and a row for each system."""
    return rows_of(_SYSTEM_KEYS, (picked(s, _SYSTEM_KEYS, judged_with=Several(s.judged_with, "; ")) for s in systems))


def systems_human(systems: Sequence[System]) -> Lines:
    """Yield a table of the systems."""
    columns = (
        Column("name"),
        Column("system", worth=9),
        Column("reads"),
        Column("writes"),
        Column("judged with", "prose", worth=2),
    )
    can = {True: "yes", False: "-"}
    systems_rows = ([s.name, s.title, can[s.reads], can[s.writes], ", ".join(s.judged_with)] for s in systems)
    yield Table(*columns, rows=systems_rows)
