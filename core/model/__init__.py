"""The nouns: versions, shards, variables, tables, and where their bytes are."""
