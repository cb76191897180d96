"""Take the check of the runtime's version out of generated modules: `python proto/strip_check.py FILE...`.

protoc writes a check that refuses every runtime older than itself. The modules use nothing that protobuf 3.20 lacks, so
they run in the environment of each TensorFlow since 2.12. A matrix in CI tries them with each major version.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_IMPORT = "from google.protobuf import runtime_version as _runtime_version\n"
_CHECK = re.compile(r"_runtime_version\.ValidateProtobufRuntimeVersion\(\n.*?\n\)\n", re.DOTALL)


def stripped(module: str) -> str:
    """Return the text of a generated module without the check."""
    return _CHECK.sub("", module.replace(_IMPORT, ""))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(stripped(path.read_text(encoding="utf-8")), encoding="utf-8")
