"""Resharding: survey the ids, plan every offset, then move every value once.

`survey` reads headers and ids and counts; `plan` is arithmetic on those counts; `settings` are workers and batches;
`execute` moves the bytes. `prepare` does the first three for a caller that has a version and a number.
"""
