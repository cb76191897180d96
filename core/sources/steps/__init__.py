"""Versions that are directories or prefixes of steps, whose files have one or several formats."""
