"""The files that jobs save next to a checkpoint, by the system of the checkpoint: what is known to belong to it.

Whatever else lies in the directory of a version is foreign: no rule of retention may delete it. The names are those
that the writers use in their own code, one row for each of them, so a row says where its names are from.

A pattern is that of a path in the directory of a version; `*` stands for any text without a slash. One without a slash
is a name directly in the directory, or in one where files of the checkpoint are.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from edl_ckpt.core.base.patterns import LatePattern
from edl_ckpt.core.sources.registry import version_named


class Writer(NamedTuple):
    """A program that saves checkpoints, the systems in which it does, and what it saves next to them."""

    name: str
    systems: tuple[str, ...]
    patterns: str
    """Separated by spaces."""


_TORCH: Final = ("dcp", "safetensors", "dynamicemb", "torch", "torch-checkpointing")
_TENSORFLOW: Final = ("tensorflow", "tfra")
WRITERS: Final[tuple[Writer, ...]] = (
    Writer(
        "transformers, tokenizers, PEFT",
        _TORCH,
        "config.json generation_config.json preprocessor_config.json processor_config.json"
        " video_preprocessor_config.json adapter_config.json adapter_model.bin tokenizer.json tokenizer.model"
        " tokenizer_config.json special_tokens_map.json added_tokens.json vocab.json vocab.txt merges.txt spiece.model"
        " sentencepiece.bpe.model chat_template.jinja chat_template.json trainer_state.json training_args.bin"
        " optimizer.pt optimizer.bin scheduler.pt scaler.pt rng_state.pth rng_state_*.pth pytorch_model.bin"
        " pytorch_model-*-of-*.bin pytorch_model.bin.index.json",
    ),
    Writer(
        "accelerate",
        _TORCH,
        "random_states_*.pkl optimizer_*.bin scheduler.bin scheduler_*.bin sampler.bin sampler_*.bin dl_state_dict.bin"
        " dl_state_dict_*.bin custom_checkpoint_*.pkl",
    ),
    Writer(
        "diffusers, sentence-transformers",
        _TORCH,
        "model_index.json scheduler/scheduler_config.json modules.json config_sentence_transformers.json"
        " sentence_bert_config.json *_Pooling/config.json tokenizer/* tokenizer_2/*",
    ),
    Writer(
        "DeepSpeed",
        _TORCH,
        "zero_to_fp32.py latest *_model_states.pt *_optim_states.pt global_step*/*_model_states.pt"
        " global_step*/*_optim_states.pt",
    ),
    Writer(
        "Megatron-LM, NeMo",
        _TORCH,
        "common.pt metadata.json modelopt_run_config.yaml run_config.yaml train_state.pt train_dataloader_dprank*.pt"
        " mp_rank_*/model_optim_rng.pt mp_rank_*/distrib_optim.pt",
    ),
    Writer(
        "verl",
        _TORCH,
        "data.pt fsdp_config.json model_world_size_*_rank_*.pt optim_world_size_*_rank_*.pt"
        " extra_state_world_size_*_rank_*.pt huggingface/* actor/huggingface/* critic/huggingface/*",
    ),
    Writer("Lightning", _TORCH, "meta.pt"),
    Writer("torchtune", _TORCH, "recipe_state.pt recipe_state/recipe_state.pt"),
    Writer("TorchEasyRec", _TORCH, "meta plan pipeline.config dataloader_state.json"),
    Writer("torch.distributed.checkpoint", _TORCH, "__*_*.distcp .metadata __*.metadata .metadata.tmp"),
    Writer("dynamicemb", _TORCH, "*.rank_*.world_size_* *_opt_args.json"),
    Writer(
        "TensorFlow, Estimator, EasyRec",
        _TENSORFLOW,
        "checkpoint *.meta graph.pbtxt pipeline.config *.tempstate* *_temp/part-*",
    ),
    Writer("TensorFlow Recommenders Addons", _TENSORFLOW, "*_mht_*-keys *_mht_*-values"),
)
"""Who saves what. The patterns of a system's own files are for those that no index names: of another save, or torn."""
_HOST_FILES: Final = LatePattern(
    r"\._.*|\.DS_Store|\.nfs[0-9a-fA-F]+|\.fuse_hidden[0-9a-fA-F]+|Thumbs\.db|desktop\.ini", re.DOTALL
)
"""What hosts and file servers leave in any directory."""
_OUR_OUTPUTS: Final = LatePattern(
    r"\..*\.[0-9]{8}T[0-9]{6}-[^-]*-[0-9]+-[0-9a-f]{8}\.edl-ckpt(\.[a-z]+)?", re.ASCII | re.DOTALL
)
"""Hidden names with an id, which outputs have until they are whole: other names are not ours."""
_STATE_OF_ONE: Final = r"[0-9]+|named-[A-Za-z0-9._+=%~-]+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_NOTE: Final = r"(earlier|[0-9]+-of-[0-9]+\.[0-9a-f]{16}\.[A-Za-z0-9_-]+)"
_OUR_STATE: Final = LatePattern(
    rf"(.*/)?\.edl-ckpt-0(/(lock-0|stage-0|trash-0|files-0|shards-0(/[0-9]+(/{_NOTE}\.json)?)?"
    rf"|meta-0(/(location|index|manager|verdicts-[0-9A-Za-z_-]+|({_STATE_OF_ONE})(\.seal)?)\.json)?))?",
    re.ASCII | re.DOTALL,
)
"""What is in the state of a location: lock, metadata, seals, notes. What a stage or the trash has is content."""
_STEP_OF_DEEPSPEED: Final = LatePattern(r"global_step[0-9]+", re.ASCII)


