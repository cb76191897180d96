"""Topics of the manual that belong to no single command: references, exit codes, environment, configuration, JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from edl_ckpt.cli.manual.marks import CODES
from edl_ckpt.cli.manual.page import Block, ManualPage, Row

TOPICS: Final[Mapping[str, str]] = {
    "refs": "How to name a location and a version.",
    "exit-codes": "What each exit code means.",
    "env": "The variables of the environment that count.",
    "config": "Configuration files, and which setting wins.",
    "json": "The documents of --json.",
}
"""The topics of `edl-ckpt help TOPIC`, and what each is about."""


def topic(name: str) -> ManualPage:
    """Return the page of a topic; KeyError for a name that is none."""
    description, blocks = _PAGES[name]()
    return ManualPage(name, TOPICS[name], "", description, blocks, is_topic=True)


_Content = tuple[tuple[str, ...], tuple[Block, ...]]


def _refs() -> _Content:
    locations = (
        Row("runs/a", "a checkpoint directory, as ElasticDL's --checkpoint_dir"),
        Row("runs/a/version-100", "the directory of one version"),
        Row("s3://bucket/run", "a URL of S3, or any other that fsspec can open"),
        Row("cold, cold/trial-1", "a storage of your configuration file, or what is below it"),
        Row("mnist_v110.chkpt", "a checkpoint in one file, for commands that only read"),
    )
    versions = (
        Row("@100", "the version with that number"),
        Row("@latest", "the newest complete version; the same as no @VERSION"),
        Row("@best:auc", "the complete version with the best value of a metric"),
        Row("@best", "the same, if the location has only one metric"),
        Row("@serving", "the version with that tag"),
        Row("@4f8a0d1e", "the version in the directory with this UUID, or with one that begins so"),
    )
    default = (
        "Without a LOCATION, commands use $EDL_CKPT_DIR, without that the default storage of your configuration file, "
        "and without that the current directory."
    )
    relative = "In `diff`, a second reference without a LOCATION is in the location of the first."
    lines = ("edl-ckpt inspect run@best:auc", "edl-ckpt diff run@100 @200", "edl-ckpt verify @latest")
    return ("A reference is `[LOCATION][@VERSION]`.",), (
        Block("Locations", (default,), locations),
        Block("Versions", (), versions),
        Block("Examples", (relative,), lines=lines),
    )


def _exit_codes() -> _Content:
    rows = tuple(Row(str(code), f"{name}: {meaning}" if name else meaning) for code, (name, meaning) in CODES.items())
    rules = (
        (
            "A signal wins over an error, and an error over findings. A script should treat a code that it does not "
            "know as a failure. After 11 and 13 it is safe to try again."
        ),
    )
    return rules, (Block("Exit codes", rows=rows),)


def _env() -> _Content:
    own = (
        Row("EDL_CKPT_DIR", "the LOCATION of commands that are given none; empty, it is an error"),
        Row("EDL_CKPT_CONFIG", "a configuration file that is read instead of yours, as with --config"),
        Row("EDL_CKPT_COMPLETE_REMOTE", "with 1, a shell completes names of S3 and other storage on a network too"),
        Row("EDL_CKPT_<OPTION>", "the value of an option: `EDL_CKPT_LOCK_WAIT=1m` for --lock-wait. Flags take 1 or 0."),
    )
    general = (
        Row("NO_COLOR", "no colours, as with --no-color"),
        Row("FORCE_COLOR", "colours, even if the output is no terminal; NO_COLOR wins"),
        Row("COLUMNS", "the width of the output"),
        Row("GITHUB_ACTIONS", "findings of `verify` become annotations of GitHub; set there by the runner"),
        Row("XDG_CONFIG_HOME", "where your configuration file is, ~/.config without it"),
        Row("TMPDIR", "where `diff` and `export` put their temporary files"),
        Row("AWS_...", "credentials, profile, region and endpoint of S3, as in other clients of AWS"),
    )
    hook = (
        Row("EDL_CKPT_EVENT", "what happened, such as complete"),
        Row("EDL_CKPT_REF", "the reference of the version"),
        Row("EDL_CKPT_LOCATION", "its location"),
        Row("EDL_CKPT_NUMBER", "its number"),
        Row("EDL_CKPT_PATH", "its directory"),
    )
    rule = (
        (
            "The command line wins over the environment, and that over a configuration file. Options that delete "
            "something, lift a guard, or change what comes out can only be given on the command line: they have no "
            "variable."
        ),
    )
    return rule, (
        Block("Of edl-ckpt", rows=own),
        Block("Of many programs", rows=general),
        Block("For the command of watch --exec", rows=hook),
    )


def _config() -> _Content:
    files = (
        (
            "edl-ckpt reads `~/.config/edl-ckpt/edl-ckpt.toml`, in TOML. `--config FILE` or EDL_CKPT_CONFIG names "
            "another file, which is read instead."
        ),
        (
            "A file `edl-ckpt.toml` in the current directory may be somebody else's. It can only set no-color, "
            "progress, workers and max-memory; whatever else it says is ignored with a warning."
        ),
    )
    keys = (
        (
            "A key at the top sets an option for every command that has it; a table, such as `[prune]` or "
            "`[metrics.import]`, for one command. `[checkpoint_storage]` is Determined's section: the default "
            "LOCATION, and storages with names."
        ),
    )
    lines = (
        "no-color = true",
        "",
        "[prune]",
        "keep = 5",
        "trash = true",
        "",
        "[checkpoint_storage.cold]",
        'type = "s3"',
        'bucket = "models-archive"',
    )
    wins = (
        (
            "The command line wins over the environment, the environment over the file. `edl-ckpt config show "
            "--origin` shows every setting in force, and where it comes from."
        ),
    )
    return wins, (Block("Files", files), Block("Keys", keys), Block("Example", lines=lines))


def _json() -> _Content:
    rules = (
        (
            "`--json` prints one document on stdout, and nothing else there. Its `schema` names the command and a "
            "number, as in `edl-ckpt/list/1`. Documents only gain keys; a key keeps its meaning."
        ),
        "`watch` prints a document for each event, one a line.",
        "NaN and infinities are the texts `NaN`, `Infinity` and `-Infinity`, as in protobuf's JSON.",
    )
    error = (
        (
            "With --json, a failure prints this document as the last line on stderr. `code` and `id` are those of "
            "`edl-ckpt help exit-codes`; `hint` and `path` may be null."
        ),
    )
    lines = (
        '{"schema": "edl-ckpt/error/1", "code": 10, "id": "not_found",',
        ' "message": "run: no version 7", "hint": "versions there: 5", "path": "run"}',
    )
    examples = ("edl-ckpt list run --json | jq -r '.locations[].versions[].ref'", "edl-ckpt list run --csv")
    rows = ("`--csv` prints rows where a command has rows.",)
    return (), (
        Block("Documents", rules),
        Block("Failures", error, lines=lines),
        Block("Rows", rows),
        Block("Examples", lines=examples),
    )


_PAGES: Final[Mapping[str, Callable[[], _Content]]] = {
    "refs": _refs,
    "exit-codes": _exit_codes,
    "env": _env,
    "config": _config,
    "json": _json,
}
