"""Compare the content of a version with a file of digests, name by name."""

from __future__ import annotations

from edl_ckpt.core.model.versions import Version
from edl_ckpt.core.operations.verify.findings import Against, Report
from edl_ckpt.core.proof.digests import Digests
from edl_ckpt.core.proof.fingerprint import Fingerprint

_OTHER_KIND = "it is a table in one and a variable in the other: the digests are in the view of another system"


def check_against(
    version: Version, found: Fingerprint | None, wanted: Digests | None, report: Report
) -> Against | None:
    """Report the names whose content is another one than the digests say, and those that are missing.

    Names that only the version has are no fault; they are counted. Without a fingerprint all names are missing.
    """
    if wanted is None:
        return None
    variables = found.variables if found else {}
    tables = found.tables if found else {}
    differing = []
    missing = []
    equal = 0
    pairs = ((wanted.variables, variables, tables), (wanted.tables, tables, variables))
    for digests, own, other_kind in pairs:
        for name, digest in digests.items():
            message = ""
            if name in own:
                if own[name].hex() != digest:
                    message = f"its digest is {own[name].hex()}, and {digest} in {wanted.path}"
            elif name in other_kind:
                message = _OTHER_KIND
            else:
                missing.append(name)
                why = "is not in the version" if found else "could not be read whole"
                report.add("against-missing", f"{wanted.path} has it, and it {why}", path=version.path, subject=name)
                continue
            if message:
                differing.append(name)
                report.add("against-differs", message, path=version.path, subject=name)
            else:
                equal += 1
    names = wanted.variables.keys() | wanted.tables.keys()
    others = len((variables.keys() | tables.keys()) - names)
    return Against(wanted.path, len(names), equal, tuple(differing), tuple(missing), others)
