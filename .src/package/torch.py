"""PyTorch: what a job does with its own state. It needs PyTorch, which the extra `edl-ckpt[torch]` installs.

>>> import edl_ckpt.torch
>>> found = edl_ckpt.torch.fingerprint(model.state_dict())  # on all ranks
>>> found.text
'edl1:...'
"""

from edl_ckpt.core.adapters.torch import to_state_dict, to_tensor, to_variables
from edl_ckpt.core.adapters.torch_fingerprint import JobFingerprint, fingerprint
from edl_ckpt.core.proof.digests import save_digests

__all__ = ["JobFingerprint", "fingerprint", "save_digests", "to_state_dict", "to_tensor", "to_variables"]
