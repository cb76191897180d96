"""TensorFlow's file `checkpoint`: which bundle is the newest, and in which order the others were saved.

It is the text form of a `CheckpointState` (tensorflow/python/training/checkpoint_state.proto), as protobuf's
text_format reads it (google/protobuf/text_format.py, class Tokenizer): comments, both kinds of quotes, all escapes,
texts in several parts, lists in brackets, and any white space around a colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from edl_ckpt.core.base.errors import CorruptError
from edl_ckpt.core.base.patterns import LatePattern

NAME: Final = "checkpoint"
STATE_BYTES: Final = 1 << 20
"""No such file is larger: it has some paths."""
_TOKEN: Final = LatePattern(
    r"""(?:[ \t\r\n\f\v]+|\#[^\n]*)*(?:(?P<end>\Z)|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"""
    r"""|(?P<number>-?[ \t]*[0-9.][0-9A-Za-z_+.-]*)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<mark>[:,;\[\]-]))""",
    re.ASCII | re.DOTALL,
)
_ESCAPE: Final = LatePattern(
    r"\\(?:([0-7]{1,3})|[xX]([0-9A-Fa-f]{1,2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.ASCII | re.DOTALL
)
_LETTERS: Final = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}
_TEXTS: Final = frozenset({"model_checkpoint_path", "all_model_checkpoint_paths"})
_NUMBERS: Final = frozenset({"all_model_checkpoint_timestamps", "last_preserved_timestamp"})
_REPEATED: Final = frozenset({"all_model_checkpoint_paths", "all_model_checkpoint_timestamps"})
_ANY_SLASH: Final = LatePattern(r"[\\/]")


class CheckpointState(NamedTuple):
    """What the file says: paths as they are in it, absolute or relative to the directory of the file."""

    newest: str
    """`model_checkpoint_path`, '' when the file has none."""
    every: tuple[str, ...] = ()
    """`all_model_checkpoint_paths`, the oldest first."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the last parts of all paths, the oldest first and the newest last, each once.

        >>> CheckpointState("ckpt-3", ("/old/ckpt-2", "ckpt-3")).names
        ('ckpt-2', 'ckpt-3')
        """
        named = [name_in(path) for path in (*self.every, *([self.newest] if self.newest else ()))]
        return tuple(reversed(dict.fromkeys(reversed(named))))


def name_in(path: str) -> str:
    r"""Return the last part of a path of this system or of Windows: the prefix of a bundle.

    >>> name_in("/runs/a/model.ckpt-7"), name_in("C:\\runs\\ckpt-7"), name_in("ckpt-7")
    ('model.ckpt-7', 'ckpt-7', 'ckpt-7')
    """
    return _ANY_SLASH.split(path)[-1]


def state_bytes(newest: str, every: Iterable[str]) -> bytes:
    r"""Return the content of a file `checkpoint` with the newest path and all paths, the oldest first.

    >>> state_bytes("ckpt-3", ["ckpt-2", "ckpt-3"]).splitlines()[1]
    b'all_model_checkpoint_paths: "ckpt-2"'
    """
    lines = [("model_checkpoint_path", newest), *(("all_model_checkpoint_paths", path) for path in every)]
    return "".join(f'{field}: "{_quoted(path)}"\n' for field, path in lines).encode()


def _quoted(path: str) -> str:
    return path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")


