"""Rollback and checkpoints of elastic training in the sense of TorchElastic: a state, a manager, one training loop."""
