"""The names of tensors where a step has several indexes: those of one index never depend on which others there are.

A job may save its model and its optimizer each in a directory of its own, and later an average of the model beside
them. The names of the model and of the optimizer are as they are; all others begin with their directories.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

_MAIN: Final = re.compile(r"(?:pytorch_)?model(?:_fsdp)?(?:_[0-9]+)?|optim(?:izer)?s?(?:_[0-9]+)?")
"""The directories of models and optimizers, as TorchEasyRec, Accelerate and Transformers name them."""


def prefix_of(folder: str) -> str:
    """Return what names of an index begin with where its directory, with a slash at its end, is not a main one.

    >>> prefix_of("dense_ema/"), prefix_of("model/"), prefix_of("a/optimizer_0/"), prefix_of("")
    ('dense_ema.', '', '', '')
    """
    last = folder.rstrip("/").rpartition("/")[2]
    return folder.replace("/", ".") if folder and not _MAIN.fullmatch(last) else ""


def shown_names(stored: Mapping[str, Collection[str]]) -> dict[str, dict[str, str]]:
    """Return the names of tensors by those in their indexes, by the directories of these, which end with a slash.

    An index alone has the names that it has. Where two main directories have one name, it begins with theirs in both.

    >>> shown_names({"model/": ["w", "v"], "optimizer/": ["w"], "ema/": ["v"]})["model/"]
    {'w': 'model.w', 'v': 'v'}
    """
    if len(stored) < 2:
        return {folder: {name: name for name in names} for folder, names in stored.items()}
    main = [folder for folder in stored if not prefix_of(folder)]
    counts = Counter(name for folder in main for name in set(stored[folder]))
    twice = {name for name, count in counts.items() if count > 1}
    found: dict[str, dict[str, str]] = {}
    for folder, names in stored.items():
        own, whole = prefix_of(folder), folder.replace("/", ".")
        found[folder] = {name: (whole if not own and name in twice else own) + name for name in names}
    return found
