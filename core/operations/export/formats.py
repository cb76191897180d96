"""All formats of exports. To add one, write its class and add it to `_FORMATS`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from edl_ckpt.core.errors import UnsupportedError, UsageError
from edl_ckpt.core.operations.export.arrays import NpyDirectory, Npz, Safetensors
from edl_ckpt.core.operations.export.frameworks import Parquet, TensorFlow, Torch
from edl_ckpt.core.operations.export.interface import ExportFormat, ExportRequest
from edl_ckpt.core.operations.export.merged import MergedCheckpoint
from edl_ckpt.core.operations.export.text import Csv, JsonLines, Projector, Word2Vec
from edl_ckpt.core.words import meant

_FORMATS: Final[tuple[type[ExportFormat], ...]] = (
    MergedCheckpoint,
    Safetensors,
    Npz,
    NpyDirectory,
    Csv,
    JsonLines,
    Word2Vec,
    Projector,
    Parquet,
    Torch,
    TensorFlow,
)
FORMATS: Final[Mapping[str, type[ExportFormat]]] = {each.traits.name: each for each in _FORMATS}
"""Every format by its name."""
_BY_ENDING: Final = {ending: each.traits.name for each in _FORMATS for ending in each.traits.endings}


def guess_format(output: str) -> str:
    """Return the name of the format that the ending of a path chooses; UsageError when there is none.

    >>> guess_format("model.safetensors"), guess_format("arrays.npy")
    ('safetensors', 'npy')
    """
    ending = os.path.splitext(output.rstrip("/"))[1].lower()
    if ending not in _BY_ENDING:
        raise UsageError(f"no format has the ending of {output!r}", hint=f"choose one: --format {'|'.join(FORMATS)}")
    return _BY_ENDING[ending]


def new_format(name: str, request: ExportRequest) -> ExportFormat:
    """Return a format for a request; UsageError for an unknown name, or a request that the format cannot fulfil."""
    if name not in FORMATS:
        raise UsageError(f"no format {name!r}; expected one of {', '.join(FORMATS)}", hint=meant(name, FORMATS))
    chosen = FORMATS[name]
    if request.limit is not None and not chosen.traits.takes_limit:
        limited = sorted(each.traits.name for each in _FORMATS if each.traits.takes_limit)
        raise UsageError(f"--limit is for {', '.join(limited)}")
    if request.executor is not None and request.executor.elsewhere and not chosen.traits.spreads:
        spread = sorted(each.traits.name for each in _FORMATS if each.traits.spreads)
        raise UnsupportedError(
            f"a cluster cannot export as {name}",
            hint=f"without --cluster, this machine exports it; a cluster writes {', '.join(spread)}",
        )
    return chosen(request)
