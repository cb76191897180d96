"""`edl-ckpt version` prints the versions of the program and its libraries."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Final

from edl_ckpt.cli import __version__
from edl_ckpt.cli.manual.marks import declared
from edl_ckpt.cli.terminal.output import Output

_LIBRARIES: Final = (
    "numpy",
    "protobuf",
    "typer",
    "rich",
    "fsspec",
    "xxhash",
    "botocore",
    "google-crc32c",
    "pyarrow",
    "torch",
)


@declared("version", "version --json")
def version_command(out: Output) -> None:
    """Print the versions of the program and its libraries.

    `edl-ckpt --version` prints the version alone.
    """
    from edl_ckpt.core.kernel import bulk

    kernel = "compiled" if bulk.kernel is not None else "numpy"
    libraries = _installed()
    document = {
        "schema": "edl-ckpt/version/1",
        "version": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "kernel": kernel,
        "libraries": libraries,
    }
    present = [f"{name} {version}" for name, version in libraries.items() if version]
    words = f"{kernel} kernel, Python {document['python']}, {document['platform']}"
    out.show(lambda: document, [f"edl-ckpt {__version__} ({words})", f"with {', '.join(present)}"])


def _installed() -> Mapping[str, str | None]:
    """Return the versions of the libraries that it can use; None for one that is not installed. None is imported."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found
