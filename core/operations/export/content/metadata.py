"""What an export says of its version, next to the values."""

from __future__ import annotations

import json

from edl_ckpt.core.model.fingerprint import PREFIX
from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.state.metadata import json_number


def metadata_of(version: Version) -> dict[str, str]:
    """Return the texts about a version; a fingerprint of zeros stands for the one that is not known yet."""
    if version.unread is not None and version.metadata_fault:
        why = f"its metrics cannot be read now: {version.unread.message}"
        raise version.unread.kind(why, path=version.ref)
    metrics = {name: json_number(value) for name, value in version.metrics.items()}
    return {
        "schema": "edl-ckpt/export/1",
        "version": "" if version.number is None else str(version.number),
        "fingerprint": PREFIX + "0" * 64,
        "metrics": json.dumps(metrics),
    }
