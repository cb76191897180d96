"""PyTorch distributed checkpoints (DCP), with the tables of TorchRec."""
