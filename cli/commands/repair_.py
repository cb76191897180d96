"""The commands that put right what damage (`repair`), a kill (`recover`, `unlock`) or a deletion (`undo`) left."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import NOTES, WRITES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.hints import is_named, resumable
from edl_ckpt.cli.terminal.output import Output, agreed
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import EdlCkptError, RefusedError, UsageError
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.core.commit.repair.survey import Unfinished
    from edl_ckpt.core.state.holder import Holder
    from edl_ckpt.core.storage.location import Location


@declared("repair run@100 --from backup --dry-run", "repair run@100 --from s3://backup/run@100", exits=WRITES)
def repair_command(
    out: Output,
    ref: o.Ref = None,
    source: Annotated[
        str | None, o.option("REF", "The other copy; without a version, the one of the same number.", "--from")
    ] = None,
    mix: Annotated[bool, o.flag("Go on although nothing proves the files; the new seal records it.", "--mix")] = False,
    dry_run: o.DryRun = False,
    workers: o.Workers = None,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Replace missing and damaged shards from a copy.

    Both copies are read first. A file is taken if the version's seal names its bytes or, without a seal, if all other
    files of the two are equal. Damaged files go to the trash, and what was written is read back.
    """
    from edl_ckpt.cli.render import written
    from edl_ckpt.core.operations.repair import repair_version

    if not source:
        raise UsageError("--from is missing, the copy to take files from", hint="expected [REF] --from REF")
    version = o.resolve_ref(ref, out, to_change=True, aloud=True)
    named = is_named(source, o.parsed_ref(source, out))
    other = o.resolve_ref(source if named or version.number is None else f"{source}@{version.number}", out)
    with resumable(out, "run the same repair again: it continues with the remaining damage"):
        result = repair_version(version, other, mix=mix, dry_run=dry_run, workers=workers, **o.locking(out, lock_wait))
    out.show(lambda: written.repair_document(result), written.repair_human(result))


