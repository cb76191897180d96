"""Every name inside `.edl-ckpt-0/`, the one place beside checkpoints that ElasticDL's own scan tolerates.

The scan reads a number from each name in checkpoint_dir, and from the first name in each directory there. So each
immediate child of the state directory ends in -0; below those any name will do (`docs/format.md`, section State).
"""

from __future__ import annotations

import os
import re
from typing import Final

from edl_ckpt.core.base.patterns import LatePattern

STATE_DIR: Final = ".edl-ckpt-0"
STAGE_DIR: Final = f"{STATE_DIR}/stage-0"
"""One staging directory for each command that is writing."""
KEPT_DIR: Final = f"{STAGE_DIR}/kept-0"
"""Copies of new files of META_DIR, while a process that lost the lock may still write over them."""
TRASH_DIR: Final = f"{STATE_DIR}/trash-0"
"""One directory for each deletion that can be undone, or is being carried out."""
META_DIR: Final = f"{STATE_DIR}/meta-0"
"""Metadata and seals of versions, and the metadata of the location."""
NOTES_DIR: Final = f"{STATE_DIR}/shards-0"
"""One directory for each version that servers are saving: notes on its shards, from which the last one seals it."""
FILES_DIR: Final = f"{STATE_DIR}/files-0"
"""One directory for each copied checkpoint of Determined, by its UUID: its files other than shards, as they were."""
LOCK_FILE: Final = f"{STATE_DIR}/lock-0"
JOURNAL: Final = "journal.json"
"""In a staging directory: how the next process that takes the lock finishes a commit, rolls it back, or resumes it."""
INTERRUPTED: Final = "interrupted.json"
"""In a staging directory without a journal: what an interrupted move was about to write, and from what."""
PROGRESS: Final = "progress"
"""In a staging directory: the notes of a move on what it has moved."""
_RESUMABLE: Final = "copy-"
_DIGITS: Final = 19
_DAMAGED: Final = "damaged-"
_NAME_PART: Final = 100
_NAMED: Final = "named-"
_SEALED: Final = "sealed-"
"""The seal of a version without a number: `named-x.seal.json` is the metadata of one with the name `x.seal`."""
_SAFE: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-+=")
_MOST_STEM: Final = 200
_CUT_STEM: Final = 160
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_VERSION_FILE = re.compile(
    rf"(?:(0|[1-9][0-9]{{0,18}})|({_UUID.pattern})|({_NAMED}[A-Za-z0-9._+=%~-]+?))\.json", re.ASCII
)
_SEAL_OF_A_NAME: Final = LatePattern(rf"{_SEALED}([A-Za-z0-9._+=%~-]+?)\.json", re.ASCII)
LOCATION_FILE: Final = "location.json"
INDEX_FILE: Final = "index.json"
MANAGER_FILE: Final = "manager.json"
_VERDICTS: Final = LatePattern(r"verdicts-[0-9A-Za-z_-]{1,200}\.json", re.ASCII)


def version_file(key: int | str) -> str:
    """Return the path of a version's metadata below its location; `key` is its number, its UUID or its name.

    >>> version_file(100), version_file("weights.10-0.32")
    ('.edl-ckpt-0/meta-0/100.json', '.edl-ckpt-0/meta-0/named-weights.10-0.32.json')
    """
    return f"{META_DIR}/{_stem(key)}.json"


def _stem(key: int | str) -> str:
    """Return the name of a version's metadata without its ending: no name is that of a number, or of another file."""
    if not isinstance(key, str) or _UUID.fullmatch(key):
        return str(key)
    stem = _whole_stem(key)
    if len(stem) <= _MOST_STEM:
        return stem
    import hashlib  # few names are so long

    return f"{stem[:_CUT_STEM]}~{hashlib.blake2b(_bytes_of(key), digest_size=16).hexdigest()}"


def _whole_stem(key: str) -> str:
    return _NAMED + "".join(chr(byte) if chr(byte) in _SAFE else f"%{byte:02X}" for byte in _bytes_of(key))


def _bytes_of(key: str) -> bytes:
    return os.fsencode(key) if _is_of_disk(key) else key.encode("utf-8", "surrogatepass")


def _is_of_disk(key: str) -> bool:
    """Say whether a name has only such odd characters as names of files without an encoding have."""
    try:
        os.fsencode(key)
    except UnicodeEncodeError:
        return False
    return True


def stored_key(key: int | str) -> int | str:
    """Return what `described_key` says of the file of a version's metadata.

    >>> stored_key(100), stored_key("final"), stored_key("x" * 255)[:9]
    (100, 'named-final', 'named-xxx')
    """
    stem = _stem(key)
    return stem if stem.startswith(_NAMED) else key


def seal_file(key: int | str) -> str:
    """Return the path of a version's seal below its location; `key` is its number or its name.

    >>> seal_file(100), seal_file("weights.10-0.32")
    ('.edl-ckpt-0/meta-0/100.seal.json', '.edl-ckpt-0/meta-0/sealed-weights.10-0.32.json')
    """
    if isinstance(key, int):
        return f"{META_DIR}/{key}.seal.json"
    return f"{META_DIR}/{_SEALED}{_stem(key).removeprefix(_NAMED)}.json"