def parse_state(data: bytes, path: str = "") -> CheckpointState:
    r"""Return what a file `checkpoint` says; CorruptError, with `path`, where text_format raises ParseError.

    >>> parse_state(b"model_checkpoint_path : 'ckpt-7' # the newest\n").newest
    'ckpt-7'
    >>> parse_state(b'model_checkpoint_path: "\\346\\250\\241" "-7"').newest
    '模-7'
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _damaged("it is no text in UTF-8", path, error.start) from None
    values: dict[str, list[str]] = {name: [] for name in (*_TEXTS, *_NUMBERS)}
    tokens = _Tokens(text, path)
    while not tokens.at_end:
        name = tokens.take("word", "the name of a field")
        if name not in values:
            raise tokens.damaged(f"{name!r} is no field of a CheckpointState")
        if not tokens.skip(":"):
            raise tokens.damaged("':' is expected")
        values[name] += tokens.list_of(name) if name in _REPEATED and tokens.skip("[") else [tokens.value(name)]
        tokens.skip(",", ";")
    newest = values["model_checkpoint_path"][-1:]  # TensorFlow's `Merge` takes the last one
    return CheckpointState("".join(newest), tuple(values["all_model_checkpoint_paths"]))


class _Tokens:
    """The words, numbers, texts and marks of a text, one after the other."""

    def __init__(self, text: str, path: str) -> None:
        self._text, self._path, self._start = text, path, 0
        self._next = self._match(0)

    def _match(self, start: int) -> re.Match[str]:
        found = _TOKEN.match(self._text, start)
        if found is None:
            raise _damaged("it is no text form of a CheckpointState", self._path, self._offset(start))
        return found

    def _offset(self, start: int) -> int:
        return len(self._text[:start].encode())

    @property
    def at_end(self) -> bool:
        """Return True behind the last token."""
        return self._next.lastgroup == "end"

    def damaged(self, words: str) -> CorruptError:
        """Return the error of the next token."""
        return _damaged(words, self._path, self._offset(self._start))

    def take(self, kind: str, expected: str) -> str:
        """Return the next token, which must be of a kind."""
        if self._next.lastgroup != kind:
            raise self.damaged(f"{expected} is expected")
        token = self._next[kind]
        self._start = self._next.end()
        self._next = self._match(self._start)
        return token

    def skip(self, *marks: str) -> bool:
        """Skip the next token if it is one of these marks; say whether it was."""
        is_one = self._next.lastgroup == "mark" and self._next["mark"] in marks
        if is_one:
            self.take("mark", "a mark")
        return is_one

    def value(self, field: str) -> str:
        """Return the next value of a field: a text in one part or several, or the words of a number."""
        if field in _NUMBERS:
            self.skip("-")
            return self.take("number" if self._next.lastgroup == "number" else "word", "a number")
        parts = list(self._texts())
        try:
            return b"".join(parts).decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{field} is no text in UTF-8") from None

    def _texts(self) -> Iterator[bytes]:
        yield self._unescaped(self.take("text", "a text in quotes"))
        while self._next.lastgroup == "text":
            yield self._unescaped(self.take("text", "a text in quotes"))

    def list_of(self, field: str) -> list[str]:
        """Return the values of a list behind its opening bracket."""
        values: list[str] = []
        while not self.skip("]"):
            values.append(self.value(field))
            if not self.skip(","):
                if not self.skip("]"):
                    raise self.damaged("',' or ']' is expected")
                break
        return values

    def _unescaped(self, quoted: str) -> bytes:
        text = quoted[1:-1]
        out = bytearray()
        start = 0
        for escape in _ESCAPE.finditer(text):
            out += text[start : escape.start()].encode()
            start = escape.end()
            octal, byte, short, long, letter = escape.groups()
            if octal or byte:
                out.append((int(octal, 8) if octal else int(byte, 16)) & 0xFF)
            elif short or long:
                point = int(short or long, 16)
                if point > 0x10FFFF or 0xD800 <= point < 0xE000:
                    raise self.damaged(f"{escape[0]} is no character")
                out += chr(point).encode()
            elif letter in _LETTERS:
                out.append(_LETTERS[letter])
            else:
                raise self.damaged(f"{escape[0]} is no escape")
        return bytes(out + text[start:].encode())


def _damaged(words: str, path: str, offset: int) -> CorruptError:
    return CorruptError(f"TensorFlow cannot read this file: {words}", path=path or None, offset=offset)
