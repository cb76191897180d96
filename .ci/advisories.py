"""Read the report of pip-audit (`-f json`): end with 1 when an installed package has a known vulnerability.

A package that the database does not know is named. Without any answer of the database there is nothing to judge, and
the reason is printed: a machine without that network passes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(path: Path) -> int:
    """Print what the report says, and return the exit code."""
    if not path.is_file() or not path.stat().st_size:
        print("skipped: pip-audit made no report; the database of advisories cannot be reached from here")
        return 0
    packages = json.loads(path.read_text(encoding="utf-8"))["dependencies"]
    audited = [p for p in packages if "vulns" in p]
    unknown = [p["name"] for p in packages if "vulns" not in p]
    if not audited:
        print(f"skipped: the database of advisories knows none of {len(packages)} packages; it is out of reach")
        return 0
    if unknown:
        print(f"not audited: {', '.join(unknown)}")
    found = [(p["name"], p["version"], v) for p in audited for v in p["vulns"]]
    for name, version, advisory in found:
        fixed = ", ".join(advisory["fix_versions"]) or "no version"
        print(f"{name} {version}: {advisory['id']}, fixed in {fixed}")
    print(f"{len(audited)} packages audited, {len(found)} advisories")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
