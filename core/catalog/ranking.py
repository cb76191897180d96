"""Versions ranked by their metrics: the better end of each, and the best version by it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import suppress

from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.model.listings import Listing
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.metric_modes import mode_of, rank


def ranked(versions: Iterable[Version], metric: str, mode: str) -> list[Version]:
    """Return the good versions that have a value of a metric, the best first.

    Equal values: the newer version first. NaN and missing values are left out: they never win.
    """
    measured = [v for v in versions if v.is_good and not math.isnan(v.metrics.get(metric, math.nan))]
    return sorted(measured, key=lambda v: (rank(v.metrics[metric], mode), -v.version))


def known_mode(listing: Listing, metric: str) -> str | None:
    """Return which values of a metric are better, None when that is not known."""
    with suppress(UsageError):
        return mode_of(metric, None, listing.modes)
    return None


def best_versions(listing: Listing, metrics: Iterable[str]) -> dict[str, Version]:
    """Return, by metric, its best version; a metric without a known mode has none."""
    modes = {name: mode for name in metrics if (mode := known_mode(listing, name))}
    orders = {name: ranked(listing.versions, name, mode) for name, mode in modes.items()}
    return {name: order[0] for name, order in orders.items() if order}
