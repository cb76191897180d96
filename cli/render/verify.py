"""Findings, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edl_ckpt.cli.render.shared_tables import first_rows
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.documents import failure, picked, rows_of
from edl_ckpt.cli.terminal.tables import PIPE, Lines, head, styled
from edl_ckpt.core.base.errors import EdlCkptError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from edl_ckpt.core.operations.verify.findings import Finding, VerifyResult

_CHECKED = {
    "quick": "names and headers were read; ids and values were not",
    "default": "names, headers and every id were read; values were not",
    "deep": "every id and every value was read",
}


def document(result: VerifyResult) -> dict[str, Any]:
    """Return `edl-ckpt/verify/1`."""
    return {"schema": "edl-ckpt/verify/1", **_result(result)}


def document_all(
    location: str, results: Sequence[VerifyResult], failed: Sequence[tuple[str, EdlCkptError]] = ()
) -> dict[str, Any]:
    """Return `edl-ckpt/verify-all/1`: the result of each version, and the versions that could not be verified."""
    return {
        "schema": "edl-ckpt/verify-all/1",
        "location": location,
        "ok": not failed and all(r.ok for r in results),
        "results": [_result(r) for r in results],
        "failed": [failure(*each) for each in failed],
    }


def line(done: VerifyResult | tuple[str, EdlCkptError]) -> dict[str, Any]:
    """Return the document of one version of several: `edl-ckpt/verify/1`, or `edl-ckpt/verify-failed/1`."""
    if isinstance(done, tuple):
        return {"schema": "edl-ckpt/verify-failed/1", **failure(*done)}
    return document(done)


def rows(results: Sequence[VerifyResult]) -> list[list[Any]]:
    """Return a header and a row for each finding."""
    keys = "ref severity code shard subject offset path message hint"
    return rows_of(keys, (picked(f, keys, ref=r.ref) for r in results for f in r.findings))


def _result(result: VerifyResult) -> dict[str, Any]:
    keys = "ref ok level findings fingerprint bytes_read sealed shards shards_read ids_read checks"
    return picked(result, keys)


def human(results: Sequence[VerifyResult], *, every: bool = True) -> Lines:
    """Yield the verdict of each version with its findings, and say what was not checked.

    Of very many findings the first of each version are shown, unless `every` one is wanted.
    """
    for result in results:
        yield _verdict(result)
        findings, more = first_rows(result.findings, "finding", every=every, way=PIPE)
        yield from map(_line, findings)
        yield from more
        if result.fingerprint:
            yield styled(f"  fingerprint {result.fingerprint}")
    if results:
        yield styled(checked(results), "dim")
        hints = {f.hint for r in results for f in r.findings if f.hint}
        for hint in sorted(hints):
            yield styled(f"hint: {hint}", "dim")


def checked(results: Sequence[VerifyResult]) -> str:
    """Return what was read and what was not, of the shards that could be read."""
    read, total = sum(r.shards_read for r in results), sum(r.shards for r in results)
    if not read:
        return "no shard could be read."
    damaged = "" if all(r.ids_read for r in results) else ", except in tables whose ids are damaged"
    checked = _CHECKED[results[0].level] + damaged + _compared(results) + "."
    if read == total:
        return checked
    of = f" in {len(results)} versions" if len(results) > 1 else ""
    return f"{read} of {text.count(total, 'shard')}{of} could be read; in {'it' if read == 1 else 'them'}, {checked}"


def _compared(results: Sequence[VerifyResult]) -> str:
    """Say whether values were compared with a seal: reading them shows only that they can be read."""
    unsealed = [r.ref for r in results if not r.sealed]
    if results[0].level == "deep" and not unsealed:
        return " and compared with the seal"
    if results[0].level != "deep":
        return "" if unsealed else "; --deep compares every byte with the seal"
    if any(f.code == "checksum-mismatch" for r in results if not r.sealed for f in r.findings):
        return "; a seal cannot be read, so its version was not compared with it"
    which = "not sealed" if len(unsealed) == len(results) else f"{len(unsealed)} of {len(results)} versions not sealed"
    return f"; {which}: there is no recorded checksum to compare with (use --seal)"


def verdict(result: VerifyResult) -> str:
    """Return 'ok', or how many errors there are, and how many warnings."""
    counts = Counter(f.severity for f in result.findings)
    parts = [text.count(counts["error"], "error") if counts["error"] else "ok"]
    parts += [text.count(counts["warning"], "warning")] if counts["warning"] else []
    return ", ".join(parts)


def _verdict(result: VerifyResult) -> RenderableType:
    words, comma, warnings = verdict(result).partition(", ")
    return head(result.ref, words, "green" if result.ok else "red").append(comma + warnings, "yellow")


def _line(finding: Finding) -> RenderableType:
    line = styled("  ").append(finding.severity, "red" if finding.severity == "error" else "yellow")
    line.append(f" {finding.code}", "bold")
    line.append(f" [{text.escaped(finding.place)}]" if finding.place else "")
    return line.append(f" {text.escaped(finding.message)}")
