"""Resharding: survey the ids, plan every offset, then move every value once.

`plan` surveys, that is, reads headers and ids and counts them; the plan is arithmetic on those counts. `execute` moves
the bytes. `prepare` surveys and plans, and chooses workers and batches, for a caller that has a version and a number.
"""
