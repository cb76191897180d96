"""Checkpoints of torch_checkpointing, Meta's library: a file for each item and rank, and what joins them."""
