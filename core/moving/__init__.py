"""Values on their way into a new version: each is read once, summed, and written at its planned offset."""
