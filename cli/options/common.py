"""The types of options and arguments, and how a command declares its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

import typer

from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_duration
from edl_ckpt.core.base.choices import LayoutName
from edl_ckpt.core.base.choices import Mode as ModeName

if TYPE_CHECKING:
    from edl_ckpt.core.reading.loss import Loss
    from edl_ckpt.core.storage.location import Location

_DEFAULT_PLACE = "$EDL_CKPT_DIR, the default storage or the current directory"
_REF_HELP = "LOCATION, @VERSION or both, or a single checkpoint FILE: see `edl-ckpt help refs`. Default: "
_LOCATION_HELP = f"A directory or URL with versions, or a storage's name. Default: {_DEFAULT_PLACE}."
_LOCATIONS_HELP = f"Directories or URLs with versions. Default: {_DEFAULT_PLACE}."
_MODE_HELP = "Whether higher (max) or lower (min) is better."
_GRACE_HELP = "An incomplete version that changed so lately is still being written."


class CommandLineOnly:
    """Marks an option that neither the environment nor a file may set, though one of this name elsewhere may be set."""


def argument(metavar: str, text: str) -> Any:
    """Declare an argument of a command: the words that stand for it, and its help."""
    return typer.Argument(metavar=metavar, help=text)


class DeclaredOption(NamedTuple):
    """An option as a command declares it, before the parameter that has it gives it a name (`decorator.py`)."""

    flags: tuple[str, ...]
    """Flags beside the one that comes of the name; a long one among them takes its place."""
    help: str
    metavar: str | None = None
    """The words that stand for its value; None for a flag."""
    least: int | None = None
    most: int | None = None
    hidden: bool = False
    """It works, and no help shows it."""


def option(
    metavar: str, text: str, *flags: str, least: int | None = None, most: int | None = None, hidden: bool = False
) -> DeclaredOption:
    """Declare an option with a value: what stands for it, its help, and flags; the long one comes of its name."""
    return DeclaredOption(flags, text, metavar, least, most, hidden)


def flag(text: str, *flags: str, hidden: bool = False) -> DeclaredOption:
    """Declare an option without a value: its help, and its flags; the long one comes of its name."""
    return DeclaredOption(flags, text, hidden=hidden)


Ref = Annotated[str | None, argument("[REF]", f"{_REF_HELP}the newest complete version in {_DEFAULT_PLACE}.")]
Browsed = Annotated[str | None, argument("[REF]", f"{_REF_HELP}all versions in {_DEFAULT_PLACE}.")]
Places = Annotated[list[str] | None, argument("[LOCATION...]", _LOCATIONS_HELP)]
Grace = Annotated[str, option("DURATION", _GRACE_HELP)]
System = Annotated[str | None, option("NAME", "Read only files of this system: `edl-ckpt systems`.")]
Csv = Annotated[bool, flag("Print rows as CSV.")]
Jsonl = Annotated[bool, flag("Print rows as JSON, one object on each line.")]
Table = Annotated[str | None, option("NAME", "The embedding table. Default: the only table.")]
Rows = Annotated[int, option("N", "How many rows to print.", "-n", least=1)]
Prometheus = Annotated[bool, flag("Print metrics for Prometheus (textfile collector).")]
Every = Annotated[bool, flag("Show every row of a long table on a terminal too.", "--all")]
Workers = Annotated[int | None, option("N", "Number of threads. Default: the number of cores.", least=1)]
Place = Annotated[str | None, argument("[LOCATION]", _LOCATION_HELP)]
_EXPERIMENT_HELP = "Take all directories in DIR that have versions."
Experiment = Annotated[str | None, option("DIR", _EXPERIMENT_HELP)]
HiddenExperiment = Annotated[str | None, option("DIR", _EXPERIMENT_HELP, hidden=True)]
DryRun = Annotated[bool, flag("Show what would happen, and change nothing.")]
LockWait = Annotated[str, option("DURATION", "How long to wait for the lock.")]
Mode = Annotated[ModeName | None, option("max|min", _MODE_HELP)]
StallAfter = Annotated[
    str, option("DURATION|none", "Report a stall after this time without a change; 0 or `none`: never.")
]
Interval = Annotated[
    str | None,
    option("DURATION", "Time between polls. Default: 1s on a disk, at once with inotify; 10s on other storage."),
]
Layout = Annotated[
    LayoutName | None,
    option("design|elasticdl", "Names of directories and files. Default: those at the location, else design."),
]
ForceSeal = Annotated[bool, flag("Proceed despite a seal that does not match; the new seal records it.", "--force")]


def show_loss(out: Output, loss: Loss, *, fails: bool = True) -> None:
    """Warn of what could not be read of a version; raise its error where that was asked for, once the rest is shown."""
    out.warn(*loss.lines())
    if loss and fails:
        raise loss.error("the rest is shown")


def asked_layout(out: Output, layout: Layout, target: Location | None) -> LayoutName | None:
    """Return the layout that a command asks for; None lets the versions at the target decide.

    A layout from the environment or a configuration file is for empty locations: it never mixes layouts. `target` is
    None for a version that is replaced in place.
    """
    from edl_ckpt.core.catalog.target import layouts_at
    from edl_ckpt.core.sources.elasticdl.target import writable_layout
    from edl_ckpt.core.storage import open_store

    if layout is None or "layout" not in out.defaulted:
        return layout
    writable_layout(layout)  # an error for another name
    return None if target is None or layouts_at(open_store(target)) else layout


class Locking(TypedDict):
    """The arguments of an operation that takes a location's lock."""

    wait_seconds: float
    reporter: Output


def locking(out: Output, lock_wait: str) -> Locking:
    """Return how long an operation waits for a lock, and to whom it reports."""
    return {"wait_seconds": parse_duration(lock_wait), "reporter": out}
