"""Names for what this process makes: when, on which host, by which process, and a random part."""

from __future__ import annotations

import functools
import os
import re
import time
from contextlib import suppress


@functools.cache
def kernel_id() -> str:
    """Return a digest of this boot and this process namespace; containers may share a host's name."""
    import hashlib  # it loads OpenSSL, and few commands make a name

    parts: list[str] = []
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        parts.append(file.read().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return hashlib.blake2b(" ".join(parts).encode(), digest_size=4).hexdigest()


def new_id() -> str:
    """Return a unique name: time, host, process and a random part."""
    moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    return f"{moment}-{host_name()}-{os.getpid()}-{os.urandom(4).hex()}"


def host_name() -> str:
    """Return this host and its `kernel_id` in letters, digits and underscores, as names contain it."""
    return re.sub(r"[^A-Za-z0-9]", "_", os.uname().nodename)[:64] + "_" + kernel_id()


def user_name() -> str:
    """Return the user whose rights this process has, by name where the system knows one, and this host."""
    import pwd

    user = str(os.geteuid())
    with suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    return f"{user}@{os.uname().nodename}"
