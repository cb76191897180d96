"""Files for other programs: a JUnit report, a summary in Markdown; and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from edl_ckpt.cli.render.verify import verdict
from edl_ckpt.cli.terminal import text
from edl_ckpt.core.base.errors import EdlCkptError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    from edl_ckpt.core.operations.verify.findings import Finding, VerifyResult

Failed = Sequence[tuple[str, EdlCkptError]]
"""References of versions that could not be verified, and why."""
_SHOWN: Final = 50
"""Findings that a summary lists of each version."""


def write_report(path: str, content: str, *, append: bool = False) -> None:
    """Write a report to a file of the user's, or append it.

    Raises RefusedError for what is no regular file, NoSpaceError on a full disk, EdlCkptError when writing fails.
    """
    from edl_ckpt.core.storage.faults import storage_errors
    from edl_ckpt.core.storage.regular import check_target

    check_target(path)
    with storage_errors(path), open(path, "a" if append else "w", encoding="utf-8") as file:
        file.write(content)


def junit(results: Sequence[VerifyResult], failed: Failed = (), *, strict: bool = False) -> str:
    """Return a JUnit report: a suite for each version, and in it a case for each check, with its time.

    A case fails by its errors, with `strict` by its warnings too. A check that the level leaves out is a case that was
    skipped. A version that could not be verified is a suite with one case in error.
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
        found = [f for f in result.findings if f.check == name and (strict or f.severity == "error")]
        if found:
            failures += 1
            message = text.count(len(found), "finding") + ": " + ", ".join(sorted({f.code for f in found}))
            ET.SubElement(case, "failure", type=found[0].code, message=message).text = "\n".join(map(_line, found))
        elif name not in made:
            ET.SubElement(case, "skipped", message=_why_skipped(name, result))
    for key, value in {
        "tests": len(CHECKS),
        "failures": failures,
        "errors": 0,
        "skipped": len(suite.findall("testcase/skipped")),
        "time": f"{sum(made.values()):.3f}",
    }.items():
        suite.set(key, str(value))


def _why_skipped(check: str, result: VerifyResult) -> str:
    return "the version has no seal" if check == "seal" else f"not made at the level {result.level}"


def _line(finding: Finding) -> str:
    return text.escaped(f"{finding.severity} {finding.code} [{finding.place}] {finding.message} ({finding.path})")


def summary(results: Sequence[VerifyResult], failed: Failed = ()) -> str:
    """Return a summary in Markdown, for the page of a CI job: a row for each version, and its findings below."""
    lines = ["### edl-ckpt verify", "", "| version | result | level | sealed | fingerprint |", "|---|---|---|---|---|"]
    for result in results:
        sealed = "yes" if result.sealed else "no"
        fingerprint = f"<code>{result.fingerprint}</code>" if result.fingerprint else ""
        lines.append(f"| {_md(result.ref)} | {_verdict(result)} | {result.level} | {sealed} | {fingerprint} |")
    lines += [f"| {_md(ref)} | ❌ {_md(str(reason))} | | | |" for ref, reason in failed]
    for result in results:
        lines += _finding_lines(result)
    return "\n".join([*lines, "", ""])


def _verdict(result: VerifyResult) -> str:
    return ("✅ " if result.ok else "❌ ") + verdict(result)


def _finding_lines(result: VerifyResult) -> Iterable[str]:
    if not result.findings:
        return
    yield from (
        "",
        f"#### {_md(result.ref)}",
        "",
        "| finding | shard | subject | byte | message |",
        "|---|---|---|---|---|",
    )
    for finding in result.findings[:_SHOWN]:
        shard, offset = ("" if n is None else str(n) for n in (finding.shard, finding.offset))
        cells = (f"{finding.severity} {finding.code}", shard, _md(finding.subject), offset, _md(finding.message))
        yield f"| {' | '.join(cells)} |"
    more = len(result.findings) - _SHOWN
    if more > 0:
        yield from ("", f"and {text.count(more, 'more finding')}")


def _md(words: str) -> str:
    """Return words that Markdown and HTML show as they are: a name in a checkpoint is anybody's."""
    return "".join(c if c.isalnum() or c in " ,.;/@+-" else f"&#{ord(c)};" for c in text.escaped(words))