@declared(
    "recover run",
    "recover s3://models/run --dry-run",
    exits=NOTES,
    c3="something could not be settled",
    c16="not confirmed",
)
def recover_command(
    out: Output,
    location: o.Place = None,
    drop_copies: Annotated[bool, o.flag("Also discard interrupted copies.")] = False,
    yes: Annotated[
        bool, o.flag("Do not ask, and remove the lock of a process on another host that may be dead.", "-y")
    ] = False,
    dry_run: o.DryRun = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Finish or undo the work of killed commands.

    It first says what it would do. On a terminal it then asks; in a script it acts. Every command that writes to a
    location does the same first. Interrupted copies are kept, so that they can resume. It leaves whatever it cannot
    resolve untouched and exits with 3; the output suggests a next step.
    """
    from edl_ckpt.core.commit.repair.recovery import recover
    from edl_ckpt.core.commit.repair.survey import unfinished_work

    where = out.location(location)
    if dry_run:
        _show_recovery(out, where, would=_steps(unfinished_work(where, reporter=out), drop_copies=drop_copies))
        return
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    if asks or yes:
        _agree(where, _known_work(where, out), drop_copies=drop_copies, asks=asks, out=out)
    done = recover(where, drop_copies=drop_copies, **o.locking(out, lock_wait))
    _show_recovery(out, where, done=done.done, kept=done.kept, left=done.left)
    out.conclude(ok=not done.left)


def _known_work(where: Location, out: Output) -> Unfinished | None:
    """Return what waits at a location; None where there is nothing to look at: `recover` has the words for that."""
    from edl_ckpt.core.commit.repair.survey import unfinished_work

    try:
        return unfinished_work(where, reporter=out)
    except EdlCkptError:
        return None


def _agree(where: Location, found: Unfinished | None, *, drop_copies: bool, asks: bool, out: Output) -> None:
    """Ask for what `recover` would do, and remove the lock of a holder that is dead, or may be."""
    from edl_ckpt.core.operations.undo import unlock

    steps = _steps(found, drop_copies=drop_copies) if found is not None else []
    if asks and steps:
        for step in steps:
            print(f"{escaped(where.url)}: {escaped(step)}", file=sys.stderr)
        if not agreed("Do this?"):
            raise RefusedError("not confirmed; nothing was changed", path=where.url, hint="in a script: --yes")
    if found is not None and found.holders and not any(holder.is_alive for holder in found.holders):
        unlock(where, confirm=lambda _: True, reporter=out)


def _steps(found: Unfinished, *, drop_copies: bool) -> list[str]:
    """Return what `recover` would do, in words."""
    from edl_ckpt.core.state.blocked import format_holder

    copies = "discarded" if drop_copies else "kept: it resumes when the same copy is run again"
    return [
        *(
            f"the lock is held by {format_holder(holder)}: "
            + ("it stays; other commands wait for it" if holder.is_alive else "it is removed")
            for holder in found.holders
        ),
        *found.work,
        *(f"an interrupted copy of version {version}: {copies}" for version in found.copies),
    ]


def _show_recovery(
    out: Output,
    where: Location,
    *,
    done: Sequence[str] = (),
    kept: Sequence[str] = (),
    left: Sequence[str] = (),
    would: Sequence[str] | None = None,
) -> None:
    """Show what was settled, or of a dry run what would be."""
    document = {
        "schema": "edl-ckpt/recover/1",
        "location": where.url,
        "done": list(done),
        "kept": list(kept),
        "left": list(left),
    }
    if would is not None:
        document["would"] = list(would)
    lines = [*done, *(f"kept: {text}" for text in kept), *(f"unresolved: {text}" for text in left), *(would or ())]
    words = [f"{escaped(where.url)}: {escaped(text)}" for text in lines]
    out.show(lambda: document, words or [f"{escaped(where.url)}: nothing to recover"])


_Deleted = Annotated[
    str | None,
    o.argument(
        "[REF]",
        "LOCATION, @VERSION or both; a version is a number. Default: the whole last deletion in $EDL_CKPT_DIR, "
        "the default storage or the current directory.",
    ),
]


@declared("undo run", "undo run@50", exits=NOTES)
def undo_command(out: Output, ref: _Deleted = None, lock_wait: o.LockWait = "10s") -> None:
    """Restore what the last `prune --trash` deleted.

    Versions return with their metrics and tags. With @VERSION, only that version returns, from the last deletion that
    has it. After `reshard --keep-old`, the old shards return, and the new ones go to the trash.
    """
    from edl_ckpt.core.operations.undo import undo

    asked = o.parsed_ref(ref, out)
    where, number = asked.location, asked.version if isinstance(asked.version, int) else None
    if number is None and (asked.version != "latest" or (ref or "").endswith("@latest")):
        raise UsageError(f"@{asked.version}: a version in the trash has only its number", path=where.url)
    names = undo(where, number, **o.locking(out, lock_wait))
    document = {"schema": "edl-ckpt/undo/1", "location": where.url, "restored": list(names)}
    out.show(lambda: document, [f"{escaped(where.url)}: restored {escaped(name)}" for name in names])


@declared(
    "unlock run",
    "unlock s3://models/run --yes",
    exits=NOTES,
    c0="the lock is gone",
    c11="the holder is alive, or may be",
    c16="not confirmed",
)
def unlock_command(
    out: Output,
    location: o.Place = None,
    yes: Annotated[bool, o.flag("Do not ask for confirmation.", "-y")] = False,
) -> None:
    """Remove the lock of a dead command, after showing its holder.

    Other commands take over a stale lock by themselves: at once if its process died on this host, otherwise after ten
    minutes. This command does it earlier. It refuses while the lock holder is, or may be, alive.
    """
    from edl_ckpt.core.operations.undo import unlock
    from edl_ckpt.core.state.blocked import format_holder

    where = out.location(location)
    holders = unlock(where, confirm=lambda found: yes or _confirm(found), reporter=out)
    listed = [
        {key: holder.owner.get(key) for key in ("pid", "host", "since", "purpose")}
        | {"alive": holder.is_alive, "silent_seconds": holder.silent_seconds}
        for holder in holders
    ]
    document = {"schema": "edl-ckpt/unlock/1", "location": where.url, "unlocked": bool(holders), "holders": listed}
    name = escaped(where.url)
    words = [f"{name}: removed the lock of {escaped(format_holder(holder))}" for holder in holders]
    words.append(f"to finish or roll back its work: {command('recover', name)}" if holders else f"{name}: not locked")
    out.show(lambda: document, words)


def _confirm(holders: Sequence[Holder]) -> bool:
    """Show the holders and ask on a terminal; False in a script."""
    from edl_ckpt.core.state.blocked import format_holder

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    for holder in holders:
        print(f"locked by {escaped(format_holder(holder))}", file=sys.stderr)
    return agreed("Remove this lock?")
