"""Modes of metrics: whether higher or lower values of one are better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from edl_ckpt.core.base.choices import Mode
from edl_ckpt.core.base.errors import (
    UsageError,
)

MODES: Final = ("max", "min")
_KNOWN_MODES: Final = {"loss": "min", "mse": "min", "error": "min", "auc": "max", "accuracy": "max"}


def mode_of(metric: str, asked: str | None, modes: Mapping[str, str]) -> Mode:
    """Return 'max' or 'min', the better end of a metric: the mode asked for, the declared one, or that of its name.

    Known names are loss, mse and error (min), auc and accuracy (max); the last part of a name counts. Raises UsageError
    for other names: a guess could delete the best version.

    >>> mode_of("output/loss", None, {}), mode_of("f1", None, {"f1": "max"})
    ('min', 'max')
    """
    if asked is not None:
        return check_mode(asked)
    mode = modes.get(metric) or _KNOWN_MODES.get(metric.rpartition("/")[2].lower())
    if mode is None:
        raise UsageError(
            f"metric {metric!r}: is higher or lower better?",
            hint=f"use --mode max or --mode min, or declare it once: edl-ckpt metrics mode [LOCATION] {metric} max|min",
        )
    return cast("Mode", mode)


def check_mode(mode: str) -> Mode:
    """Return 'max' or 'min'; UsageError for anything else."""
    if mode not in MODES:
        raise UsageError(f"mode must be max or min, got {mode!r}")
    return cast("Mode", mode)


def rank(value: float, mode: str) -> float:
    """Return a sort key that puts better values first; the caller leaves out NaN.

    >>> sorted([0.2, 0.9], key=lambda v: rank(v, "max"))
    [0.9, 0.2]
    """
    return -value if mode == "max" else value
