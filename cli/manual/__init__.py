"""The help, the man pages and the reference in `docs/`, all from one description of each command."""
