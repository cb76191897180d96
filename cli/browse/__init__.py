"""The browser of `edl-ckpt browse`: screens over the engine's results. It reads and never writes.

`work` runs the engine in threads, `source` is what screens ask of it, `grid` draws rows that are read as they are seen,
`page` is what all screens share. Only `app` and what it imports need Textual.
"""
