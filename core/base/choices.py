"""The words that each parameter may be, as types: so a type checker finds a wrong one, too."""

from __future__ import annotations

from typing import Literal

LayoutName = Literal["design", "elasticdl"]
"""How directories and files of a version are named."""
Level = Literal["quick", "default", "deep"]
"""How much `verify` reads: headers, also ids, or every value."""
ToolFormat = Literal["safetensors", "npz", "npy", "csv", "jsonl", "word2vec", "projector", "parquet", "torch"]
FormatName = Literal["checkpoint", ToolFormat, "tensorflow", "dcp", "tfra", "dynamicemb", "torch-checkpointing"]
"""What `export` writes."""
Mode = Literal["max", "min"]
"""Whether higher or lower is better for a metric."""
