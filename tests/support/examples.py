"""How many examples Hypothesis tries: few in the suite, and as many times more as EDL_CKPT_TEST_EXAMPLES says."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("EDL_CKPT_TEST_EXAMPLES", "1"))


def examples(count: int) -> settings:
    """Return settings by which a test tries so many examples in the suite."""
    return settings(max_examples=count * TIMES)
