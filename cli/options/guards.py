"""The options of `prune` that lift its guards: what it would keep without them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from edl_ckpt.cli.options.common import flag, option
from edl_ckpt.cli.terminal.text import escaped
from edl_ckpt.core.base.errors import UsageError

if TYPE_CHECKING:
    from edl_ckpt.core.operations.prune.guards import Guards


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOptions:
    """Which guards the command line lifts."""

    incomplete: Annotated[bool, flag("Also delete incomplete, older versions.")] = False
    delete: Annotated[list[str] | None, option("VERSION", "Delete this version; may be repeated.")] = None
    with_foreign: Annotated[bool, flag("With --delete: delete files of others too.")] = False
    drop_tag: Annotated[list[str] | None, option("TAG", "Ignore this tag's protection; may be repeated.")] = None
    ignore_pointers: Annotated[bool, flag("Delete a version that `latest` or a link names.")] = False
    even_newest: Annotated[bool, flag("Delete even the newest complete version.")] = False
    allow_empty_rule: Annotated[bool, flag("Go on if no version has a rule's metric or tag.")] = False

    def lifted(self, *, grace_seconds: float) -> Guards:
        """Return the guards as the engine takes them; UsageError for values that are none or do not go together."""
        from edl_ckpt.core.operations.prune.guards import Guards

        versions = self._versions()
        if self.with_foreign and not versions:
            raise UsageError("--with-foreign needs --delete VERSION: no rule deletes foreign content")
        return Guards(
            incomplete=self.incomplete,
            everything=self.even_newest,
            delete=versions,
            drop_tags=tuple(self.drop_tag or ()),
            grace_seconds=grace_seconds,
            ignore_pointers=self.ignore_pointers,
            with_foreign=self.with_foreign,
            allow_empty_rule=self.allow_empty_rule,
        )

    def _versions(self) -> tuple[int, ...]:
        """Return the versions of --delete; UsageError for a name: journals and the trash know versions by numbers."""
        versions: list[int] = []
        for text in self.delete or ():
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise UsageError(
                    f"--delete: {escaped(repr(text))} is not a whole number",
                    hint="prune deletes versions by their numbers; remove the files of one without a number yourself",
                )
            versions.append(int(text))
        return tuple(versions)
