"""A file of digests: the fingerprint of a content, and the digest of each of its names.

A job writes one of the state that it has, and `verify --against` compares a checkpoint with it. docs/fingerprint.md has
the definition of the digests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from edl_ckpt.core.base.errors import CorruptError, UsageError
from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.base.words import counted, describe
from edl_ckpt.core.proof.fingerprint import PREFIX, Fingerprint
from edl_ckpt.core.state.document import MAX_SUMS_BYTES, parse_document
from edl_ckpt.core.storage.faults import storage_errors
from edl_ckpt.core.storage.user_files import check_target, open_input

SCHEMA: Final = "edl-ckpt/digests/1"
_DIGEST: Final = LatePattern(r"[0-9a-f]{64}")
_FINGERPRINT: Final = LatePattern(PREFIX + r"[0-9a-f]{64}(\+[0-9a-f]{32})?")


@dataclass(frozen=True, slots=True)
class Digests:
    """What a file of digests says; a digest has 64 hexadecimal digits."""

    path: str
    fingerprint: str
    variables: Mapping[str, str]
    """Of variables and items."""
    tables: Mapping[str, str]

    def __repr__(self) -> str:
        names = counted(len(self.variables) + len(self.tables), "name")
        return describe("Digests", self.path, self.fingerprint, names)


def digests_document(fingerprint: Fingerprint) -> dict[str, Any]:
    """Return `edl-ckpt/digests/1` of a content."""
    variables = {name: digest.hex() for name, digest in sorted(fingerprint.variables.items())}
    tables = {name: digest.hex() for name, digest in sorted(fingerprint.tables.items())}
    return {"schema": SCHEMA, "fingerprint": fingerprint.text, "variables": variables, "tables": tables}


def save_digests(path: str, fingerprint: Fingerprint) -> None:
    """Write the digests of a content to a file, which is replaced whole. In a job one rank does that.

    Raises RefusedError unless it is a regular file, and the errors of writing.
    """
    check_target(path)
    text = json.dumps(digests_document(fingerprint), indent=1) + "\n"
    part = f"{path}.{os.getpid()}.part"
    with storage_errors(path):
        try:
            with open(part, "w", encoding="ascii") as file:
                file.write(text)
            os.replace(part, path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)


def read_digests(path: str) -> Digests:
    """Return what a file of digests says.

    Raises CorruptError for a file that is none or is damaged, UnsupportedError for one of a newer edl-ckpt, and the
    errors of reading.
    """
    with storage_errors(path), open_input(path, "rb") as file:
        data = file.read(MAX_SUMS_BYTES + 1)
    try:
        document = parse_document(data, path, limit=MAX_SUMS_BYTES)
    except UsageError as error:
        raise CorruptError(error.message, path=path, hint=_MADE_BY) from None
    fingerprint = document.get("fingerprint")
    variables, tables = (_digests(document.get(key)) for key in ("variables", "tables"))
    is_ours = document.get("schema") == SCHEMA and isinstance(fingerprint, str) and _FINGERPRINT.fullmatch(fingerprint)
    if not is_ours or variables is None or tables is None:
        raise CorruptError(f"no file of digests: expected the schema {SCHEMA!r}", path=path, hint=_MADE_BY)
    return Digests(path, str(fingerprint), variables, tables)


_MADE_BY: Final = (
    "edl_ckpt.torch.fingerprint in a job, `verify --digests FILE` and `export --digests FILE` write such files"
)


def _digests(value: Any) -> dict[str, str] | None:
    """Return digests by their names; None where a value is no such object."""
    if not isinstance(value, dict):
        return None
    if not all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in value.values()):
        return None
    return value
