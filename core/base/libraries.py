"""Optional libraries are imported where they are used: each one is an extra of the package."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.words import extra_hint


def library(name: str, extra: str) -> Any:
    """Return an optional library; UnsupportedError names the extra that installs it."""
    if name.partition(".")[0] == "tensorflow":
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # it writes to stderr at import
    try:
        return import_module(name)
    except ImportError:
        raise UnsupportedError(f"{name} is not installed", hint=extra_hint(extra)) from None
