"""Refusals of the command line's parser, in our words: what is wrong, where it came from, and what was perhaps meant.

Typer has its own copy of click, so its errors have no public names; they are told apart by the names of their classes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any, Final

from edl_ckpt.cli.manual.parsing import command_of
from edl_ckpt.cli.options import slips
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base import words
from edl_ckpt.core.base.errors import UsageError
from edl_ckpt.core.base.patterns import LatePattern

_NO_COMMAND: Final = LatePattern(r"No such command (['\"])(.*?)\1\.(?: .*)?", re.DOTALL)
_MEMBERS: Final = {
    "tag": "add {} TAG", "metrics": "show {}", "metadata": "show {}", "policy": "show {}"
}  # fmt: skip
"""The member of a group that a reference stands for."""
_GONE: Final = {
    ("prune", "--all"): "it is --even-newest now, and counts only together with a rule or --delete VERSION",
    ("prune", "--force"): "each guard has an option of its own, and a script is not asked: edl-ckpt prune --help",
    ("get", "--raw"): "it is gone; --npy FILE writes the values with their dtype and shape, and - is stdout",
    ("export", "--seed"): "it is a part of --fill now: --fill initializer:SEED",
}
"""What to write in place of an option that a command had, by command and option."""
_EXTRA: Final = LatePattern(r"Got unexpected extra argument(?:s|\(s\))? \((.*)\)\.?", re.DOTALL)


def is_refusal(error: BaseException) -> bool:
    """Say whether an exception is the parser's."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def plain_call(error: Any) -> Any:
    """Return the context of a call that lacks only a command, whose message is the help; None of any other."""
    return error.ctx if type(error).__name__ == "NoArgsIsHelpError" else None


def explained(error: Any) -> UsageError:
    """Return a refusal of the parser as an error of ours."""
    context = getattr(error, "ctx", None)
    kind = type(error).__name__
    path = getattr(context, "command_path", "edl-ckpt")
    if kind == "NoSuchOption":
        return UsageError(f"no such option: {escaped(error.option_name)}", hint=_option_hint(error, context, path))
    if kind == "MissingParameter" and error.param is not None:
        return _missing(context, error.param)
    if kind == "BadParameter" and error.param is not None:
        meant = slips.for_bad_value(context, _flag(error.param))
        message = f"{origin(context, error.param)}: {_sentence(str(error.message))}"
        return UsageError(message, hint=meant or f"try: {path} --help")
    text = str(error.format_message())
    if found := _NO_COMMAND.fullmatch(text):
        return _unknown_command(found[2], error.ctx, path)
    if found := _EXTRA.fullmatch(text):
        meant = slips.for_extra_words(context, found[1].split())
        return UsageError(f"unexpected argument: {escaped(found[1])}", hint=meant or _usage(context))
    return UsageError(_sentence(text), hint=_usage(context) or f"try: {path} --help")


def _missing(context: Any, parameter: Any) -> UsageError:
    """Return the error of an argument or an option that a command needs."""
    flag = _flag(parameter)
    if meant := slips.for_missing(context):
        return UsageError(f"{flag} is missing", hint=meant)
    takes = f" {parameter.metavar}" if parameter.param_type_name == "option" else ""
    return UsageError(f"{flag}{takes} is missing", hint=_usage(context))


def _unknown_command(name: str, context: Any, path: str) -> UsageError:
    """Return the error of a word that is no command; `path` is the program, or the group that got the word."""
    commands = context.command.commands
    hint = (
        slips.for_unknown_command(name, context, commands)
        or _synonym(name, path, context)
        or _likely(name, commands)
        or f"{path} --help lists the commands"
    )
    return UsageError(f"no such command: {escaped(name)}", hint=hint)


def _likely(name: str, known: Iterable[str]) -> str | None:
    """Return the commands that are like a word; None where one of them deletes."""
    likely = words.closest(name, known)
    return words.meant(name, likely) if likely == slips.without_deletions(likely) else None


def _synonym(name: str, path: str, context: Any) -> str | None:
    """Return the command that is meant by a word of other programs, or where a group got a reference, not a command."""
    from edl_ckpt.cli.manual.pages import synonyms  # a refusal costs the time to read them, and no other call

    if command := synonyms().get(f"{path} {name}".removeprefix("edl-ckpt ").replace(" ", "_")):
        return slips.for_synonym(command, name, context) or f"did you mean `edl-ckpt {command}`?"
    group = path.rpartition(" ")[2]
    if group in _MEMBERS and ("@" in name or "/" in name or os.path.exists(name)):
        return f"did you mean `{path} {_MEMBERS[group].format(escaped(name))}`?"
    return None


def origin(context: Any, parameter: Any) -> str:
    """Return where the value of a parameter came from: its flag, a variable, or a line of a configuration file."""
    source = context.get_parameter_source(parameter.name) if context else None
    name = _flag(parameter)
    if source is not None and source.name == "ENVIRONMENT":
        return str(parameter.envvar)
    if source is not None and source.name == "DEFAULT_MAP" and context.obj is not None:
        return f"{context.obj.origin(command_of(context), parameter.name)}: {name.lstrip('-')}"
    return name


def _flag(parameter: Any) -> str:
    """Return the first long flag of an option, or the metavar of an argument."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name.upper())
    return str(next((flag for flag in parameter.opts if flag.startswith("--")), parameter.opts[0]))


def _option_hint(error: Any, context: Any, path: str) -> str:
    """Return the options that were perhaps meant; of a group, that options stand behind the command."""
    option = error.option_name
    if gone := _GONE.get((command_of(context), option)):
        return gone
    flags = _long_flags(context)
    if meant := slips.for_unknown_option(context, option, flags):
        return meant
    likely = [f"--{name}" for name in words.closest(option.lstrip("-"), [flag.lstrip("-") for flag in flags])]
    if likely and likely == slips.without_deletions(likely):
        return f"did you mean {' or '.join(likely)}?"
    if hasattr(context.command, "commands"):
        return f"options come after the command: {path} COMMAND {escaped(option)}"
    return f"{path} --help lists the options"


def _long_flags(context: Any) -> list[str]:
    """Return the long flags of a command's options that its help shows."""
    flags: list[str] = []
    for parameter in context.command.get_params(context) if context else ():
        if parameter.param_type_name == "option" and not getattr(parameter, "hidden", False):
            flags += (flag for flag in parameter.opts if flag.startswith("--"))
    return flags


def _usage(context: Any) -> str | None:
    """Return a hint with the usage of the command of a context."""
    from edl_ckpt.cli.manual.pages import usage_line

    if context is None or hasattr(context.command, "commands"):
        return None
    return f"usage: {usage_line(command_of(context), context.command.get_params(context))}"


def _sentence(text: str) -> str:
    """Return a message of the parser in our style: without a capital letter and a full stop."""
    text = text.strip().removesuffix(".")
    return words.escaped(f"{text[:1].lower()}{text[1:]}" if text[1:2].islower() else text, 400)
