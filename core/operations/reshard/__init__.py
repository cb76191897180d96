"""Resharding: survey the ids, plan every offset, then move every value once.

A survey reads headers and ids and counts them; the plan is arithmetic on those counts, and `execute_reshard` moves the
bytes. `prepare_reshard` surveys and plans, and chooses workers and batches, for a caller with a version and a number.
"""
