r"""The number in a name: only by a spelling that a system uses, each a row of the tables here.

`docs/names-of-versions.md` shows the tables to users. A name of any other spelling has no number: the last digits of a
name may be a loss, a date, a learning rate or a width. No digits behind a point or in front of one are a number.
"""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple

MOST: Final = 2**63 - 1
"""The largest number: 19 digits. Longer ones are names without a number."""
_N: Final = r"0*([0-9]{1,19})"
_AND: Final = r"[-_=]?"
_HAS_DIGIT: Final = re.compile("[0-9]").search
"""A name without a digit has no number; the path of a location often has none, and then no spelling is compiled."""


class Spelling(NamedTuple):
    """A family of names: who writes them, names as its systems write them, and the pattern with the number."""

    family: str
    systems: str
    examples: tuple[str, ...]
    pattern: str


DIRECTORIES: Final = (
    Spelling("step", "torchtitan, torchtune, OLMo", ("step-100", "step_100", "step100"), rf"steps?{_AND}{_N}"),
    Spelling("whole step", "OLMo", ("step100-unsharded",), rf"step{_AND}{_N}-unsharded"),
    Spelling("global step", "DeepSpeed, verl", ("global_step100", "global_step_100"), rf"global_?step{_AND}{_N}"),
    Spelling("checkpoint-N", "transformers", ("checkpoint-500",), rf"checkpoint[-=]?{_N}"),
    Spelling("checkpoint_N", "Accelerate, Flax, Ray", ("checkpoint_3", "checkpoint_000010"), rf"checkpoint_{_N}"),
    Spelling("ckpt", "tf.train.CheckpointManager", ("ckpt-100",), rf"ckpt{_AND}{_N}"),
    Spelling("model.ckpt", "tf.train.Saver, Estimator, DeepRec", ("model.ckpt-100",), rf"model\.ckpt{_AND}{_N}"),
    Spelling("iteration", "Megatron-LM, xtuner", ("iter_0000100", "iteration_100"), rf"iter(?:ation)?{_AND}{_N}"),
    Spelling("epoch", "torchtune", ("epoch_3", "epoch-3", "epoch3"), rf"epoch{_AND}{_N}"),
    Spelling(
        "epoch and step",
        "Colossal-AI, torchtnt",
        ("epoch0-step100", "epoch_0_step_100", "epoch_0_train_step_100"),
        rf"epoch{_AND}[0-9]+[-_](?:train_)?step{_AND}{_N}",
    ),
    Spelling("epoch and batch", "Composer", ("ep0-ba100", "ep0-ba100-rank0"), rf"ep[0-9]+-ba{_N}(?:-rank[0-9]+)?"),
    Spelling(
        "step=N",
        "Lightning",
        ("epoch=3-step=100", "bert-epoch=3-step=100-loss=0.32"),
        rf"(?:.*-)?step={_N}(?:-[^=]+=.*)?",
    ),
    Spelling("step=N, another time", "Lightning", ("epoch=3-step=100-v1",), rf"(?:.*-)?step={_N}-v[0-9]+"),
    Spelling(
        "step=N, the last",
        "NeMo",
        ("gpt--loss=2.1-step=100-consumed_samples=800.0-last", "gpt-step=100-last"),
        rf"(?:.*-)?step={_N}(?:-[^=]+=.*)?-last",
    ),
    Spelling(
        "epoch=N",
        "Lightning",
        ("epoch=3", "bert-epoch=3-loss=0.32"),
        rf"(?:.*[-_])?epoch={_N}(?:-(?!step=)[^=]+=.*)?",
    ),
    Spelling("step and ckp", "fms-fsdp", ("step_1000_ckp",), rf"step_{_N}_ckp"),
    Spelling("cp", "TensorFlow's tutorials", ("cp-0003",), rf"cp-{_N}"),
    Spelling(
        "checkpoint of an epoch",
        "OpenPCDet, timm",
        ("checkpoint_epoch_3", "checkpoint-epoch-3"),
        rf"(?:checkpoint|ckpt)[-_]epoch{_AND}{_N}",
    ),
    Spelling(
        "checkpoint of a step",
        "custom loops",
        ("checkpoint_step_100", "ckpt-step-100"),
        rf"(?:checkpoint|ckpt)[-_]step{_AND}{_N}",
    ),
    Spelling("number alone", "Orbax, SavedModel, nanotron", ("100", "0000100"), _N),
)
"""Spellings of directories, and of what the files of a bundle share; upper case counts as lower case.

An ending `.ckpt` may follow each.
"""
PREFIXES: Final = (
    Spelling("prefix and number", "tf.train", ("model-100", "my_model.ckpt-100", "-100"), rf"(?:.*[^-.0-9=])?-{_N}"),
)
"""Further spellings of what the files of a bundle share: TensorFlow appends a hyphen and the number to any prefix.

Behind another number, as in `weights-10-32` or `2024-01-02`, it is none.
"""


def _compiled(spellings: tuple[Spelling, ...]) -> re.Pattern[str]:
    """Return one pattern for all spellings, which the name of a location's every entry is held against."""
    every = "|".join(f"(?:{one.pattern})" for one in spellings)
    return re.compile(rf"(?:{every})(?:\.ckpt)?", re.ASCII | re.IGNORECASE | re.DOTALL)


@functools.cache  # compiled when a name is first asked for: it takes 4 ms
def _directory() -> re.Pattern[str]:
    return _compiled(DIRECTORIES)


@functools.cache
def _prefix() -> re.Pattern[str]:
    return _compiled((*DIRECTORIES, *PREFIXES))


def number_of_directory(name: str) -> int | None:
    """Return the number in the name of a step's directory; None for a name of another kind.

    >>> [number_of_directory(name) for name in ("step_30", "iter_0000100", "epoch=3-step=200.ckpt", "7", "-7", "fp16")]
    [30, 100, 200, 7, None, None]
    """
    return _of_directory(name) if _HAS_DIGIT(name) else None


def number_of_prefix(name: str) -> int | None:
    """Return the number in what the files of a bundle share; None for a name of another kind.

    >>> [number_of_prefix(name) for name in ("model-7", "cp-0003.ckpt", "weights.10-0.32", "actor", "2024-01-02")]
    [7, 3, None, None, None]
    """
    return _of_prefix(name) if _HAS_DIGIT(name) else None


@functools.lru_cache(maxsize=4096)  # a listing asks several times of one name
def _of_directory(name: str) -> int | None:
    return _number(_directory().fullmatch(name))


@functools.lru_cache(maxsize=4096)
def _of_prefix(name: str) -> int | None:
    return _number(_prefix().fullmatch(name))


def _number(match: re.Match[str] | None) -> int | None:
    digits = match and match[match.lastindex or 0]
    number = int(digits) if digits else None
    return None if number is None or number > MOST else number
