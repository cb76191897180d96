"""Rows and variables looked up one by one: only the shards that can have them are opened."""
