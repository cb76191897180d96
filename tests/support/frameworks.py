"""Libraries that the tests of other frameworks need, each where it is installed."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest


def need(name: str) -> Any:
    """Return a library, or skip and say how to get it."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    root = name.partition(".")[0]
    other = {"torch": "tensorflow", "tensorflow": "torch"}.get(root)
    if other in sys.modules:
        pytest.skip(f"{root} crashes in a process with {other}: run `pytest -m frameworks -k {root}`")
    return pytest.importorskip(name, reason=f"{root} is not installed: pip install {root}", exc_type=ImportError)
