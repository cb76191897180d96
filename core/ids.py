"""Names for what this process makes: when, on which host, by which process, and a random part."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import secrets
import time
from contextlib import suppress


@functools.cache
def _kernel() -> str:
    """Return what tells one boot and one space of process numbers from another: containers may share a host's name."""
    parts: list[str] = []
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts.append(file.read().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=4).hexdigest()


def new_id() -> str:
    """Return a name for something of ours: when, which host and process, and chance."""
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{moment}-{_host_in_id()}-{os.getpid()}-{secrets.token_hex(4)}"


def _host_in_id() -> str:
    return re.sub(r"[^A-Za-z0-9]", "_", os.uname().nodename)[:64] + "_" + _kernel()
