"""Findings, as text and as JSON, and in files for other programs: a JUnit report, a summary in Markdown."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from edl_ckpt.cli.render.shared_tables import first_rows
from edl_ckpt.cli.terminal import text
from edl_ckpt.cli.terminal.csv_rows import Several
from edl_ckpt.cli.terminal.documents import failure, picked, rows_of
from edl_ckpt.cli.terminal.tables import PIPE, Lines, head, styled
from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import abridged
from edl_ckpt.core.model.versions import State

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from rich.console import RenderableType

    from edl_ckpt.core.model.versions import Version
    from edl_ckpt.core.operations.verify.fallback import Fallback, Others
    from edl_ckpt.core.operations.verify.findings import Finding, VerifyResult
    from edl_ckpt.core.operations.verify.newest import NewestGood

Failed = Sequence[tuple[str, EdlCkptError]]
"""References of versions that could not be verified, and why."""
_SHOWN: Final = 50
"""Findings that a summary lists of each version."""
_ANNOTATED: Final = 10
"""GitHub shows ten errors and ten warnings of a step, and drops the others."""
_SIGNS: Final = {"ok": "✅", "damaged": "❌", "suspect": "❔"}
_UNFINISHED: Final = "⏳"
_STYLES: Final = {"ok": "green", "damaged": "red", "writing": "cyan"}
_CHECKED = {
    "quick": "checked names and headers, not ids and values",
    "default": "checked names, headers and ids, not values",
    "deep": "checked every value",
}
_SAMPLED = "checked names, headers, ids and a random {:g}% of the values (seed {})"


def document(result: VerifyResult, others: Others | None = None) -> dict[str, Any]:
    """Return `edl-ckpt/verify/1`, perhaps with what its location shows besides."""
    beside = {"newer": [picked(v, "ref state") for v in others.newer], **_fallback(others)} if others else {}
    return {"schema": "edl-ckpt/verify/1", **_result(result), **beside}


def document_all(
    location: str, results: Sequence[VerifyResult], failed: Failed = (), others: Others | None = None
) -> dict[str, Any]:
    """Return `edl-ckpt/verify-all/1`: the result of each version, and the versions that could not be verified."""
    return {
        "schema": "edl-ckpt/verify-all/1",
        "location": location,
        "ok": not failed and not any(r.has_errors for r in results),
        "results": [_result(r) for r in results],
        "failed": [failure(*each) for each in failed],
        **_fallback(others),
    }


def _fallback(others: Others | None) -> dict[str, Any]:
    return {"fallback": others.fallback._asdict() if others and others.fallback else None}


def newest_document(location: str, found: NewestGood) -> dict[str, Any]:
    """Return `edl-ckpt/verify-newest/1`: the newest good version, and those that were passed over."""
    version = found.version
    return {
        "schema": "edl-ckpt/verify-newest/1",
        "location": location,
        "ok": version is not None,
        "ref": version.ref if version else None,
        "path": version.path if version else None,
        "level": found.level,
        "passed_over": [picked(each, "ref state why") for each in found.passed_over],
        "results": [_result(r) for r in found.run.results],
        "failed": [failure(*each) for each in found.run.failed],
    }


def newest_human(found: NewestGood) -> Lines:
    """Yield the path of the newest good version, and at which level it was verified."""
    if found.version is not None:
        yield styled(text.escaped(f"{found.version.path}: {found.what}"))


def unfinished(newer: Sequence[Version]) -> Iterable[str]:
    """Yield a warning about newer versions that are not whole, if there are any."""
    if newer:
        lacks = (f"{v.ref} ({v.damage or f'{v.shown_state}: ' + _why_not_whole(v)})" for v in newer)
        what = "damaged or not whole" if any(v.damage for v in newer) else "not whole"
        yield f"{'a newer version is' if len(newer) == 1 else 'newer versions are'} {what}: {abridged(lacks, 3)}"


def _why_not_whole(version: Version) -> str:
    return version.mixture or version.absent or version.why_not_good or "not only shards"


def line(done: VerifyResult | tuple[str, EdlCkptError]) -> dict[str, Any]:
    """Return the document of one version of several: `edl-ckpt/verify/1`, or `edl-ckpt/verify-failed/1`."""
    if isinstance(done, tuple):
        return {"schema": "edl-ckpt/verify-failed/1", **failure(*done)}
    return document(done)


def rows(results: Sequence[VerifyResult]) -> list[list[Any]]:
    """Return a header and a row for each finding."""
    keys = "ref severity code shard subject offset path message hint count ids"
    return rows_of(keys, (picked(f, keys, ref=r.ref, ids=Several(f.ids)) for r in results for f in r.findings))


def _result(result: VerifyResult) -> dict[str, Any]:
    keys = "ref ok state suspect path level findings fingerprint bytes_read sealed shards shards_read ids_read checks"
    keys += (
        " checksums uncompared unread_files"
        + " sample" * bool(result.sample)
        + " loader" * bool(result.loader)
        + " like" * bool(result.like)
        + " against" * bool(result.against)
    )
    ok = result.ok if result.is_whole else None
    return picked(result, keys, ok=ok, state=result.shown_state, suspect=list(result.doubts))


def human(results: Sequence[VerifyResult], *, every: bool = True, fallback: Fallback | None = None) -> Lines:
    """Yield the verdict of each version with its findings, and say what was not checked, and what else is good.

    Of very many findings the first of each version are shown, unless `every` one is wanted.
    """
    for result in results:
        outcome, comma, warnings = verdict(result).partition(", ")
        yield head(result.ref, outcome, _STYLES.get(result.verdict, "yellow")).append(comma + warnings, "yellow")
        if result.verdict == State.WRITING.value and result.doubts:
            yield styled(f"  {why_writing(result)}", "yellow")
        findings, more = first_rows(result.findings, "finding", every=every, way=PIPE)
        yield from map(_line, findings)
        yield from more
        yield from _loaded(result)
        if against := result.against:
            names = f"{text.count(against.names, 'name')} in {text.escaped(against.path)}"
            equal = f"{against.equal:,} of {names} {'is' if against.equal == 1 else 'are'} equal"
            rest = f"; {text.count(against.others, 'other name')} here compared with nothing" if against.others else ""
            yield styled(f"  {equal}{rest}")
        if result.fingerprint:
            yield styled(f"  fingerprint {result.fingerprint}")
    if results:
        said = checked(results)
        yield styled(said[:1].upper() + said[1:], "dim")
        for hint in sorted({f.hint for r in results for f in r.findings if f.hint}):
            yield styled(f"hint: {hint}", "dim")
        if fallback:
            yield from _ways_out(fallback)


def _loaded(result: VerifyResult) -> Lines:
    """Yield what a loader would do, where that was asked for."""
    view = result.loader
    if view is None:
        return
    for table in view.tables:
        restored = f"{table.restored:,} of {table.rows:,} rows of {text.escaped(table.name)} restored"
        yield f"  {view.system}, {text.count(view.world_size, 'rank')}: {restored}"
    if not view.tables and not any(finding.code == "loader-fails" for finding in result.findings):
        yield f"  {view.system}: every file would load"


def why_writing(result: VerifyResult) -> str:
    """Return why a version with all its files may still be written, and what was found in them."""
    changed = text.age(max(time.time() - result.modified, 0.0))
    found = "" if result.findings else "; all that is there reads well"
    return f"changed {changed}, and nothing says that its save has ended{found}"


def _ways_out(fallback: Fallback) -> Lines:
    """Yield the version to resume from, by its path, and a command that is useful first."""
    yield styled(f"hint: resume from {text.escaped(f'{fallback.path} ({fallback.why})')}", "dim")
    if fallback.command:
        what = "to move the tag there" if " tag add " in fallback.command else "to check its values first"
        yield styled(f"hint: {what}: {text.escaped(fallback.command)}", "dim")


def checked(results: Sequence[VerifyResult]) -> str:
    """Return what was read and what was not, of the shards that could be read."""
    read, total = sum(r.shards_read for r in results), sum(r.shards for r in results)
    if not read:
        return "no shard could be read."
    damaged = "" if all(r.ids_read for r in results) else ", except in tables whose ids are damaged"
    sample = results[0].sample
    checked = _CHECKED[results[0].level] if sample is None else _SAMPLED.format(sample.percent, sample.seed)
    compared = "" if sample else _compared(results)
    against, but = (compared, "") if compared.startswith(" ") else ("", compared)
    left = sum(len(r.unread) for r in results)
    unread = f"; {text.count(left, 'tensor')} not read" if left else ""
    checked += against + damaged + but + unread + ("" if sample else _beside(results)) + "."
    if read == total:
        return checked
    of = f" in {len(results)} versions" if len(results) > 1 else ""
    return f"{read} of {text.count(total, 'shard')}{of} could be read: {checked}"


def _beside(results: Sequence[VerifyResult]) -> str:
    """Say what was neither read nor compared with a checksum."""
    uncompared = dict.fromkeys(name for result in results for name in result.uncompared)  # versions have the same names
    unread = dict.fromkeys(name for result in results for name in result.unread_files)
    said = f"; not compared: {abridged(map(text.escaped, uncompared), 4)}" if uncompared else ""
    return said + (f"; not read: {abridged(map(text.escaped, unread), 4)}" if unread else "")


def _has_unread_seal(result: VerifyResult) -> bool:
    """Return True for a version whose seal is damaged, so that nothing was compared with it."""
    if result.sealed:
        return False
    return any(finding.code == "checksum-mismatch" and finding.check == "seal" for finding in result.findings)


def _compared(results: Sequence[VerifyResult]) -> str:
    """Say whether values were compared with a seal: reading them shows only that they can be read."""
    unsealed = [r.ref for r in results if not r.sealed]
    if results[0].level == "deep" and not unsealed:
        return " against the seal"
    if results[0].level != "deep":
        return "; add --deep to check values" if unsealed else "; --deep compares every byte with the seal"
    if any(map(_has_unread_seal, results)):
        return "; a seal cannot be read, so its version was not compared with it"
    if all(r.checksums for r in results):
        return " against the checksums in the files"
    which = "not sealed" if len(unsealed) == len(results) else f"{len(unsealed)} of {len(results)} versions not sealed"
    return f"; {which}: there is no recorded checksum to compare with (use --seal)"


def verdict(result: VerifyResult) -> str:
    """Return 'ok', or how many errors there are, and how many warnings; of what is not whole first its state."""
    counts = Counter(f.severity for f in result.findings)
    parts = [] if result.verdict == "damaged" else [result.verdict]
    parts += [text.count(counts["error"], "error")] if counts["error"] else []
    parts += [text.count(counts["warning"], "warning")] if counts["warning"] else []
    return ", ".join(parts)


def _line(finding: Finding) -> RenderableType:
    line = styled("  ").append(finding.severity, "red" if finding.severity == "error" else "yellow")
    line.append(f" {finding.code}", "bold")
    line.append(f" [{text.escaped(finding.place)}]" if finding.place else "")
    return line.append(f" {text.escaped(finding.message)}")


def write_report(path: str, content: str, *, append: bool = False) -> None:
    """Write a report to a file of the user's, or append it.

    Raises RefusedError unless it is a regular file, NoSpaceError on a full disk, EdlCkptError when writing fails.
    """
    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.user_files import check_target

    check_target(path)
    with storage_errors(path), open(path, "a" if append else "w", encoding="utf-8") as file:
        file.write(content)


def junit(results: Sequence[VerifyResult], failed: Failed = (), *, strict: bool = False) -> str:
    """Return a JUnit report: a suite for each version, and in it a case for each check, with its time.

    A case fails by its errors, with `strict` by its warnings too. A check that the level leaves out is a case that was
    skipped, and so are all cases of a version that is not whole. A version that could not be verified is a suite with
    one case in error.
    """
    from xml.etree import ElementTree as ET

    suites = ET.Element("testsuites", name="edl-ckpt verify")
    for result in results:
        _add_suite(suites, result, strict=strict)
    for ref, reason in failed:
        suite = ET.SubElement(suites, "testsuite", name=text.escaped(ref), tests="1", failures="0", errors="1")
        case = ET.SubElement(suite, "testcase", classname=text.escaped(ref), name="verify", time="0")
        message = text.escaped(str(reason))
        ET.SubElement(case, "error", type=reason.id, message=message).text = text.escaped(reason.hint or "")
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _add_suite(suites: Element, result: VerifyResult, *, strict: bool) -> None:
    from xml.etree import ElementTree as ET

    from edl_ckpt.core.operations.verify.findings import CHECKS

    ref = text.escaped(result.ref)
    suite = ET.SubElement(suites, "testsuite", name=ref)
    made = {check.name: check.seconds for check in result.checks}
    failures = 0
    for name in CHECKS:
        case = ET.SubElement(suite, "testcase", classname=ref, name=name, time=f"{made.get(name, 0.0):.3f}")
        of_check = [finding for finding in result.findings if finding.check == name]
        faults = [finding for finding in of_check if strict or finding.severity == "error"]
        if not result.is_whole:
            why = "; ".join([finding.message for finding in of_check] or result.doubts)
            message = f"{result.verdict}: {why}" if why else result.verdict
            ET.SubElement(case, "skipped", message=text.escaped(message))
        elif faults:
            failures += 1
            codes = ", ".join(sorted({finding.code for finding in faults}))
            message = f"{text.count(len(faults), 'finding')}: {codes}"
            failure = ET.SubElement(case, "failure", type=faults[0].code, message=message)
            failure.text = "\n".join(map(_case_line, faults))
        elif name not in made:
            why = "the version has no seal" if name == "seal" else f"not made at the level {result.level}"
            ET.SubElement(case, "skipped", message=why)
    skipped = len(suite.findall("testcase/skipped"))
    seconds = sum(made.values())
    counts = {"tests": len(CHECKS), "failures": failures, "errors": 0, "skipped": skipped, "time": f"{seconds:.3f}"}
    suite.attrib.update({key: str(count) for key, count in counts.items()})


def _case_line(finding: Finding) -> str:
    return text.escaped(f"{finding.severity} {finding.code} [{finding.place}] {finding.message} ({finding.path})")


def summary(results: Sequence[VerifyResult], failed: Failed = ()) -> str:
    """Return a summary in Markdown, for the page of a CI job: a row for each version, and its findings below."""
    rows = [
        [_md(r.ref), f"{_sign(r)} {verdict(r)}", r.level, "yes" if r.sealed else "no", r.fingerprint or ""]
        for r in results
    ]
    rows += [[_md(ref), f"{_SIGNS['damaged']} {_md(str(reason))}", "", "", ""] for ref, reason in failed]
    lines = _table("### edl-ckpt verify", "version result level sealed fingerprint", rows)
    for result in filter(lambda r: r.findings, results):
        rows = [
            [f"{f.severity} {f.code}", *map(_md, (f.shard, f.subject, f.offset, f.message))]
            for f in result.findings[:_SHOWN]
        ]
        lines += ["", *_table(f"#### {_md(result.ref)}", "finding shard subject byte message", rows)]
        if (more := len(result.findings) - _SHOWN) > 0:
            lines += ["", f"and {text.count(more, 'more finding')}"]
    return "\n".join([*lines, "", ""])


def _sign(result: VerifyResult) -> str:
    return _SIGNS.get(result.verdict, _UNFINISHED)


def finding_lines(results: Sequence[VerifyResult]) -> Iterator[str]:
    """Yield an annotation for each finding of verify, as many as are shown; errors come first."""
    for severity in ("error", "warning"):
        found = [(result.ref, f) for result in results for f in result.findings if f.severity == severity]
        for ref, finding in found[:_ANNOTATED]:
            place = f" [{finding.place}]" if finding.place else ""
            yield text.annotation(severity, f"{ref}{place}: {finding.message}", finding.code)


def _table(title: str, header: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown below its title."""
    columns = header.split()
    return [title, "", *(f"| {' | '.join(row)} |" for row in (columns, ["---"] * len(columns), *rows))]


def _md(words: object) -> str:
    """Return words that Markdown and HTML show as they are: a name in a checkpoint is anybody's. None is ''."""
    shown = "" if words is None else text.escaped(str(words))
    return "".join(c if c.isalnum() or c in " ,.;/@+-" else f"&#{ord(c)};" for c in shown)
