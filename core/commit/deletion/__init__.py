"""How a version is deleted so that it can be undone."""
