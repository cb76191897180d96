"""The engine: save, load and transform checkpoints; imports neither typer nor rich."""
