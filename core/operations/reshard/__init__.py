"""Resharding: survey the ids, plan every offset, then move every value once."""
