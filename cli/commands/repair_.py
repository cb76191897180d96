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
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.words import command

if TYPE_CHECKING:
    from edl_ckpt.core.state.owner import Holder


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

    Both copies are read first. A file is taken if the version's seal names its bytes, if both seals have the same
    fingerprint, or if all other files of the two are equal. Damaged files go to the trash, and what was written is read
    back.
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


@declared("recover run", "recover s3://models/run --drop-copies", exits=NOTES, c3="something could not be settled")
def recover_command(
    out: Output,
    location: o.Place = None,
    drop_copies: Annotated[bool, o.flag("Also discard interrupted copies.")] = False,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Finish or undo the work of killed commands.

    Every command that writes to a location does this first. Interrupted copies are kept, so that they can resume. It
    leaves whatever it cannot resolve untouched and exits with 3; the output suggests a next step.
    """
    from edl_ckpt.core.commit.repair.recovery import recover

    where = out.location(location)
    done = recover(where, drop_copies=drop_copies, **o.locking(out, lock_wait))
    lists = {"done": list(done.done), "kept": list(done.kept), "left": list(done.left)}
    kept, left = (f"kept: {text}" for text in done.kept), (f"unresolved: {text}" for text in done.left)
    words = [f"{escaped(where.url)}: {escaped(text)}" for text in (*done.done, *kept, *left)]
    out.show(
        lambda: {"schema": "edl-ckpt/recover/1", "location": where.url, **lists},
        words or [f"{escaped(where.url)}: nothing to recover"],
    )
    out.conclude(ok=not done.left)


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
