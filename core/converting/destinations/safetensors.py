"""safetensors as a destination: every tensor as it is, in one file or in a set of files of bounded size."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from edl_ckpt.core.base.errors import UnsupportedError
from edl_ckpt.core.base.json_objects import parse_object
from edl_ckpt.core.converting.changes import OutVariable
from edl_ckpt.core.converting.destinations.interface import ArrayDestination
from edl_ckpt.core.reading.file_texts import OF_PARTS
from edl_ckpt.core.sources.safetensors.indexing import TAGS, index_metadata, read_header
from edl_ckpt.core.sources.safetensors.sets import ENDING, INDEX, set_of
from edl_ckpt.core.sources.safetensors.writing import lay_out
from edl_ckpt.core.sources.steps.file_layout import Array, FileLayout
from edl_ckpt.core.sources.steps.interface import read_head


class ToSafetensors(ArrayDestination):
    """The tensors of one file or set, in files of another size; only from files of safetensors."""

    system = "safetensors"
    other_dtypes = frozenset(TAGS)
    of_system = re.compile(r"\.safetensors(?:\.index\.json)?$")

    def describes(self, name: str, read: Collection[str]) -> bool:
        """Say whether a file is the index of a set that was read."""
        sets = {set_of(path) for path in read if path.endswith(ENDING)}
        return name.endswith(INDEX) and name.removesuffix(INDEX) in sets

    def rank_of(self, variable: OutVariable) -> int:
        """Return 0: an array has no rank, and files are filled in the order of names."""
        del variable
        return 0

    def laid_out(self, arrays: Sequence[Array]) -> FileLayout:
        """Return the files, with the metadata of all; where two differ in a text, with that of the first."""
        version = self.source.version
        paths = [name for name in version.sizes if name in self.own_names and name.endswith(ENDING)]
        stems = {set_of(path) for path in paths}
        if not self.is_own or len(stems) > 1:
            what = f"{len(stems)} sets cannot be one"
            raise UnsupportedError(what, path=version.ref, hint="try: export --format safetensors")
        metadata: dict[str, str] = {}
        of_index: dict[str, Any] = {}
        for path in reversed(paths):
            metadata |= read_header(self.source.files[version.path_of(path)]).metadata
        metadata = {key: text for key, text in metadata.items() if not key.startswith(OF_PARTS)}
        for name in version.sizes:
            if name in self.own_names and name.endswith(INDEX):
                path = version.path_of(name)
                of_index |= index_metadata(parse_object(read_head(self.source.files[path]), path))
        largest = max(version.sizes[path] for path in paths) if len(paths) > 1 else None
        return lay_out(stems.pop(), arrays, self.given.most_file_bytes or largest, metadata, of_index)
