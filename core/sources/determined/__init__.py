"""Determined: where its experiments keep checkpoints, how it names them, and what it records with each.

The shards in its directories are those of the system that a trial saved with. Its rules of retention are a policy of
`operations/prune`, made of rules as any other policy is.
"""
