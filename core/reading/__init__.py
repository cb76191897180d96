"""A version opened: its variables, and the rows of its tables."""
