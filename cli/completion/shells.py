"""What each shell hands over, and what it wants back: candidates quoted for the place where they will stand.

A name is somebody else's text. It reaches the command line only with every character escaped that a shell, or its
history, would read as more than itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    from edl_ckpt.cli.completion.values import Candidate

_LOCAL_SECONDS: Final = 2.0
_REMOTE_SECONDS: Final = 15.0
_OPEN: Final = ("/", "@", "=", ":", ",")
"""A value that ends so goes on: no space follows it."""
_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-")
_ENDS_WORDS: Final = frozenset("|&;()<>")


class TypedLine(NamedTuple):
    """The words up to the cursor: the last one as it means, and as it is typed, behind its opening quote."""

    words: list[str]
    raw: str
    quote: str
    """The quote that is open at the cursor, '' without."""


def answer(shell: str, arguments: Sequence[str]) -> NoReturn:
    """Print the candidates for a shell, and end. Nothing else is ever printed, and nothing waits for long."""
    from edl_ckpt.cli.completion.places import asks_remote

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, _REMOTE_SECONDS if asks_remote() else _LOCAL_SECONDS)
    with suppress(Exception):  # a shell in which somebody types is no place for a traceback
        os.write(1, _answer(shell, arguments).encode())
    raise SystemExit(0)


def _answer(shell: str, arguments: Sequence[str]) -> str:
    from edl_ckpt.cli.completion.grammar import expected, load
    from edl_ckpt.cli.completion.values import Completer, bounded

    line = _line(shell, arguments)
    table = load()
    asked = expected(line.words, table)
    found = bounded(Completer(asked, table).candidates())
    return "".join(_DRAWN[shell](line, each.value[len(asked.typed) :], each) for each in found)


def _line(shell: str, arguments: Sequence[str]) -> TypedLine:
    """Return the words that a shell handed over."""
    if shell == "bash":
        line, point = (os.environ.get(variable, "") for variable in ("COMP_LINE", "COMP_POINT"))
        end = int(point) if point.isascii() and point.isdigit() else None
        return split(line.encode()[:end].decode("utf-8", "ignore"))
    if shell == "zsh":
        *words, raw, quote = arguments
        meaning = split(f"x {quote}{raw}").words[-1]
        return TypedLine([*words, meaning], raw, quote if quote in {"'", '"'} else "")
    return TypedLine(list(arguments), arguments[-1], "")


def split(text: str) -> TypedLine:
    r"""Return the words of bash's command line up to the cursor, behind the program's name.

    >>> split("edl-ckpt get 'run@1' --table us")
    TypedLine(words=['get', 'run@1', '--table', 'us'], raw='us', quote='')
    >>> split("EDL_CKPT_DIR=x edl-ckpt get 'my ru").words, split("true; edl-ckpt get a\\ b").raw
    (['get', 'my ru'], 'a\\ b')
    """
    typed = _TypedWords()
    characters = iter(text)
    for character in characters:
        if character == "\\" and typed.quote != "'":
            typed.escape(next(characters, ""))
        elif character in "'\"" and typed.quote in {"", character}:
            typed.open_or_close(character)
        elif not typed.quote and (character in " \t\n" or character in _ENDS_WORDS):
            typed.end_word(ends_command=character in _ENDS_WORDS)
        else:
            typed.add(character)
    own = next((place for place, word in enumerate(typed.words) if os.path.basename(word) == "edl-ckpt"), 0)
    raw = typed.raw[typed.opened :] if typed.quote else typed.raw
    return TypedLine([*typed.words[own + 1 :], typed.meaning], raw, typed.quote)


class _TypedWords:
    """The words of a line as bash reads it, character by character; the last one is not ended yet."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.meaning = ""
        """The last word without its quotes and escapes."""
        self.raw = ""
        """The last word as it was typed."""
        self.quote = ""
        """The quote that is open; '' for none."""
        self.opened = 0
        """Where in `raw` the text behind that quote begins."""
        self._was_quoted = False
        """A word of quotes alone, as '', is a word."""

    def add(self, character: str) -> None:
        """Take a character that stands for itself."""
        self.meaning += character
        self.raw += character

    def escape(self, character: str) -> None:
        """Take a backslash and the character behind it; one at the end of the line is dropped."""
        if not character:
            return
        keeps_backslash = self.quote and character not in '$`"\\\n'
        self.meaning += ("\\" if keeps_backslash else "") + character
        self.raw += "\\" + character

    def open_or_close(self, quote: str) -> None:
        """Take a quote, which closes the open one or opens another."""
        self.raw += quote
        if self.quote:
            self.quote = ""
            return
        self.quote = quote
        self.opened = len(self.raw)
        self._was_quoted = True

    def end_word(self, *, ends_command: bool) -> None:
        """Take what parts words; behind `;` and others a new command begins."""
        if self.meaning or self._was_quoted:
            self.words.append(self.meaning)
        if ends_command:
            self.words = []
        self.meaning = self.raw = ""
        self._was_quoted = False


def quoted(text: str, quote: str) -> str | None:
    r"""Return a text as it is written behind an open quote, or without one; None where it cannot stand there.

    >>> quoted("a b$(c)", ""), quoted("a$b", '"'), quoted("it's", "'")
    ('a\\ b\\$\\(c\\)', 'a\\$b', None)
    """
    if quote == "'":
        return None if "'" in text else text
    if quote:  # no backslash stops the history there
        if "!" in text:
            return None
        return "".join(f"\\{c}" if c in '$`"\\' else c for c in text)
    return "".join(c if c in _PLAIN or ord(c) > 127 else f"\\{c}" for c in text)


def _for_bash(line: TypedLine, rest: str, full: Candidate) -> str:
    """Return a line with what stands behind the last character of the word that parts words for readline."""
    written = quoted(rest, line.quote)
    if written is None:
        return ""
    whole = line.raw + written
    breaks = os.environ.get("COMP_WORDBREAKS", " \t\n\"'@><=;|&(:")
    cut = 0 if line.quote else _behind_break(line.raw, breaks)
    return whole[cut:] + ("" if full.value.endswith(_OPEN) or line.quote else " ") + "\n"


def _behind_break(raw: str, breaks: str) -> int:
    """Return where readline's word begins in a word: behind the last character that parts words and is not escaped."""
    cut, at = 0, 0
    while at < len(raw):
        if raw[at] == "\\":
            at += 2
            continue
        at += 1
        if raw[at - 1] in breaks:
            cut = at - (raw[at - 1] == "@")  # readline takes it into the word that it begins, as in names of hosts
    return cut


def _for_zsh(line: TypedLine, rest: str, full: Candidate) -> str:
    """Return three lines: the word as it is written, as it is shown with its note, and whether a space follows."""
    written = quoted(rest, line.quote)
    if written is None:
        return ""
    if not (line.raw or line.quote) and written.startswith("="):  # else the path of a program
        written = f"\\{written}"
    shown = f"{full.value}  -- {full.note}" if full.note else full.value
    return f"{line.raw}{written}\n{shown}\n{'open' if full.value.endswith(_OPEN) else 'done'}\n"


def _for_fish(line: TypedLine, rest: str, full: Candidate) -> str:
    """Return a line with the value and its note; fish quotes it itself."""
    return f"{line.raw}{rest}\t{full.note}\n"


_DRAWN: Final[Mapping[str, Any]] = {"bash": _for_bash, "zsh": _for_zsh, "fish": _for_fish}
