"""Secrets stay secret: what looks like one on the command line, and the stream that never prints one.

No message, plan or file of ours has a storage option in it. The stream is the second line of defence. It also covers
what other libraries print: errors about arguments, tracebacks, logs.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from edl_ckpt.core.base.patterns import LatePattern

_SECRET: Final = LatePattern(
    r"secret|token|passw|passphrase|credential|private|account_key|connection_string", re.IGNORECASE
)
_ENVIRONMENT: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_VARIABLES: Final[Mapping[str, str]] = {"secret": "AWS_SECRET_ACCESS_KEY", "token": "AWS_SESSION_TOKEN"}
_LEAST_CHARACTERS: Final = 8
"""Shorter values are words: to blank them out would make every other message unreadable."""


def is_secret(name: str) -> bool:
    """Say whether a storage option of this name is a secret.

    >>> is_secret("key"), is_secret("session_token"), is_secret("endpoint_url")
    (True, True, False)
    """
    return name == "key" or _SECRET.search(name) is not None


def check_arguments(arguments: Iterable[str]) -> None:
    """Raise UsageError for an argument with a password in a URL, before anything can repeat it."""
    for word in arguments:
        if "://" in word:  # else the help would wait for all of storage to be imported
            from edl_ckpt.core.storage.location import check_no_password

            check_no_password(word)


def hide_arguments(arguments: Iterable[str]) -> None:
    """Hide the secrets on the command line and in AWS's variables from all that is printed on stderr from now on."""
    pairs = (word.removeprefix("--storage-option=").partition("=") for word in arguments)
    named = [value for name, _, value in pairs if is_secret(name)]
    hide([*named, *(os.environ.get(name, "") for name in _ENVIRONMENT)])


def hide_section(section: object) -> None:
    """Hide the credentials in a section of a configuration file, and in its tables, whatever else is wrong with it."""
    if isinstance(section, Mapping):
        for name, value in section.items():
            hide_section(value)
            if isinstance(value, str) and (name == "access_key" or _SECRET.search(name)):
                hide([value])


def exposed(options: Iterable[str]) -> str | None:
    """Return a warning about the first secret among storage options that stand on the command line, None without one.

    >>> exposed(["profile"])
    >>> exposed(["key", "secret"])[:60]
    'other users of this machine can read --storage-option secret'
    """
    for name in options:
        if _SECRET.search(name):
            readable = f"other users of this machine can read --storage-option {name} in the list of processes"
            return f"{readable}; set {_VARIABLES.get(name, 'EDL_CKPT_STORAGE_OPTION')} instead"
    return None


def hide(values: Iterable[str]) -> None:
    """Replace these values by *** in all that is printed on stderr from now on."""
    values = {value for value in values if len(value) >= _LEAST_CHARACTERS}
    if isinstance(sys.stderr, _Discreet):
        sys.stderr.hidden |= values
    elif values:
        sys.stderr = _Discreet(sys.stderr, values)


class _Discreet:
    """A text stream that prints *** for each hidden value."""

    def __init__(self, stream: Any, hidden: set[str]) -> None:
        self._stream = stream
        self.hidden = hidden

    def write(self, text: str) -> int:
        """Write text without the hidden values."""
        for value in self.hidden:
            text = text.replace(value, "***")
        self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
