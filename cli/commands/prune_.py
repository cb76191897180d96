"""`edl-ckpt prune` deletes the versions that no rule keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.manual.marks import NOTES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options.guards import GuardOptions
from edl_ckpt.cli.options.no_versions import check_clear, check_no_parent
from edl_ckpt.cli.options.resuming import stoppable
from edl_ckpt.cli.options.rules import RuleOptions
from edl_ckpt.cli.terminal.output import Output, agreed
from edl_ckpt.cli.terminal.quantities import parse_duration
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.errors import (
    AuthError,
    EdlCkptError,
    RefusedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from edl_ckpt.core.base.words import abridged, command, counted, duration, size

if TYPE_CHECKING:
    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.moving.result import WriteResult
    from edl_ckpt.core.operations.prune.execute import PruneResult
    from edl_ckpt.core.operations.prune.plan import PrunePlan
    from edl_ckpt.core.storage.location import Location

    _Strip = Callable[..., Sequence[WriteResult]]

_LEVELS: dict[str, Level] = {"deep": "deep", "ids": "default", "quick": "quick"}
_FINISH = "run the same prune again to finish it"
_RESUME = "run the same prune again to delete them"
_SAME_CODE = (AuthError, UnavailableError, UnsupportedError)
"""Errors that a script can do something about: when all failures are of one such kind, its exit code is the prune's."""


@declared(
    "prune run --keep 5 --dry-run",
    "prune runs/a runs/b --keep-best 1 --metric auc",
    exits=NOTES,
    c3="a file could not be deleted, or a version read",
    rows=True,
)
def prune_command(
    out: Output,
    rules: RuleOptions,
    guards: GuardOptions,
    locations: o.Places = None,
    experiment: o.HiddenExperiment = None,
    max_delete: Annotated[int | None, o.option("N", "Refuse to delete more than N versions.", least=0)] = None,
    verified: Annotated[
        str | None,
        o.option("deep|ids|quick", "Verify first; damaged versions do not count."),
    ] = None,
    dry_run: o.DryRun = False,
    listed: Annotated[str, o.option("all|deleted|kept", "Which versions the plan shows.", "--list")] = "all",
    yes: Annotated[bool, o.flag("Do not ask for confirmation.", "-y")] = False,
    trash: Annotated[bool, o.flag("Move versions to the trash; `undo` restores them.")] = False,
    purge: Annotated[bool, o.flag("Also empty the trash.")] = False,
    strip_after: Annotated[
        int | None,
        o.option("N", "Strip optimizer state from all but the newest N.", least=1),
    ] = None,
    older_than: Annotated[str, o.option("DURATION", "With --purge: only older trash.")] = "0s",
    plan_out: Annotated[str | None, o.option("FILE", "Write the plan; delete only with --yes.")] = None,
    apply: Annotated[str | None, o.option("FILE", "Carry out a plan of --plan-out.")] = None,
    grace: o.Grace = "10m",
    lock_wait: o.LockWait = "10s",
) -> None:
    """Delete the versions that no rule keeps.

    The plan gives a reason for each version. Even without a rule, prune keeps the newest complete version, newer ones,
    tagged ones, ones being written, ones that `latest` names, and ones with files of others. On a terminal it asks
    before it deletes; in a script it does not. Several locations are one experiment.
    """
    from functools import partial

    from edl_ckpt.core.operations.prune.execute import execute_prune, prune
    from edl_ckpt.core.operations.prune.plan import PrunePlan, plan_prune
    from edl_ckpt.core.operations.prune.plan_file import read_plan

    places = _places(out, locations, experiment)
    policy = rules.policy(out, places)
    lifted = guards.lifted(grace_seconds=parse_duration(grace))
    asks_for_plan = bool(locations or experiment or not policy.is_empty or lifted.incomplete)
    _check_file(apply, plan_out, strip_after, yes=yes or dry_run, more=asks_for_plan, verified=verified)
    purged_age = parse_duration(older_than) if purge else None
    strips_only = bool(strip_after) and policy.is_empty and not (lifted.ask_for_deletion or purge)
    is_planned_only = dry_run or bool(plan_out and not yes)
    asks = not (yes or is_planned_only) and _can_ask()
    may_empty = yes or is_planned_only or asks
    locking = o.locking(out, lock_wait)
    strip = partial(_strip, strip_after, locking)
    confirm = partial(_confirm, out, strip=strip, trash=trash, listed=listed) if asks else None
    review = partial(_review, out, max_delete=max_delete, plan_out=plan_out, may_empty=may_empty)
    finish = partial(_strip_and_show, out, strip=strip, listed=listed, brief=asks and sys.stdout.isatty())

    plan: PrunePlan | None = None  # `prune` makes one itself, under the lock
    if apply:
        plan = replace(_with_options(out, read_plan(apply, lifted)), purge_older_than_seconds=purged_age)
    elif strips_only:
        plan = PrunePlan(tuple(places), (), (), lifted)
    else:
        make_plan = partial(plan_prune, places, policy, guards=lifted, purge_older_than_seconds=purged_age)
        if verified:
            _verify_first(out, places, make_plan, verified)
        if is_planned_only:
            plan = make_plan()
    if plan is None:
        _check_all_clear(places)
        with stoppable(out, _FINISH):
            done = prune(
                places,
                policy,
                guards=lifted,
                trash=trash,
                purge_older_than_seconds=purged_age,
                review=review,
                confirm=confirm,
                **locking,
            )
            finish(done)
        return
    review(plan)
    if is_planned_only and plan_out:
        out.say(f"to carry out the plan: {command('prune', '--apply', str(plan_out))}")
    with stoppable(out, _FINISH):
        finish(plan if is_planned_only else execute_prune(plan, trash=trash, confirm=confirm, **locking))


