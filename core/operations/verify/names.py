"""The faults that the names of a version show, and those that stop a scan of its location; no file is opened."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Final

from edl_ckpt.core.base.errors import EdlCkptError
from edl_ckpt.core.base.words import abridged, base_name, missing_shards
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import BEING_WRITTEN, MISSING_LISTED, State, Version
from edl_ckpt.core.operations.verify.findings import Report
from edl_ckpt.core.sources.elasticdl.loader import names_listed, scan_crashes, takes_for_whole
from edl_ckpt.core.sources.systems import system_named
from edl_ckpt.core.state.shard_note import mixture
from edl_ckpt.core.storage import Store

_COUNTS: Final = 20


def check_names(store: Store, version: Version, *, beside: bool, listing: Listing | None = None) -> Report:
    """Report what names show: those of the shards, of the notes on them, and of what is `beside` the version.

    A `listing` of the location, if there is one, saves a look at it.
    """
    report = Report()
    with report.checking("names"):
        _check_listing(version, report)
        if why := mixture(store, version):
            report.add("mixed-runs", why, path=version.path)
        is_scanned = system_named(version.layout.system).scans_locations and not version.is_alone
        if beside and is_scanned:
            _check_location(store, version, listing, report)
    return report


def _check_listing(version: Version, report: Report) -> None:
    """Report the faults that names alone show."""
    _report_extra_files(version, report)
    if version.state is State.MIXED:
        _report_mixed_counts(version, report)
        return
    for doubt in version.doubts:
        if doubt != BEING_WRITTEN:  # time alone settles that one
            report.add("suspect", f"it may not be whole: {doubt}", path=version.path)
    writing = " (the version changed a moment ago: a job may be writing it)" if version.state is State.WRITING else ""
    for words in version.lacks:
        report.add("missing-file", words + writing, path=version.path)
    if version.lacks:
        return
    if version.ps_num is None:
        report.add("missing-shard", "the version has no shard", path=version.path)
    _report_missing_shards(version, writing, report)


def _report_extra_files(version: Version, report: Report) -> None:
    taken = hint = ""
    if takes_for_whole(version):
        taken = "; ElasticDL counts it as a shard, so it may take this version for whole and restore a part"
        hint = "move the file away: ElasticDL counts every file as a shard"
    for name in version.extra:
        message = f"{name!r} is not a shard of this version{taken}"
        report.add("extra-file", message, path=version.path, subject=name, hint=hint)


def _report_mixed_counts(version: Version, report: Report) -> None:
    """Report how many shards there are of each number of shards."""
    counts: dict[int, set[int]] = {}
    for shard in version.shards:
        counts.setdefault(shard.ps_num, set()).add(shard.ps_id)
    parts = [f"{len(ids)} of {ps_num}" for ps_num, ids in sorted(counts.items())]
    whole = [ps_num for ps_num, ids in counts.items() if len(ids) == ps_num]
    extra = f"; the set of {whole[0]} is complete" if len(whole) == 1 else ""
    message = f"the shards have different ps_num: {abridged(parts, _COUNTS)}{extra}"
    report.add("mixed-ps-num", message, path=version.path)


def _report_missing_shards(version: Version, writing: str, report: Report) -> None:
    """Report each missing shard, or where many are missing each gap between the files."""
    gaps: Iterable[range] = version.missing_ranges
    if version.missing_count <= MISSING_LISTED:
        gaps = (range(ps_id, ps_id + 1) for ps_id in version.missing)
    ps_num = version.ps_num or 0
    for gap in gaps:
        subject = version.layout.shard_file(gap.start, ps_num)
        if len(gap) > 1:
            subject += f" to {version.layout.shard_file(gap.stop - 1, ps_num)}"
        report.add(
            "missing-shard",
            missing_shards([gap], version.ps_num) + writing,
            path=version.path,
            subject=subject,
        )


def _check_location(store: Store, version: Version, listing: Listing | None, report: Report) -> None:
    """Report the names on which ElasticDL's scan of the whole location raises an exception, whatever the version is."""
    known: dict[str, Collection[str] | None] = {}  # a request less for each of them
    if not version.uuid:
        known[base_name(version.path)] = version.names_inside
    if listing is not None:
        known |= names_listed(listing)

    def inside(entry: str) -> Collection[str] | None:
        if entry in known:
            return known[entry]
        with suppress(EdlCkptError):
            found = store.names(entry)
            return None if not found and os.path.isfile(store.path(entry)) else found
        return ()

    names = store.names("") if listing is None else {*known, *(entry.name for entry in listing.foreign)}
    for crashing in scan_crashes(names, inside):
        where = " where a directory lists it first" if "/" in crashing else ""
        message = f"ElasticDL stops at this name when it looks for the newest version{where}"
        report.add("scan-crash", message, path=version.location.url, subject=crashing)
