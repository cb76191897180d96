"""What the browser can do with a version: copy it, tag it, export it. Each asks first, and runs in the background."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from edl_ckpt.cli.browse.keys import ScreenKey
from edl_ckpt.cli.browse.page import ACTION, SearchPage
from edl_ckpt.cli.browse.source import again
from edl_ckpt.cli.terminal.folding import shortened
from edl_ckpt.core.base import words

if TYPE_CHECKING:
    from edl_ckpt.cli.browse.work import BackgroundJob
    from edl_ckpt.core.model.versions import CheckpointRef, Version

_ANSWER: Final = 16
"""The width of the end of a question, and of the answer."""
ACTIONS: Final = (
    ScreenKey("c", "c", "copy to", "act('copy')", "copy the version to another location, after a question"),
    ScreenKey("t", "t", "tag", "act('tag')", "give the version a tag, after a question"),
    ScreenKey("e", "e", "export", "act('export')", "export the version to a file or directory, after a question"),
)


def _copy(version: Version, target: CheckpointRef, job: BackgroundJob) -> str:
    from edl_ckpt.core.operations.copy.execute import execute_copy
    from edl_ckpt.core.operations.copy.plan import plan_copy

    (copied,) = execute_copy(plan_copy([version], target.location), reporter=job).copied
    return f"{copied.to} is there already" if copied.skipped else f"copied to {copied.to}"


def _tag(version: Version, target: CheckpointRef, job: BackgroundJob) -> str:
    from edl_ckpt.core.operations.annotate import add_tag

    lost = add_tag(version, target.location.url, reporter=job)
    return f"tagged {target.location.url}" + (f"; {', '.join(map(str, lost))} lost it" if lost else "")


def _export(version: Version, target: CheckpointRef, job: BackgroundJob) -> str:
    from edl_ckpt.core.operations.export import export_version

    return f"exported to {export_version(version, target.location, reporter=job).output}"


_ACTIONS: Final[dict[str, tuple[str, Callable[[Version, CheckpointRef, BackgroundJob], str]]]] = {
    "copy": ("copy to", _copy),
    "tag": ("tag", _tag),
    "export": ("export to", _export),
}


class ActionPage(SearchPage):
    """A screen about versions, with keys that ask for a target, then whether to go on."""

    @property
    def subject(self) -> Version | None:
        """Return the version that is acted on."""
        raise NotImplementedError

    def action_act(self, name: str) -> None:
        """Ask for the target of an action."""
        version = self.subject
        if version is not None:
            self.ask(f"{_ACTIONS[name][0]}:", entered=lambda target: self._confirm(name, version, target.strip()))

    def _confirm(self, name: str, version: Version, target: str) -> None:
        """Ask whether to go on; only y and yes are a yes."""

        def answered(answer: str) -> None:
            if answer.strip().lower() not in {"y", "yes"}:
                self.notice("nothing was changed")
                return
            ref = self.browser.parse(target)
            self.work(f"{name}: {target}", lambda job: act(again(version), ref, job), done, kind=ACTION)

        def done(said: str) -> None:
            self.begin()
            self.notice(said)

        words_before, act = _ACTIONS[name]
        if target:
            question = self.shown(f"{version.ref}, {words.size(version.size_bytes)}: {words_before} {target}")
            self.ask(f"{shortened(question, self.app.size.width - _ANSWER)}? [y/N]", entered=answered)
