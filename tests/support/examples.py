"""How many examples Hypothesis tries: few in the suite, and as many times more as EDL_CKPT_TEST_EXAMPLES says."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

TIMES = int(os.environ.get("EDL_CKPT_TEST_EXAMPLES", "1"))
UNCHECKED = (
    HealthCheck.function_scoped_fixture,
    HealthCheck.filter_too_much,
    HealthCheck.data_too_large,
    HealthCheck.too_slow,
)
"""What is no fault of a test: chance decides the second and the third, and a busy machine the last."""


def examples(count: int) -> settings:
    """Return settings by which a test tries so many examples in the suite."""
    return settings(max_examples=count * TIMES)
