"""A version, listed, opened and read."""
