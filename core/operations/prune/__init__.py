"""Deleting the versions that no rule keeps: rules, guards, plans, and their execution."""
