"""`edl-ckpt verify`: checks that a version is complete and correct, and seals it on request."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.commands.early_numpy import import_numpy
from edl_ckpt.cli.manual.marks import WRITES, declared
from edl_ckpt.cli.options import common as o
from edl_ckpt.cli.options import formats, references
from edl_ckpt.cli.options.cluster import Cluster, working
from edl_ckpt.cli.options.no_versions import check_no_parent
from edl_ckpt.cli.terminal.output import Output
from edl_ckpt.cli.terminal.quantities import parse_duration
from edl_ckpt.cli.terminal.text import escaped, is_runner
from edl_ckpt.core.base.choices import Level
from edl_ckpt.core.base.errors import CorruptError, IncompleteError, UsageError
from edl_ckpt.core.base.words import command
from edl_ckpt.core.model.versions import State

if TYPE_CHECKING:
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.operations.verify.check import VerifyRun
    from edl_ckpt.core.operations.verify.fallback import Others
    from edl_ckpt.core.operations.verify.findings import ValueSample, VerifyResult
    from edl_ckpt.core.operations.verify.newest import NewestGood
    from edl_ckpt.core.storage.location import Location


@declared(
    "verify run@100 --deep",
    "verify run --all --seal",
    exits=WRITES,
    c0="no errors",
    c3="errors, or with --strict also warnings",
    c4="no errors, but the save may not have ended",
)
def verify_command(
    out: Output,
    ref: o.Ref = None,
    every: Annotated[bool, o.flag("Verify every version of the location.", "--all")] = False,
    newest: Annotated[bool, o.flag("Find the newest good version, and print its path.", "--newest")] = False,
    quick: Annotated[bool, o.flag("Read only names and headers.", "--quick")] = False,
    deep: Annotated[bool, o.flag("Also read every value, and compute the fingerprint.", "--deep")] = False,
    strict: Annotated[bool, o.flag("Treat warnings as errors.", "--strict")] = False,
    sample: Annotated[str | None, o.option("PERCENT", "Also read a random part of the values, such as 5%.")] = None,
    seed: Annotated[int | None, o.option("N", "Seed for --sample.", least=0)] = None,
    loader: Annotated[str | None, o.option("LOADER", "Predict a loader, such as torchrec or tfra:cpu.")] = None,
    world_size: Annotated[
        int | None,
        o.option("N", "With --loader: how many ranks load.", "--ranks", "--world-size", least=1),
        o.CommandLineOnly(),  # EDL_CKPT_RANKS is the number of what `reshard` and others write
    ] = None,
    like: Annotated[str | None, o.option("REF", "Expect all tables and variables of this version.")] = None,
    against: Annotated[str | None, o.option("FILE", "Expect the digests in FILE, of a job. Like --deep.")] = None,
    digests: Annotated[str | None, o.option("FILE", "Write the digest of each name to FILE. Like --deep.")] = None,
    seal: Annotated[bool, o.flag("Like --deep, and record checksums for later runs.", "--seal")] = False,
    force: Annotated[bool, o.flag("With --seal: replace an existing seal.", "--force")] = False,
    junit: Annotated[str | None, o.option("FILE", "Write a JUnit report to FILE, for CI.")] = None,
    ids: Annotated[str | None, o.option("FILE", "Write all ids with findings to FILE (.csv, .jsonl).")] = None,
    summary: Annotated[str | None, o.option("FILE", "Append a summary in Markdown to FILE, for CI.")] = None,
    grace: o.Grace = "10m",
    prometheus: o.Prometheus = False,
    csv: Annotated[bool, o.flag("Print the findings as CSV.", "--csv")] = False,  # noqa: ARG001
    jsonl: Annotated[  # noqa: ARG001
        bool, o.flag("Print each version's result as a line of JSON, as soon as it is known.", "--jsonl")
    ] = False,
    workers: o.Workers = None,
    cluster: Cluster = None,
    lock_wait: o.LockWait = "10s",
) -> None:
    """Check that a version is complete and correct.

    By default the command reads names, headers and ids. Exit code 3 means that it found errors.
    """
    import_numpy()
    from edl_ckpt.cli.render.id_file import IdFile
    from edl_ckpt.core.operations.verify.check import verify_versions
    from edl_ckpt.core.operations.verify.fallback import others_of
    from edl_ckpt.core.operations.verify.newest import newest_good

    _check_level(quick=quick, deep=deep, seal=seal, ids=ids)
    _check_digests(against or digests, quick=quick, seal=seal, several=every or newest)
    deep = deep or bool(against or digests)
    value_sample = _sampled(sample, seed, clashes=quick or deep or seal)
    loader_and_ranks = _loader(loader, world_size, clashes=seal)
    if force and not seal:
        raise UsageError("--force can only be used with --seal")
    formats.check_prometheus(out, prometheus=prometheus)
    _check_targets(junit, summary, ids, digests)
    _check_clashes(newest=newest, every=every, seal=seal, csv=out.csv, like=like)
    location, versions, latest, listing = _versions(
        out, ref, every=every or newest, grace_seconds=parse_duration(grace)
    )
    level = _level(quick=quick, deep=deep)
    found: NewestGood | None = None
    with working(out, cluster, workers) as work:
        verify = partial(
            verify_versions,
            level=level,
            seal=seal,
            use_seal=not force,
            sample=value_sample,
            loader=loader_and_ranks,
            may_be_writing=every,
            take_ids=IdFile(ids).take if ids else None,
            like=references.resolve_ref(like, out) if like else None,
            against=against,
            listing=listing,
            take=partial(_print_line, out),
            **work,
            **o.locking(out, lock_wait),
        )
        if newest:
            found = newest_good(versions, lambda version: verify([version]), level=level)
        run = verify(versions) if found is None else found.run
    _write_reports(out, run, junit, summary, digests, strict=strict, prometheus=prometheus)
    if found is not None:
        _end_newest(out, location, found, prometheus=prometheus)
        return
    if run.failed and not every:
        _, error = run.failed[0]
        raise error
    others = others_of(run, versions, latest=latest)
    _warn(out, run, others)
    if not (prometheus or out.jsonl):
        _show(out, location, run, others, every=every)
    if not versions:
        out.say(f"{escaped(location.url)}: no checkpoint, so nothing was verified")
    _end(out, run, strict=strict, every=every)


def _print_line(out: Output, result: VerifyResult) -> None:
    """Print a result as a line of JSON, where lines are asked for."""
    from edl_ckpt.cli.render import verify as render

    if out.jsonl:
        out.print_json(render.line(result), line=True)


def _warn(out: Output, run: VerifyRun, others: Others) -> None:
    """Print what could not be verified, and what is newer and not whole."""
    from edl_ckpt.cli.render import verify as render

    failed = [str(error) for _, error in run.failed]
    out.warn(*failed, *render.unfinished(others.newer))


def _show(out: Output, location: Location, run: VerifyRun, others: Others, *, every: bool) -> None:
    """Print the results of all versions, or the one result, with what one can fall back to."""
    from edl_ckpt.cli.render import verify as render

    if every:
        document = partial(render.document_all, location.url, run.results, run.failed, others)
    else:
        document = partial(render.document, run.results[0], others)
    human = render.human(run.results, every=out.shows_all(False), fallback=others.fallback)
    out.show(document, human, lambda: render.rows(run.results))


def _check_level(*, quick: bool, deep: bool, seal: bool, ids: str | None) -> None:
    """Raise UsageError for options that need more than names and headers."""
    if quick and ids:
        raise UsageError("--quick cannot be used with --ids")
    if quick and (deep or seal):
        raise UsageError("--quick cannot be used with --deep or --seal")


def _check_targets(*files: str | None) -> None:
    """Raise the error of a file that cannot be written, before hours of reading."""
    from edl_ckpt.core.storage.user_files import check_target

    for path in files:
        if path:
            check_target(path)


def _check_digests(file: str | None, *, quick: bool, seal: bool, several: bool) -> None:
    """Raise UsageError for options that do not go with digests."""
    clashes = ((quick, "--quick"), (seal, "--seal"), (several, "--all or --newest"))
    for clash, other in clashes:
        if file and clash:
            raise UsageError(f"--against and --digests cannot be used with {other}")


def _save_digests(file: str, result: VerifyResult) -> None:
    """Write the digests of a version; CorruptError where damage leaves it without a fingerprint."""
    from edl_ckpt.core.proof.digests import save_digests

    if result.content is None:
        raise CorruptError("it is damaged or not whole, so it has no digests", path=result.ref)
    save_digests(file, result.content)


def _level(*, quick: bool, deep: bool) -> Level:
    if quick:
        return "quick"
    return "deep" if deep else "default"


def _check_clashes(*, newest: bool, every: bool, seal: bool, csv: bool, like: str | None) -> None:
    """Raise UsageError for options that do not go together."""
    clashes = (
        (newest and every, "--newest", "--all"),
        (newest and csv, "--newest", "--csv"),
        (newest and seal, "--newest", "--seal"),
        (like and seal, "--like", "--seal"),
    )
    for clash, option, other in clashes:
        if clash:
            raise UsageError(f"{option} cannot be used with {other}")


def _end_newest(out: Output, location: Location, found: NewestGood, *, prometheus: bool) -> None:
    """Print the newest good version and those that were passed over; exit with 3 when there is none."""
    from edl_ckpt.cli.render import verify as render

    out.warn(*(f"{each.ref} is passed over: {each.why}" for each in found.passed_over))
    if not (prometheus or out.jsonl):
        out.show(lambda: render.newest_document(location.url, found), render.newest_human(found))
    if found.version is None:
        out.say(f"{escaped(location.url)}: no version is good")
    out.conclude(ok=found.version is not None)


def _loader(name: str | None, world_size: int | None, *, clashes: bool) -> tuple[str, int | None] | None:
    """Return the loader whose view is asked for, and its ranks."""
    ranks_alone = name is None and world_size is not None
    if ranks_alone or (name is not None and clashes):
        raise UsageError("--ranks needs --loader, and --loader cannot be used with --seal")
    if name is None:
        return None
    from edl_ckpt.core.operations.verify.loaders import loader_named

    return loader_named(name, world_size)


def _write_reports(
    out: Output,
    run: VerifyRun,
    junit: str | None,
    summary: str | None,
    digests: str | None,
    *,
    strict: bool,
    prometheus: bool,
) -> None:
    """Write what verify says to other programs, also of a run that could verify no version."""
    from edl_ckpt.cli.render import prometheus as render_prometheus
    from edl_ckpt.cli.render import verify as render

    if junit:
        render.write_report(junit, render.junit(run.results, run.failed, strict=strict))
    if summary:
        render.write_report(summary, render.summary(run.results, run.failed), append=True)
    if prometheus:
        out.write(render_prometheus.of_results(run.results, run.failed, strict=strict))
    if is_runner():
        for line in render.finding_lines(run.results):
            out.annotate(line)
    if digests and run.results:
        _save_digests(digests, run.results[0])


def _end(out: Output, run: VerifyRun, *, strict: bool, every: bool) -> None:
    """Raise the worst error, which wins over findings, or exit with 3 for findings.

    Raises IncompleteError for the one version that was asked for, where only time tells whether its save has ended.
    """
    if run.worst_error:
        raise run.worst_error
    out.conclude(ok=not any(r.has_errors or (strict and r.findings) for r in run.results))
    if every:
        return
    for result in run.results:
        if result.verdict == State.WRITING.value:
            raise IncompleteError(
                "not known to be whole: a job may still be writing it",
                path=result.ref,
                hint=f"if its save has ended: {command('verify', result.ref, '--grace', '0s')}",
            )


def _versions(
    out: Output, ref: str | None, *, every: bool, grace_seconds: float
) -> tuple[Location, tuple[Version, ...], bool, Listing | None]:
    """Return the location of a reference, and its version, or with `every` all versions of the location.

    And whether it is the version that is the newest now, and the listing that all this is from, if there is one.
    """
    from edl_ckpt.core.catalog.listing import list_versions, resolve_listed, split_version_dir

    parsed = references.parsed_ref(ref, out)
    latest = parsed.version == "latest" and not split_version_dir(parsed.location)
    if not every:
        # The newest version is checked although it is known to be damaged: else the next check would be a success.
        found = resolve_listed(parsed, reporter=out, seals=False, damaged=True, grace_seconds=grace_seconds)
        return parsed.location, (found.version,), latest, found.listing
    if not latest:
        raise UsageError("--all and --newest need a location without a version", path=ref)
    listing = list_versions(parsed.location, grace_seconds=grace_seconds)
    check_no_parent(listing)
    return parsed.location, listing.versions, False, None if listing.bound else listing


def _sampled(percent: str | None, seed: int | None, *, clashes: bool) -> ValueSample | None:
    """Return the part of the values that `--sample` asks for; UsageError for no part, or next to another level."""
    from edl_ckpt.core.operations.verify.findings import ValueSample

    if percent is None:
        if seed is not None:
            raise UsageError("--seed can only be used with --sample")
        return None
    if clashes:
        raise UsageError("--sample cannot be used with --quick, --deep or --seal")
    try:
        part = float(percent.strip().removesuffix("%"))
    except ValueError:
        part = 0.0
    if not 0 < part <= 100:
        raise UsageError(f"--sample {percent}: expected a part such as 5%")
    return ValueSample(part, int.from_bytes(os.urandom(4)) if seed is None else seed)
