"""The program `edl-ckpt`: options, texts, colours, exit codes. No other package imports it."""

from edl_ckpt.core import __version__

__all__ = ["__version__"]
