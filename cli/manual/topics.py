"""Topics of the manual that belong to no single command: references, exit codes, environment, configuration, JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from edl_ckpt.cli.manual.marks import CODES
from edl_ckpt.cli.manual.page import Block, ManualPage, Row


def _topic(name: str, summary: str, description: tuple[str, ...], *blocks: Block) -> ManualPage:
    return ManualPage(name, summary, "", description, blocks, is_topic=True)


_LOCATIONS = (
    Row("runs/a", "a checkpoint directory, as ElasticDL's --checkpoint_dir"),
    Row("runs/a/version-100", "the directory of one version"),
    Row("s3://bucket/run", "a URL of S3, or any other that fsspec can open"),
    Row("cold, cold/trial-1", "a storage of your configuration file, or what is below it"),
    Row("mnist_v110.chkpt", "a checkpoint in one file, for commands that only read"),
    Row("step_100, ckpt-7.index", "a checkpoint of another system by itself: its directory, its prefix or its index"),
)
_VERSIONS = (
    Row("@100", "the version with that number"),
    Row("@latest", "the newest complete version; the same as no @VERSION"),
    Row("@best:auc", "the complete version with the best value of a metric"),
    Row("@best", "the same, if the location has only one metric"),
    Row("@serving", "the version with that tag"),
    Row("@4f8a0d1e", "the version in the directory with this UUID, or with one that begins so"),
)
_NO_LOCATION = (
    "Without a LOCATION, commands use $EDL_CKPT_DIR, without that the default storage of your configuration file, "
    "and without that the current directory."
)
_ENDS_OF_NAMES = (
    "--table and --variable take a whole name, or what only one name ends with: `user` for "
    "`model.ebc.embedding_bags.user.weight`. `user:momentum1` is what an optimizer keeps for the rows of that table."
)
_SECOND = "In `diff`, a second reference without a LOCATION is in the location of the first."
_EXAMPLES = ("edl-ckpt inspect run@best:auc", "edl-ckpt diff run@100 @200", "edl-ckpt verify @latest")
_REFS = _topic(
    "refs",
    "How to name a location and a version.",
    ("A reference is `[LOCATION][@VERSION]`.",),
    Block("Locations", (_NO_LOCATION,), _LOCATIONS),
    Block("Versions", (), _VERSIONS),
    Block("Names", (_ENDS_OF_NAMES,)),
    Block("Examples", (_SECOND,), lines=_EXAMPLES),
)

_CODES = tuple(Row(str(code), f"{name}: {meaning}" if name else meaning) for code, (name, meaning) in CODES.items())
_ENDS = (
    "A signal wins over an error, and an error over findings. A script should treat a code that it does not "
    "know as a failure. After 11 and 13 it is safe to try again."
)
_EXIT_CODES = _topic("exit-codes", "What each exit code means.", (_ENDS,), Block("Exit codes", rows=_CODES))

_OWN_VARIABLES = (
    Row("EDL_CKPT_DIR", "the LOCATION of commands that are given none; empty, it is an error"),
    Row("EDL_CKPT_CONFIG", "a configuration file that is read instead of yours, as with --config"),
    Row("EDL_CKPT_COMPLETE_REMOTE", "with 1, a shell completes names of S3 and other storage on a network too"),
    Row("EDL_CKPT_<OPTION>", "the value of an option: `EDL_CKPT_LOCK_WAIT=1m` for --lock-wait. Flags take 1 or 0."),
)
_VARIABLES = (
    Row("NO_COLOR", "no colours, as with --no-color"),
    Row("FORCE_COLOR", "colours, even if the output is no terminal; NO_COLOR wins"),
    Row("COLUMNS", "the width of the output"),
    Row("GITHUB_ACTIONS", "findings of `verify` become annotations of GitHub; set there by the runner"),
    Row("XDG_CACHE_HOME", "where listings remember what the indexes of steps say, ~/.cache without it"),
    Row("XDG_CONFIG_HOME", "where your configuration file is, ~/.config without it"),
    Row("TMPDIR", "where `diff` and `export` put their temporary files"),
    Row("AWS_...", "credentials, profile, region and endpoint of S3, as in other clients of AWS"),
)
_HOOK = (
    Row("EDL_CKPT_EVENT", "what happened, such as complete"),
    Row("EDL_CKPT_REF", "the reference of the version"),
    Row("EDL_CKPT_LOCATION", "its location"),
    Row("EDL_CKPT_NUMBER", "its number"),
    Row("EDL_CKPT_PATH", "its directory"),
)
_ENVIRONMENT = (
    "The command line wins over the environment, and that over a configuration file. Options that delete "
    "something, lift a guard, or change what comes out can only be given on the command line: they have no "
    "variable."
)
_ENV = _topic(
    "env",
    "The variables of the environment that count.",
    (_ENVIRONMENT,),
    Block("Of edl-ckpt", rows=_OWN_VARIABLES),
    Block("Of many programs", rows=_VARIABLES),
    Block("For the command of watch --exec", rows=_HOOK),
)

_WINS = (
    "The command line wins over the environment, the environment over the file. `edl-ckpt config show "
    "--origin` shows every setting in force, and where it comes from."
)
_FILE = (
    "edl-ckpt reads `~/.config/edl-ckpt/edl-ckpt.toml`, in TOML. `--config FILE` or EDL_CKPT_CONFIG names "
    "another file, which is read instead."
)
_FILE_HERE = (
    "A file `edl-ckpt.toml` in the current directory may be somebody else's. It can only set no-color, "
    "progress, workers and max-memory; whatever else it says is ignored with a warning."
)
_KEYS = (
    "A key at the top sets an option for every command that has it; a table, such as `[prune]` or "
    "`[metrics.import]`, for one command. `[checkpoint_storage]` is Determined's section: the default "
    "LOCATION, and storages with names."
)
_SETTINGS = """\
no-color = true