def unaccounted(
    system: str, names: Iterable[str], claimed: Collection[str], empty_folders: Iterable[str] = ()
) -> list[str]:
    """Return the paths in a version's directory that are neither the checkpoint's nor known to belong to it, sorted.

    `claimed` are the files that the checkpoint of this system consists of, `empty_folders` the directories without an
    entry: somebody made each of them. What lies in a directory that is named as a step is foreign whatever it is: a run
    with steps of its own is no step.

    >>> unaccounted("safetensors", ["model.safetensors", "config.json", ".git/HEAD"], {"model.safetensors"})
    ['.git/HEAD']
    """
    present = set(names)
    folders = {name.rpartition("/")[0] for name in claimed if not is_below_a_step(name)}
    strange = [name for name in empty_folders if not (_is_known_folder(system, name) or is_of_a_host(name))]
    cards = {"README.md"} if "adapter_config.json" in present else set[str]()  # PEFT writes one next to an adapter
    strange += (
        name
        for name in present - cards
        if (is_below_a_step(name) or name not in claimed)
        and not (is_of_a_host(name) or _is_known(system, name, folders))
    )
    return sorted(strange)


@functools.lru_cache(maxsize=1 << 14)  # as below
def is_of_a_host(path: str) -> bool:
    """Say whether a file is one that hosts leave everywhere, or one of our own.

    >>> is_of_a_host("model/.DS_Store"), is_of_a_host(".edl-ckpt-0/lock-0"), is_of_a_host(".edl-ckpt-0/notes.txt")
    (True, True, False)
    """
    *above, name = path.split("/")
    if _HOST_FILES.fullmatch(name) or any(map(_OUR_OUTPUTS.fullmatch, (*above, name))):
        return True
    return _OUR_STATE.fullmatch(path) is not None


@functools.lru_cache(maxsize=1 << 14)
def is_below_a_step(path: str) -> bool:
    """Say whether a path leads through a directory that is named as a step; DeepSpeed has one in its own."""
    above = path.split("/")[:-1]
    first = above[0] if above else ""
    inner = above[1:] if _STEP_OF_DEEPSPEED.fullmatch(first) else above
    return any(map(version_named, inner))


def _is_known(system: str, path: str, folders: Collection[str]) -> bool:
    """Say whether a path is one that a writer of a system saves; `folders` are those with files of the checkpoint."""
    if is_below_a_step(path):
        return False
    folder, _, name = path.rpartition("/")
    return _matches(system, path) or (folder in folders and _matches(system, name))


def _is_known_folder(system: str, path: str) -> bool:
    """Say whether a directory is one that a writer of a system makes before it has a file for it."""
    pattern = _folders().get(system)
    return not is_below_a_step(f"{path}/") and pattern is not None and pattern.fullmatch(path) is not None


@functools.lru_cache(maxsize=1 << 14)  # each of a thousand steps has the same names
def _matches(system: str, path: str) -> bool:
    pattern = _patterns().get(system)
    return pattern is not None and pattern.fullmatch(path) is not None


@functools.cache
def _patterns() -> Mapping[str, re.Pattern[str]]:
    """Return, by system, what matches every path that its writers save."""
    by_system: dict[str, list[str]] = {}
    for writer in WRITERS:
        for system in writer.systems:
            by_system.setdefault(system, []).extend(map(_expression, writer.patterns.split()))
    return {system: re.compile("|".join(each), re.DOTALL) for system, each in by_system.items()}


@functools.cache
def _folders() -> Mapping[str, re.Pattern[str]]:
    """Return, by system, what matches every directory that its writers make: those above the files that they save."""
    by_system: dict[str, set[str]] = {"tfra": {"TFRADynamicEmbedding*"}, "dynamicemb": {"dynamicemb", "dynamicemb/*"}}
    for writer in WRITERS:
        above = {str(folder) for pattern in writer.patterns.split() for folder in PurePosixPath(pattern).parents}
        for system in writer.systems:
            by_system.setdefault(system, set()).update(above - {"."})
    return {system: re.compile("|".join(map(_expression, sorted(each)))) for system, each in by_system.items()}


def _expression(pattern: str) -> str:
    """Return a pattern of the table as a regular expression."""
    return re.escape(pattern).replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