def _can_ask() -> bool:
    """Return True where a person reads the question and can answer it."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _check_all_clear(places: Sequence[Location]) -> None:
    """Raise NotFoundError, before anything is locked, for a place whose many names show no version."""
    for place in places:
        check_clear(place)


def _check_file(
    apply: str | None, plan_out: str | None, strip_after: int | None, *, yes: bool, more: bool, verified: str | None
) -> None:
    """Raise UsageError for options that do not go with a plan in a file."""
    if apply and more:
        raise UsageError("--apply takes locations and rules from its plan; do not give others")
    if apply and verified:
        raise UsageError("--verified is for a new plan; a plan in a file was made before")
    if apply and plan_out and not yes:
        raise UsageError("--apply and --plan-out together need --yes")
    if strip_after and (apply or plan_out):
        raise UsageError("--strip-after is no part of a plan in a file; give it with the rules")


def _verify_first(out: Output, places: Sequence[Location], make_plan: Callable[[], PrunePlan], level: str) -> None:
    """Verify the versions that a plan relies on until it relies only on those without an error; nothing is locked.

    What is found is remembered, so the next plan knows it. Raises RefusedError where it cannot be remembered.
    """
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.verify.check import verify_versions

    wanted = _LEVELS[level]
    done: set[str] = set()
    while True:
        listed = {version.path: version for place in places for version in list_versions(place).versions}
        version = _unverified(make_plan(), listed, wanted)
        if version is None:
            return
        if version.path in done:
            raise RefusedError(
                "what verify finds cannot be remembered: there is no state in the location, and no cache directory",
                path=version.path,
                hint="nothing was deleted; set XDG_CACHE_HOME to a directory that can be written",
            )
        done.add(version.path)
        run = verify_versions([version], level=wanted, reporter=out)
        for _, error in run.failed:
            raise error
        for result in run.results:
            faults = counted(len(result.findings), "finding")
            found = "without an error" if result.ok else f"{faults}, so it does not count"
            out.say(f"verified {escaped(result.ref)}: {found}")


def _unverified(plan: PrunePlan, listed: Mapping[str, Version], level: Level) -> Version | None:
    """Return the first version that a plan relies on and that was not verified at this level; None for none."""
    from edl_ckpt.core.model.verdicts import DEPTHS

    for entry in plan.relied_on:
        version = listed.get(entry.path)
        if version is None:
            continue
        verdict = version.verdict
        if verdict is None or DEPTHS[verdict.level] < DEPTHS[level]:
            return version
    return None


def _strip(
    after: int | None,
    locking: o.Locking,
    plan: PrunePlan,
    *,
    dry_run: bool = True,
    failed: list[tuple[str, EdlCkptError]] | None = None,
) -> Sequence[WriteResult]:
    """Strip old versions that a plan keeps, or only say which ones, if it is asked for."""
    failed = [] if failed is None else failed
    if not after:
        return ()
    from edl_ckpt.core.operations.convert import strip_versions

    spared = {entry.path for entry in plan.deletions}
    return strip_versions(plan.locations, after, spared=spared, dry_run=dry_run, failed=failed, **locking)


def _places(out: Output, locations: list[str] | None, experiment: str | None) -> list[Location]:
    """Return the locations to prune: those that are named, or the trials of an experiment."""
    from edl_ckpt.core.catalog.experiment import trial_locations

    if experiment is None:
        return [out.location(text) for text in locations or [""]]
    if locations:
        raise UsageError("--experiment cannot be used with LOCATION")
    return list(trial_locations(out.location(experiment)))


def _with_options(out: Output, plan: PrunePlan) -> PrunePlan:
    """Return a plan from a file, which has no storage options, with those of the command and of the configuration."""
    if others := set(plan.guards.delete) - {entry.version for entry in plan.deletions}:
        raise UsageError(f"the plan does not delete version {min(others)}", hint="make a new plan")
    places = {place: out.location(place.url) for place in plan.locations}
    entries = tuple(replace(entry, location=places[entry.location]) for entry in plan.entries)
    return replace(plan, locations=tuple(places.values()), entries=entries)


def _review(out: Output, plan: PrunePlan, *, max_delete: int | None, plan_out: str | None, may_empty: bool) -> None:
    """Print the warnings of a plan, and write it to a file; RefusedError when it deletes too many versions.

    NotFoundError for a location without versions that is above some. RefusedError is also the error for a plan that
    leaves no complete version, unless it `may_empty` a location.
    """
    from edl_ckpt.core.catalog.listing import list_versions
    from edl_ckpt.core.operations.prune.plan_file import write_plan

    planned = {entry.location for entry in plan.entries}
    for place in () if plan.only_purges else plan.locations:
        if place not in planned:
            check_no_parent(list_versions(place))
    if plan.emptied and not may_empty:
        raise RefusedError(
            f"no complete version would remain in {abridged((place.url for place in plan.emptied), 3)}",
            hint="nothing was deleted; --even-newest and --yes on the command line delete the last one too",
        )
    out.warn(*plan.warnings, always=bool(plan.deletions))
    if hint := _fresh_hint(plan):
        out.say(hint)
    plan.check_amount(max_delete)
    if plan_out:
        write_plan(plan_out, plan)


def _fresh_hint(plan: PrunePlan) -> str | None:
    """Return how to go on where a plan deletes nothing, and several versions are kept as still being written.

    One such version is what a job leaves at any time.
    """
    from edl_ckpt.core.operations.prune.guards import WRITTEN

    fresh = sum(WRITTEN in entry.reasons for entry in plan.entries)
    if plan.deletions or fresh < 2 or plan.only_purges:
        return None
    lately = duration(plan.guards.grace_seconds)
    return f"{fresh} versions changed in the last {lately}, so a job may be writing them; if none is, add: --grace 0s"


def _confirm(out: Output, plan: PrunePlan, *, strip: _Strip, trash: bool, listed: str) -> bool:
    """Show the plan where the question comes, and ask; there is nothing to ask when it changes nothing."""
    from edl_ckpt.cli.render import prune as render

    shown = render.plan_human(plan, listed=listed, folded=not out.quiet)
    out.print_human(shown, stderr=out.is_for_programs or not sys.stdout.isatty())
    steps: list[str] = []
    if plan.deletions:
        steps.append(_deletion_step(plan, trash=trash))
    if plan.purge_older_than_seconds is not None:
        steps.append("empty the trash")
    if stripped := strip(plan):
        left_out_bytes = sum(result.left_out_bytes for result in stripped)
        steps.append(f"strip {counted(len(stripped), 'version')} ({size(left_out_bytes)})")
    if not steps:
        return True
    question = " and ".join(steps)
    try:
        return agreed(f"{question[0].upper()}{question[1:]}?")
    except KeyboardInterrupt:
        print("\nNothing was deleted.", file=sys.stderr)
        raise SystemExit(130) from None


def _deletion_step(plan: PrunePlan, *, trash: bool) -> str:
    """Return what the question says of the versions that a plan deletes."""
    versions = f"{counted(len(plan.deletions), 'version')} ({size(plan.deleted_bytes)})"
    if plan.emptied:
        versions += ", the last complete one too"
    if plan.foreign:
        versions += f", foreign content too: {'; '.join(map(str, plan.foreign.values()))}"
    return f"move {versions} to the trash" if trash else f"delete {versions}"


def _strip_and_show(out: Output, done: PrunePlan | PruneResult, *, strip: _Strip, brief: bool, listed: str) -> None:
    """Strip what stays, and print a plan, or a result with the files that could not be deleted."""
    from edl_ckpt.cli.render import prune as render
    from edl_ckpt.core.operations.prune.plan import PrunePlan

    plan, result = (done, None) if isinstance(done, PrunePlan) else (done.plan, done)
    unstripped: list[tuple[str, EdlCkptError]] = []
    stripped = strip(plan, dry_run=result is None, failed=unstripped)
    out.show(
        lambda: render.document(plan, result, stripped, unstripped),
        render.human(plan, result, stripped, brief=brief, listed=listed, folded=not out.quiet),
        lambda: render.rows(plan, listed=listed),
    )
    errors = result.errors if result else ()
    for ref, error in unstripped:
        out.warn(f"{ref} was not stripped: {error}")
    for error in errors:
        out.warn(f"{error} ({error.hint})" if error.hint else str(error))
    failed = [*errors, *(error for _, error in unstripped)]
    if failed:
        _end_failed(out, failed, undeleted=len(errors), unstripped=len(unstripped))
    out.conclude(ok=not (failed or plan.unread))


def _end_failed(out: Output, failed: Sequence[EdlCkptError], *, undeleted: int, unstripped: int) -> None:
    """Say how many items and versions failed; raise the kind of all failures, where a script can act on it."""
    parts = []
    if undeleted:
        parts.append(f"{counted(undeleted, 'item')} could not be deleted")
    if unstripped:
        parts.append(f"{counted(unstripped, 'version')} could not be stripped")
    message = " and ".join(parts)
    hint = _RESUME if undeleted else None
    kinds = {type(error) for error in failed}
    kind = kinds.pop() if len(kinds) == 1 else EdlCkptError
    if kind in _SAME_CODE:
        raise kind(message, hint=hint)
    out.warn(f"{message}; {hint}" if hint else message)
