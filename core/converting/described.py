"""The dtype that Hugging Face's config.json still names after a cast of the values: a warning says so.

Such a file is carried as it is. `from_pretrained(dtype="auto")` believes it, and casts the values back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

from edl_ckpt.core.converting.changes import OutVariable
from edl_ckpt.core.reading.reader import Checkpoint

_CONFIG: Final = "config.json"
_KEYS: Final = ("dtype", "torch_dtype")
_MOST_BYTES: Final = 1 << 20


def stale_dtypes(source: Checkpoint, carried: Iterable[str], variables: Iterable[OutVariable]) -> Iterator[str]:
    """Yield a sentence for each carried config.json whose dtype no floating tensor has any more."""
    configs = [name for name in carried if name.rpartition("/")[2] == _CONFIG]
    if not configs:
        return
    written = {variable.dtype.name for variable in variables if "float" in variable.dtype.name}
    for name in configs:
        said = _said(source, name)
        if said and written and said not in written:
            yield (
                f"{name} still says {said}, and the tensors are {' and '.join(sorted(written))} now:"
                f' change its "dtype", or load with an explicit one'
            )


def _said(source: Checkpoint, name: str) -> str:
    """Return the dtype in a config.json; '' where it says none, or cannot be read."""
    reader = source.files[source.version.path_of(name)]
    if reader.size_bytes > _MOST_BYTES:
        return ""
    try:
        document = json.loads(bytes(reader.read(0, reader.size_bytes)))
    except (ValueError, RecursionError):
        return ""
    texts = [document.get(key) for key in _KEYS] if isinstance(document, dict) else []
    return next((text for text in texts if isinstance(text, str)), "")
