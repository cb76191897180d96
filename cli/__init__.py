"""The program `edl-ckpt`: flags, wording, colours, exit codes. Nothing imports it."""

from typing import Final

__version__: Final = "0.1.0"
