"""Random tables as PyTorch and FBGEMM store them in 8 and 4 bits: quantized.py ROWS.npz OUT.npz.

It runs under a Python that has torch and fbgemm_gpu, as a program.
"""

import sys

import fbgemm_gpu  # noqa: F401 - its operators are registered
import numpy as np
import torch

FORMS = {
    "int8-fbgemm": torch.ops.quantized.embedding_bag_byte_prepack,
    "int4-fbgemm": torch.ops.quantized.embedding_bag_4bit_prepack,
    "int8-f16": lambda rows: torch.ops.fbgemm.FloatToFusedNBitRowwiseQuantizedSBHalf(rows, 8),
}
with np.load(sys.argv[1]) as given:
    rows = [torch.from_numpy(given[f"arr_{number}"]) for number in range(len(given.files))]
np.savez(
    sys.argv[2],
    **{f"{number} {name}": form(table).numpy() for number, table in enumerate(rows) for name, form in FORMS.items()},
)
