"""`edl-ckpt prune`: deletes the versions that no rule keeps."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from edl_ckpt.cli import options as o
from edl_ckpt.cli.help import examples
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import parse_duration
from edl_ckpt.core.errors import EdlCkptError, RefusedError, UsageError
from edl_ckpt.core.words import counted, size

if TYPE_CHECKING:
    from edl_ckpt.core.operations.prune.plan import PrunePlan
    from edl_ckpt.core.storage.location import Location


@examples(
    "prune run --keep 5 --dry-run",
    "prune run --keep 3 --keep-best 1 --metric auc --trash",
)
def prune_command(
    out: Output,
    rules: o.RuleOptions,
    locations: o.Places = None,
    incomplete: Annotated[
        bool, typer.Option("--incomplete", help="Also delete incomplete versions older than the newest complete one.")
    ] = False,
    delete: Annotated[
        list[int] | None,
        typer.Option(metavar="VERSION", help="Delete this version, even if mixed or invalid; may be repeated."),
        o.CommandLineOnly(),
    ] = None,
    drop_tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", help="Ignore this tag's protection; may be repeated."),
        o.CommandLineOnly(),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Delete even the newest complete version if no rule keeps it."),
        o.CommandLineOnly(),
    ] = False,
    max_delete: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Refuse to delete more than N versions.")
    ] = None,
    dry_run: o.DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    trash: Annotated[bool, typer.Option("--trash", help="Move versions to the trash; `undo` restores them.")] = False,
    purge: Annotated[bool, typer.Option("--purge", help="Also empty the trash."), o.CommandLineOnly()] = False,
    older_than: Annotated[
        str,
        typer.Option(metavar="DURATION", help="With --purge: only versions that have been in the trash for longer."),
    ] = "0s",
    plan_out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the plan to FILE, for --apply.")] = None,
    apply: Annotated[str | None, typer.Option(metavar="FILE", help="Execute a plan."), o.CommandLineOnly()] = None,
    grace: o.Grace = "10m",
    lock_wait: o.LockWait = "10s",
) -> None:
    """Delete the versions that no rule keeps.

    The plan gives the reason for each version. Even without a rule, prune keeps the newest complete version, newer
    ones, tagged ones, and ones that are still being written; --all and --drop-tag change that. Several locations are
    the trials of one experiment. On a terminal the command asks before it deletes; in a script it does not.

    Destructive options (--all, --delete, --purge, --drop-tag, --apply) can only be given on the command line.
    """
    import time

    from edl_ckpt.cli import render_prune
    from edl_ckpt.core.commit.trash import purge_all
    from edl_ckpt.core.operations.prune.execute import execute_prune, locked
    from edl_ckpt.core.operations.prune.plan import Guards, PrunePlan, make_plan

    policy = rules.policy()
    guards = Guards(incomplete, everything, tuple(delete or ()), tuple(drop_tag or ()), parse_duration(grace))
    asks_nothing = policy.is_empty and not guards.ask_for_deletion
    if apply and (locations or not asks_nothing):
        raise UsageError("--apply takes locations and rules from its plan; do not give others")
    places = [out.location(text) for text in locations or [""]]
    now, wait, age = time.time(), parse_duration(lock_wait), parse_duration(older_than)
    asks = not (yes or dry_run) and sys.stdin.isatty() and sys.stderr.isatty()
    # In a script nothing of ours may come between plan and execution; while somebody thinks, anything may.
    hold_early = not (asks or dry_run or apply)
    with locked(places if hold_early else (), wait_seconds=wait, reporter=out.reporter()):
        if apply:
            plan = _read_plan(apply, out.storage_options)
            places = list(plan.locations)
        elif purge and asks_nothing:
            plan = PrunePlan((), (), guards)
        else:
            plan = make_plan(places, policy, now, guards=guards)
        for warning in plan.warnings:
            out.warn(warning)
        _check_amount(plan, max_delete)
        if plan_out:
            _write_plan(plan_out, plan)
        if dry_run:
            out.show(lambda: render_prune.document(plan), lambda: render_prune.human(plan, places))
            return
        if asks:
            _confirm(out, plan, places, trash=trash, purge=purge)
        with locked(() if hold_early else places, wait_seconds=wait, reporter=out.reporter()):
            result = execute_prune(plan, now, trash=trash, reporter=out.reporter())
            purged = purge_all(places, older_than_seconds=age, now=now) if purge else None
    out.show(
        lambda: render_prune.document(plan, result, purged),
        lambda: render_prune.human(plan, places, result, purged, brief=asks),
    )
    problems = [*result.problems, *(purged.problems if purged else ())]
    for problem in problems:
        out.warn(problem)
    if problems:
        raise EdlCkptError(f"{counted(len(problems), 'item')} could not be deleted")


def _read_plan(path: str, options: dict[str, str]) -> PrunePlan:
    from edl_ckpt.core.operations.prune.plan_file import plan_from_json
    from edl_ckpt.core.storage.faults import storage_errors

    with storage_errors(path), open(path, encoding="utf-8") as file:
        try:
            return plan_from_json(json.load(file), options)
        except ValueError as error:
            raise UsageError(f"not a plan that prune can apply: {error}", path=path) from None


def _write_plan(path: str, plan: PrunePlan) -> None:
    from edl_ckpt.core.operations.prune.plan_file import plan_to_json
    from edl_ckpt.core.storage.faults import storage_errors

    with storage_errors(path), open(path, "w", encoding="utf-8") as file:
        json.dump(plan_to_json(plan), file, indent=1)


def _check_amount(plan: PrunePlan, limit: int | None) -> None:
    if limit is not None and len(plan.deletions) > limit:
        raise RefusedError(
            f"the plan deletes {counted(len(plan.deletions), 'version')}, more than --max-delete {limit}",
            hint="nothing was deleted; try: --dry-run to see the plan",
        )


def _confirm(out: Output, plan: PrunePlan, places: list[Location], *, trash: bool, purge: bool) -> None:
    """Show the plan and ask; raise RefusedError unless the answer is yes."""
    from edl_ckpt.cli import render_prune

    out.print_human(render_prune.plan_human(plan, places), stderr=out.json)
    if not plan.deletions and not purge:
        return
    versions = f"{counted(len(plan.deletions), 'version')} ({size(plan.deleted_bytes)})"
    steps = [f"move {versions} to the trash" if trash else f"delete {versions}"] if plan.deletions else []
    steps += ["empty the trash"] if purge else []
    question = " and ".join(steps)
    print(f"{question[0].upper()}{question[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise RefusedError("not confirmed; nothing was deleted")
