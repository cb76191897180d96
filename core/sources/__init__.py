"""Checkpoint systems that we can read: a folder for each one."""
