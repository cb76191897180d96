"""Copying versions to another location, byte for byte, with proof: planned, then executed under the target's lock."""
