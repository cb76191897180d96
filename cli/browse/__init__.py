"""The browser of `edl-ckpt browse`: screens over the engine's results. It changes something only after a question.

`source` runs the engine in threads for the screens, `grid` draws rows that are read as they are seen,
`page` is what all screens share. Only `app` and what it imports need Textual.
"""
