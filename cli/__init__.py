"""The program `edl-ckpt`: options, texts, colours, exit codes. No other package imports it."""

from typing import Final

__version__: Final = "0.1.0"
