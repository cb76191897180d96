"""Regular expressions that few commands need: each is compiled at its first use, which takes up to a millisecond."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import AnyStr, Generic


class LatePattern(Generic[AnyStr]):
    """A regular expression, compiled at its first use; an error in it is raised then.

    >>> LatePattern(r"([a-z]+)-([0-9]+)").fullmatch("step-7")[2]
    '7'
    """

    def __init__(self, pattern: AnyStr, flags: int = 0) -> None:
        self._pattern: AnyStr = pattern
        self._flags = flags

    @cached_property
    def _compiled(self) -> re.Pattern[AnyStr]:
        return re.compile(self._pattern, self._flags)

    def fullmatch(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """Return the match of the whole text, None when it is another one."""
        return self._compiled.fullmatch(text)

    def match(self, text: AnyStr, start: int = 0) -> re.Match[AnyStr] | None:
        """Return the match at a position of a text, None when there is none right there."""
        return self._compiled.match(text, start)

    def search(self, text: AnyStr) -> re.Match[AnyStr] | None:
        """Return the first match in a text, None when there is none."""
        return self._compiled.search(text)

    def finditer(self, text: AnyStr, start: int = 0) -> Iterator[re.Match[AnyStr]]:
        """Yield all matches in a text from a position on."""
        return self._compiled.finditer(text, start)

    def split(self, text: AnyStr) -> list[AnyStr]:
        """Return what is between the matches in a text; the pattern has no groups."""
        return self._compiled.split(text)

    def sub(self, by: AnyStr | Callable[[re.Match[AnyStr]], AnyStr], text: AnyStr) -> AnyStr:
        """Return a text with each match replaced by a template, or by what a function returns for it."""
        return self._compiled.sub(by, text)
