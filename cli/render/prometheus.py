"""Metrics in the text format of Prometheus, for the textfile collector of its node exporter."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.model.versions import DAMAGED, SUSPECT, State

if TYPE_CHECKING:
    from edl_ckpt.cli.render.verify import Failed
    from edl_ckpt.core.model.listings import Listing
    from edl_ckpt.core.operations.verify.findings import VerifyResult

_ABOUT: Final = {
    "location_readable": "Whether the location and all of its versions could be read.",
    "versions": "Versions of the location by state.",
    "size_bytes": "Bytes of all versions of the location.",
    "latest_version": "Number of the newest complete version.",
    "latest_modified_timestamp_seconds": "When the newest complete version was written.",
    "latest_size_bytes": "Bytes of the newest complete version.",
    "latest_sealed": "Whether the newest complete version is sealed.",
    "latest_metric": "Metrics of the newest complete version.",
    "best_version": "Number of the best complete version by the metric.",
    "best_metric": "The metric of the best complete version.",
    "list_timestamp_seconds": "When the location was listed.",
    "verify_ok": "Whether the version is whole, and verify found no error in it; absent while it is being written.",
    "verify_state": "The state of the version, as `list` shows it.",
    "verify_findings": "Findings of verify in the version.",
    "verify_sealed": "Whether the version has a seal.",
    "verify_bytes_read": "Bytes that verify read of the version.",
    "verify_check_seconds": "How long each check of the version took.",
    "verify_timestamp_seconds": "When the version was verified.",
}
"""Every metric, without its prefix `edl_ckpt_`; all are gauges."""


class _Gauges:
    """Samples by metric, because all of one metric must stand together."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {name: [] for name in _ABOUT}

    def add(self, metric: str, value: float, /, **labels: str) -> None:
        # A name that is not UTF-8 is escaped before it is quoted.
        quoted = {key: escaped(text).replace("\\", r"\\").replace('"', r"\"") for key, text in labels.items()}
        named = ",".join(f'{key}="{text}"' for key, text in quoted.items())
        self._lines[metric].append(f"edl_ckpt_{metric}{{{named}}} {_number(value)}\n")

    def text(self) -> str:
        """Return all metrics that have a sample."""
        return "".join(
            f"# HELP edl_ckpt_{name} {_ABOUT[name]}\n# TYPE edl_ckpt_{name} gauge\n{''.join(lines)}"
            for name, lines in self._lines.items()
            if lines
        )


def of_listings(listings: Sequence[Listing], unread: Iterable[str] = ()) -> str:
    """Return what `list --prometheus` prints: numbers of each location, never a series for each version.

    `unread` are the locations that could not be listed.
    """
    samples = _Gauges()
    for listing in listings:
        _add_listing(samples, listing)
    for location in unread:
        samples.add("location_readable", 0, location=location)
        samples.add("list_timestamp_seconds", time.time(), location=location)
    return samples.text()


def _add_listing(samples: _Gauges, listing: Listing) -> None:
    from edl_ckpt.core.base.errors import EdlCkptError
    from edl_ckpt.core.catalog.listing import best_version, pick

    location = listing.location.url
    samples.add("location_readable", not listing.unread, location=location)
    samples.add("list_timestamp_seconds", time.time(), location=location)
    states = Counter(version.shown_state for version in listing.versions)
    for state in (*State, DAMAGED, SUSPECT):
        samples.add("versions", states[state], location=location, state=str(state))
    samples.add("size_bytes", sum(v.size_bytes for v in listing.versions), location=location)
    with suppress(EdlCkptError):  # no version is complete
        latest = pick(listing, "latest")
        if latest.number is not None:
            samples.add("latest_version", latest.number, location=location)
        samples.add("latest_modified_timestamp_seconds", latest.modified, location=location)
        samples.add("latest_size_bytes", latest.size_bytes, location=location)
        samples.add("latest_sealed", bool(latest.fingerprint), location=location)
        for name, value in sorted(latest.metrics.items()):
            samples.add("latest_metric", value, location=location, metric=name)
    for name in sorted({name for version in listing.versions for name in version.metrics}):
        with suppress(EdlCkptError):  # nobody has said which end of the metric is the better one
            best = best_version(listing, name)
            if best.number is not None:
                samples.add("best_version", best.number, location=location, metric=name)
            samples.add("best_metric", best.metrics[name], location=location, metric=name)


def of_results(results: Sequence[VerifyResult], failed: Failed = (), *, strict: bool = False) -> str:
    """Return what `verify --prometheus` prints; a version that could not be verified is not ok."""
    samples = _Gauges()
    for result in results:
        ref = result.ref
        if result.verdict != State.WRITING.value:  # neither ok nor not, until its save has ended
            samples.add("verify_ok", result.ok and not (strict and result.findings), ref=ref)
        samples.add("verify_state", 1, ref=ref, state=result.shown_state)
        for (severity, code), count in sorted(Counter((f.severity, f.code) for f in result.findings).items()):
            samples.add("verify_findings", count, ref=ref, severity=severity, code=code)
        samples.add("verify_sealed", result.sealed, ref=ref)
        samples.add("verify_bytes_read", result.bytes_read, ref=ref)
        for check in result.checks:
            samples.add("verify_check_seconds", check.seconds, ref=ref, check=check.name)
        samples.add("verify_timestamp_seconds", time.time(), ref=ref)
    for ref, _ in failed:
        samples.add("verify_ok", 0, ref=ref)
        samples.add("verify_timestamp_seconds", time.time(), ref=ref)
    return samples.text()


def _number(value: float) -> str:
    """Return a number as Prometheus reads it.

    >>> _number(True), _number(1790000000.25), _number(-math.inf), _number(math.nan)
    ('1', '1790000000.25', '-Inf', 'NaN')
    """
    if isinstance(value, float):
        return {math.inf: "+Inf", -math.inf: "-Inf"}.get(value) or ("NaN" if math.isnan(value) else repr(value))
    return str(int(value))
