"""Checkpoints of TensorFlow, which need no TensorFlow: each tensor has its place in the one data file of a bundle."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final

from edl_ckpt.core.kernel.checksums import Crc32
from edl_ckpt.core.operations.export.formats.arrays import document_bytes, write_json
from edl_ckpt.core.operations.export.formats.content_format import ContentFormat
from edl_ckpt.core.operations.export.formats.frameworks import METADATA_FILE, metadata_document
from edl_ckpt.core.operations.export.interface import ExportContent, FormatTraits, Tensor
from edl_ckpt.core.operations.export.output.places import Place, finish_outputs
from edl_ckpt.core.operations.export.output.target import ExportTarget
from edl_ckpt.core.sources.bundle.writing import BundleLayout, lay_out
from edl_ckpt.core.sources.steps.file_layout import Array, Slab

CHECKPOINT_PREFIX: Final = "model"


class TensorFlow(ContentFormat):
    """A checkpoint that `tf.train.load_checkpoint` lists and reads: `model.index` and its data, in a directory.

    A file `checkpoint` there leads `tf.train.latest_checkpoint` to it, wherever the directory is moved.
    """

    traits: ClassVar = FormatTraits("tensorflow", is_directory=True, spools=False)

    def write(self, content: ExportContent, target: ExportTarget) -> None:
        """Write the checkpoint with the prefix `model`."""
        layout = _layout(content.tensors)
        outputs = {name: target.new_file(os.path.join(target.path, name), size) for name, size in layout.files.items()}
        places: dict[str, Place] = {}
        sums: dict[tuple[str, int], Crc32] = {}
        for tensor in content.tensors:
            name, start = layout.at(tensor.name, 0)
            sums[tensor.name, 0] = crc = Crc32(layout.checksum)
            places[tensor.name] = Place(outputs[name], start, crc)
        with next(iter(outputs.values())):
            content.fill(places)
        for name, offset, data in layout.literals({part: crc.value() for part, crc in sums.items()}):
            outputs[name].write(offset, data)
        write_json(os.path.join(target.path, METADATA_FILE), metadata_document(content, content.finish()))
        finish_outputs(list(outputs.values()))

    def planned(self, content: ExportContent, path: str, beside: str) -> Mapping[str, int | None]:
        """Return all files with their sizes."""
        del beside
        notes = document_bytes(metadata_document(content, content.metadata))
        sizes = {**_layout(content.tensors).files, METADATA_FILE: len(notes)}
        return {os.path.join(path, name): size for name, size in sorted(sizes.items())}


def _layout(tensors: Sequence[Tensor]) -> BundleLayout:
    """Return where tensors are in a bundle, one after the other; UnsupportedError for a name that it cannot have."""
    slabs = [(tensor, Slab(0, (0,) * len(tensor.shape), tensor.shape)) for tensor in tensors]
    arrays = [Array(tensor.name, tensor.dtype, tensor.shape, (slab,)) for tensor, slab in slabs]
    return lay_out(CHECKPOINT_PREFIX, arrays, with_state=True)