def notes_dir(version: int) -> str:
    """Return the directory of the notes on a version's shards, below its location.

    >>> notes_dir(100)
    '.edl-ckpt-0/shards-0/100'
    """
    return f"{NOTES_DIR}/{version}"


def noted_version(name: str) -> int | None:
    """Return the version that an entry of NOTES_DIR is for, None for any other name.

    >>> noted_version("100"), noted_version("0100"), noted_version("x")
    (100, None, None)
    """
    return int(name) if name.isascii() and name.isdigit() and len(name) <= _DIGITS and str(int(name)) == name else None


def metadata_owner(name: str) -> int | None:
    """Return the version whose metadata or seal a file of META_DIR has, None for any other file.

    >>> metadata_owner("100.seal.json"), metadata_owner("location.json")
    (100, None)
    """
    number, _, ending = name.partition(".")
    return noted_version(number) if ending in {"json", "seal.json"} else None


def described_key(name: str) -> int | str | None:
    """Return the stored key of the version whose metadata a file of META_DIR has, None for any other file.

    >>> described_key("100.json"), described_key("100.seal.json")
    (100, None)
    """
    match = _VERSION_FILE.fullmatch(name)
    return None if match is None else match[2] or match[3] or int(match[1])


def may_be_described(file: str, entry: str) -> bool:
    """Say whether a file of META_DIR with the name of a version may be of an entry of the location.

    A version is a directory, or files that begin with its name. A long name is cut in that of its metadata.

    >>> may_be_described("named-final.json", "final.index"), may_be_described("named-final.json", "finals")
    (True, False)
    """
    if is_seal := _SEAL_OF_A_NAME.fullmatch(file):
        file = f"{_NAMED}{is_seal[1]}.json"
    stem, _, is_cut = file.removesuffix(".json").partition("~")
    whole = _whole_stem(entry)
    return whole.startswith(stem) and (bool(is_cut) or not whole[len(stem) : len(stem) + 1].isalnum())


def is_of_a_name(file: str) -> bool:
    """Say whether a file of META_DIR is the metadata, or the seal, of a version that is known by its name."""
    if _SEAL_OF_A_NAME.fullmatch(file):
        return True
    return file.startswith(_NAMED) and _VERSION_FILE.fullmatch(file) is not None


def sealed_version(name: str) -> int | str | None:
    """Return the stored key of the version whose seal a file of META_DIR is, None for any other file.

    >>> sealed_version("100.seal.json"), sealed_version("sealed-final.json"), sealed_version("100.json")
    (100, 'named-final', None)
    """
    if of_a_name := _SEAL_OF_A_NAME.fullmatch(name):
        return f"{_NAMED}{of_a_name[1]}"
    return metadata_owner(name) if name.endswith(".seal.json") else None


def verdicts_file(identity: str) -> str:
    """Return the name of a file of verdicts.

    >>> verdicts_file("7a"), is_verdicts("verdicts-7a.json"), is_verdicts("100.json")
    ('verdicts-7a.json', True, False)
    """
    return f"verdicts-{identity}.json"


def is_verdicts(name: str) -> bool:
    """Say whether a file of META_DIR has what verify found for versions."""
    return _VERDICTS.fullmatch(name) is not None


def is_document(name: str) -> bool:
    """Say whether a file of META_DIR has metadata, of a version or of the location.

    >>> is_document("location.json"), is_document("100.json"), is_document("index.json")
    (True, True, False)
    """
    return name == LOCATION_FILE or described_key(name) is not None


def resumable_stage(key: int | str) -> str:
    """Return the staging directory of a copy: its name is fixed, so that the same copy finds it again.

    >>> resumable_stage(100), resumable_stage("final-3")
    ('.edl-ckpt-0/stage-0/copy-100', '.edl-ckpt-0/stage-0/copy-named-final-3')
    """
    return f"{STAGE_DIR}/{_RESUMABLE}{_stem(key)}"


def resumed_number(stage: str) -> int | None:
    """Return the number of the version whose copy has a staging directory; None for a name, and for any other stage.

    >>> resumed_number(resumable_stage(100)), resumed_number(resumable_stage("final-3"))
    (100, None)
    """
    name = stage.rpartition("/")[2]
    return noted_version(name.removeprefix(_RESUMABLE)) if name.startswith(_RESUMABLE) else None


def is_copy_of_a_name(stage: str) -> bool:
    """Say whether a staging directory is that of a copy of a version that is known by its name."""
    return stage.rpartition("/")[2].startswith(f"{_RESUMABLE}{_NAMED}")


def is_resumable(stage: str) -> bool:
    """Say whether a path of a staging directory is that of a copy.

    >>> is_resumable(resumable_stage(100)), is_resumable(f"{STAGE_DIR}/20261121T211600-host-7-0a1b2c3d")
    (True, False)
    """
    return stage.rpartition("/")[2].startswith(_RESUMABLE)


def is_damaged(name: str) -> bool:
    """Say whether a name in STAGE_DIR is that of something that was set aside because it could not be used.

    >>> is_damaged(damaged_name("journal.json")), is_damaged("copy-100")
    (True, False)
    """
    return name.startswith(_DAMAGED)


def damaged_name(name: str) -> str:
    """Return a new name in STAGE_DIR for something that is set aside."""
    return f"{_DAMAGED}{os.urandom(4).hex()}-{name[:_NAME_PART]}"
