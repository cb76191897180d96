"""`edl-ckpt verify`: checks that a version is complete and correct, and seals it on request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from edl_ckpt.cli.help import examples
from edl_ckpt.cli.options import LockWait, Ref, Workers, locked, parsed_ref
from edl_ckpt.cli.output import Output
from edl_ckpt.cli.text import escaped

if TYPE_CHECKING:
    from edl_ckpt.core.errors import EdlCkptError
    from edl_ckpt.core.format.model import Version
    from edl_ckpt.core.operations.verify.findings import VerifyResult


@examples(
    "verify run@100 --deep",
    "verify run --all --seal",
)
def verify_command(
    out: Output,
    ref: Ref = None,
    every: Annotated[bool, typer.Option("--all", help="Verify every version of the location.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Read only names and headers.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Also read every value, and compute the fingerprint.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False,
    seal: Annotated[
        bool, typer.Option("--seal", help="Like --deep, and record checksums for later runs to compare with.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="With --seal: replace an existing seal.")] = False,
    junit: Annotated[str | None, typer.Option(metavar="FILE", help="Write a JUnit report to FILE, for CI.")] = None,
    workers: Workers = None,
    lock_wait: LockWait = "10s",
) -> None:
    """Check that a version is complete and correct.

    By default the command reads names, headers and ids. Exit code 3 means that it found errors.
    """
    from edl_ckpt.cli import render_verify
    from edl_ckpt.core.checkpoint.catalog import list_versions, resolve, split_version_dir
    from edl_ckpt.core.errors import UsageError

    if quick and (deep or seal):
        raise UsageError("--quick cannot be used with --deep or --seal")
    if force and not seal:
        raise UsageError("--force can only be used with --seal")
    parsed = parsed_ref(ref, out)
    if every and (parsed.version != "latest" or split_version_dir(parsed.location)):
        raise UsageError("--all needs a location without a version", path=ref)
    versions = list_versions(parsed.location).versions if every else (resolve(parsed),)
    level = "quick" if quick else "deep" if deep or seal else "default"
    results, failed = _verify_each(out, versions, level, workers, go_on=every, ignore_seal=force)
    if seal:
        results = _seal(out, versions, results, lock_wait)
    if junit:
        render_verify.write_junit(junit, results, strict=strict, failed=failed)
    out.show(
        lambda: (
            render_verify.document_all(parsed.location.url, results, failed)
            if every
            else render_verify.document(results[0])
        ),
        lambda: render_verify.human(results),
    )
    if not versions:
        out.say(f"{escaped(parsed.location.url)}: no checkpoint, so nothing was verified")
    if failed:  # an error wins over findings, the worst over the others
        raise max((error for _, error in failed), key=lambda error: error.exit_code)
    if any(not r.ok or (strict and r.findings) for r in results):
        raise SystemExit(3)


def _verify_each(
    out: Output, versions: Iterable[Version], level: str, workers: int | None, *, go_on: bool, ignore_seal: bool
) -> tuple[list[VerifyResult], list[tuple[str, EdlCkptError]]]:
    """Return the results; with `go_on`, also the errors of versions that could not be verified."""
    from edl_ckpt.core.errors import EdlCkptError
    from edl_ckpt.core.operations.verify import verify_version

    results: list[VerifyResult] = []
    failed: list[tuple[str, EdlCkptError]] = []
    reporter = out.reporter()
    for version in versions:
        try:
            results.append(
                verify_version(
                    version,
                    level=level,
                    workers=workers,
                    reporter=reporter,
                    use_seal=not ignore_seal,
                )
            )
        except EdlCkptError as error:
            if not go_on:
                raise
            out.warn(str(error))
            failed.append((version.ref, error))
    return results, failed


def _seal(out: Output, versions: Sequence[Version], results: Sequence[VerifyResult], wait: str) -> list[VerifyResult]:
    """Seal each version that has a fingerprint and no seal; return the results with those sealed."""
    from dataclasses import replace

    from edl_ckpt.core.operations.verify import seal_version

    found = {version.ref: version for version in versions}
    done: list[VerifyResult] = []
    for result in results:
        if result.fingerprint is not None and not result.sealed:
            with locked(out, found[result.ref].location, "verify --seal", wait):
                seal_version(
                    found[result.ref],
                    result.fingerprint,
                    reporter=out.reporter(),
                )
            done.append(replace(result, sealed=True))
            continue
        if result.fingerprint is None:
            out.warn(f"{result.ref}: not sealed, because shards are missing or damaged")
        done.append(result)
    return done