[prune]
keep = 5
trash = true

[checkpoint_storage.cold]
type = "s3"
bucket = "models-archive"
"""
_CONFIG = _topic(
    "config",
    "Configuration files, and which setting wins.",
    (_WINS,),
    Block("Files", (_FILE, _FILE_HERE)),
    Block("Keys", (_KEYS,)),
    Block("Example", lines=tuple(_SETTINGS.splitlines())),
)

_DOCUMENTS = (
    "`--json` prints one document on stdout, and nothing else there. Its `schema` names the command and a "
    "number, as in `edl-ckpt/list/1`. Documents only gain keys; a key keeps its meaning."
)
_EVENTS = "`watch` prints a document for each event, one a line."
_NUMBERS = "NaN and infinities are the texts `NaN`, `Infinity` and `-Infinity`, as in protobuf's JSON."
_FAILURE = (
    "With --json, a failure prints this document as the last line on stderr. `code` and `id` are those of "
    "`edl-ckpt help exit-codes`; `hint` and `path` may be null."
)
_ERROR = (
    '{"schema": "edl-ckpt/error/1", "code": 10, "id": "not_found",',
    ' "message": "run: no version 7", "hint": "versions there: 5", "path": "run"}',
)
_QUERIES = ("edl-ckpt list run --json | jq -r '.locations[].versions[].ref'", "edl-ckpt list run --csv")
_JSON = _topic(
    "json",
    "The documents of --json.",
    (),
    Block("Documents", (_DOCUMENTS, _EVENTS, _NUMBERS)),
    Block("Failures", (_FAILURE,), lines=_ERROR),
    Block("Rows", ("`--csv` prints rows where a command has rows.",)),
    Block("Examples", lines=_QUERIES),
)

TOPICS: Final[Mapping[str, ManualPage]] = {page.name: page for page in (_REFS, _EXIT_CODES, _ENV, _CONFIG, _JSON)}
"""The pages of the topics of `edl-ckpt help TOPIC`."""
