"""Results of the engine as text, as JSON and as rows: a module for each kind of result."""
